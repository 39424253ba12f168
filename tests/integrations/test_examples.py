"""The examples run, as a user would start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import BertForSequenceClassification

from .ranks import assert_finished

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*command: str, **environment: str) -> str:
    offline = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **offline, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert_finished(done)
    return done.stdout


def test_huggingface_trainer(tmp_path: Path) -> None:
    output = run(str(EXAMPLES / "huggingface_trainer.py"), str(tmp_path))
    found = re.search(r"accuracy (0\.\d+|1\.000) with (\d+\.\d)% zeros", output)
    assert found, output
    assert float(found[1]) > 0.85
    assert 79.5 < float(found[2]) < 80.5
    assert "train_fraction" in output
    plain = BertForSequenceClassification.from_pretrained(tmp_path)
    weight = plain.bert.encoder.layer[0].intermediate.dense.weight
    assert float((weight == 0).float().mean()) > 0.5
    assert bool(plain.classifier.weight.all())


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    output = run(*launch, str(EXAMPLES / "two_processes.py"), OUTPUT=str(tmp_path / "sparse.pt"))
    found = re.search(r"zeros on each rank: \[(\d+), (\d+)\]", output)
    assert found, output
    weights = torch.load(tmp_path / "sparse.pt", weights_only=True)
    total = sum(int((value == 0).sum()) for name, value in weights.items() if name.endswith("weight"))
    assert found[1] == found[2] == str(total)
    assert 0.79 < total / (10 * 64 + 64 * 64 + 64 * 4) < 0.81
