"""The table in the docs agrees with the results, and the plan with what it promises."""

from __future__ import annotations

import json
import runpy
import sys
from collections import Counter
from typing import Any

import pytest

from .member import LATER
from .members import members_of
from .plan import COMPILED, EVERYWHERE, PRECISIONS, PROCESSES, CellName, variants_of
from .results import ROOT, Results
from .torchvision_stand_in import is_usable, torchvision_or_stand_in


def table() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "make_zoo_table.py"))


def results() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((ROOT / "docs" / "zoo.json").read_text(encoding="utf-8"))
    return read


def test_the_page_is_made_from_the_results() -> None:
    assert (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8") == table()["page"](results())


def test_messages_of_torch_lose_their_colours() -> None:
    assert table()["_plain"]("\x1b[96mstep 1/3\x1b[0m of `a_b`") == r"step 1/3 of `a\_b`"
    assert "\x1b" not in table()["page"](results())


def test_every_cell_is_green_or_says_why() -> None:
    for record in results()["records"]:
        assert record["green"] == (not record["failures"]), record["member"]
        assert all(why.strip() for why in record["failures"].values()), record["member"]


def test_the_plan_is_what_is_promised() -> None:
    planned = [CellName(*cell) for cell in results()["planned"]]
    members = {(cell.library, cell.member) for cell in planned}
    assert len([name for library, name in members if library != "torch"]) >= 40
    assert all(CellName(*member, variant) in planned for member in members for variant in EVERYWHERE)
    counts = Counter(cell.variant for cell in planned)
    assert min(counts[variant] for variant in (*PRECISIONS, COMPILED, PROCESSES)) >= 10


@pytest.mark.parametrize("library", ["torch", "transformers"])
def test_the_page_follows_the_plan(library: str) -> None:
    planned = {(member.name, variant) for member in members_of(library) for variant in variants_of(member)}
    assert planned == {(name, variant) for given, name, variant in results()["planned"] if given == library}


def test_half_of_the_convolutional_members_run_kernels_and_fused_steps() -> None:
    records = [record for record in results()["records"] if record["library"] != LATER]
    firsts = [record for record in records if record["variant"] == EVERYWHERE[0] and record["family"] == "convolution"]
    running = [record for record in firsts if record.get("passes") and record.get("fused")]
    assert 2 * len(running) >= len(firsts)


def test_finished_cells_are_kept_and_others_run_again(tmp_path: Any) -> None:
    cell = CellName("torch", "a net", "float32 SGD")
    results = Results(tmp_path / "results.json")
    assert not results.is_finished(cell, "1")
    results.put({**cell._asdict(), "green": False, "failures": {"trains": "no"}, "code": "1"})
    assert not Results(results.path).is_finished(cell, "1")
    results.put({**cell._asdict(), "green": True, "failures": {}, "code": "1"})
    assert Results(results.path).is_finished(cell, "1")
    assert not Results(results.path).is_finished(cell, "2"), "the sources have changed"
    assert Results(results.path).is_finished(cell, None)
    assert Results(results.path).records[cell.member, cell.variant]["first"] == {"trains": "no"}


@pytest.mark.skipif(is_usable(), reason="torchvision is installed")
def test_the_stand_in_for_torchvision_leaves_no_trace() -> None:
    with torchvision_or_stand_in():
        from torchvision import transforms
        from torchvision.ops.misc import FrozenBatchNorm2d
        from torchvision.transforms.functional import InterpolationMode

        assert InterpolationMode("bicubic") is InterpolationMode.BICUBIC
        assert isinstance(transforms.Compose, type)
        with pytest.raises(ImportError, match="FrozenBatchNorm2d needs torchvision"):
            FrozenBatchNorm2d(3)
    assert not [name for name in sys.modules if name.startswith("torchvision")]
