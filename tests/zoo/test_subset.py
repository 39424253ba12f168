"""The part of the zoo that every run of the tests takes: networks of torch and transformers, all checks but ONNX."""

from __future__ import annotations

import pytest

from .cell import Cell
from .members import find

SUBSET = [
    ("torch", "GRU cell in a Python loop", "float32 SGD"),
    ("torch", "weight tying", "bfloat16 AdamW"),
    ("torch", "mixture of experts, data-dependent", "float32 SGD"),
    ("transformers", "BERT", "bfloat16 AdamW"),
    ("transformers", "GPT-2", "float32 SGD"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("library", "name", "variant"), SUBSET, ids=[f"{name}, {variant}" for _, name, variant in SUBSET])
def test_a_cell_of_the_zoo(library: str, name: str, variant: str) -> None:
    cell = Cell(find(library, name), variant)
    cell.run(export=False)
    assert cell.failures == {}
    assert cell.checks.keys() == {"trains", "target", "resumes", "equals dense", "finalizes", "deploys"}
