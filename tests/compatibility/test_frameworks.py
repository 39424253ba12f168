"""Checkpoints that Lightning and the Hugging Face Trainer wrote with 0.1.0 are resumed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from .framework_runs import EXPECTED, fit_lightning, fit_trainer
from .numerics import assert_same
from .plain_loops import FIXTURES


def test_lightning_goes_on_from_its_checkpoint() -> None:
    pytest.importorskip("lightning")
    folder = FIXTURES / "lightning"
    assert_same(fit_lightning(resume_from=folder / "second-epoch.ckpt"), load_file(folder / EXPECTED))


def test_the_trainer_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    folder = Path(shutil.copytree(FIXTURES / "trainer", tmp_path / "checkpoint-6"))
    assert_same(fit_trainer(tmp_path / "out", resume_from=folder), load_file(folder / EXPECTED))
