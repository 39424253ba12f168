"""States that 0.1.0 saved in the middle of an epoch go on as they did there."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import autosparse
from autosparse import AutoSparse, AutoTune

from .command import json_of
from .numerics import assert_same, exact
from .plain_loops import CASES, EPOCHS, FIXTURES, REFERENCE, SAVED_AT, STATES, STEPS, TOTAL, PlainRun, PlannedRun, Run, make_net


def stored(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(io.BytesIO(gzip.decompress(path.read_bytes())), weights_only=True)
    assert content["version"] == "0.1.0"
    return content


def test_every_state_has_a_case() -> None:
    assert {path.name for path in STATES.iterdir()} == {f"{name}.pt.gz" for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_run_goes_on_from_its_saved_state(name: str) -> None:
    content = stored(STATES / f"{name}.pt.gz")
    run = PlainRun(CASES[name])
    run.load(content["state"])
    assert run.sp.step % STEPS == SAVED_AT % STEPS == 2, "it was saved inside an epoch"
    expected, losses = content["expected"], run.train(TOTAL)
    assert losses == (expected["losses"] if exact() else pytest.approx(expected["losses"], rel=1e-4))
    figures = {**expected["figures"], **CASES[name].corrected}
    assert run.figures() == (figures if exact() else pytest.approx(figures, rel=1e-4))
    assert_same(run.weights(), expected["weights"])


@pytest.mark.parametrize("mode", ["auto", "dense"])
def test_a_state_with_plans_is_taken(mode: str) -> None:
    content = stored(FIXTURES / "planned.pt.gz")
    plan = "3 of 9 passes of 3 layers skip the zeros"
    assert content["compute"].startswith(plan)
    run = PlannedRun()
    run.sp.compute(mode)
    assert not run.sp.report().compute.startswith(plan)
    run.load(content["state"])
    same_kernels = json_of("env")["native_kernels"] == content["state"]["sp"]["compute"]["kernels"]
    if same_kernels or mode == "dense":  # others are measured first
        assert run.sp.report().compute.startswith(plan) == (mode == "auto")
    assert_comes_near(run, content["expected"])


def assert_comes_near(run: Run, expected: dict[str, Any]) -> None:
    """For passes that may run on any kernels: each adds in an order of its own, over many pixels."""
    assert run.train(TOTAL) == pytest.approx(expected["losses"], rel=1e-3)
    assert run.figures() == pytest.approx(expected["figures"], rel=0.01)
    found = run.weights()
    assert found.keys() == expected["weights"].keys()
    for name in (name for name in found if not name.startswith("active ")):
        torch.testing.assert_close(found[name], expected["weights"][name], rtol=0.01, atol=0.003)


def test_reference_losses_are_read(tmp_path: Path) -> None:
    tune = AutoTune(epochs=4, reference=REFERENCE, settings={"lr": 0.2, "batch_size": 8})
    assert tune.losses() == (1.05, 0.85, 0.7, 0.6)
    assert tune.settings_difference() == ["the reference was recorded with lr = 0.1, this run has 0.2"]
    with pytest.warns(autosparse.SparsityWarning, match=r"recorded with lr = 0\.1, this run has 0\.2"):
        autosparse.sparsify(make_net(), AutoSparse(autotune=tune), epochs=EPOCHS, steps_per_epoch=STEPS)
    recorder = autosparse.ReferenceRecorder(tmp_path / "again.json", {"lr": 0.1, "batch_size": 8})
    for loss in tune.losses():
        recorder.record(loss)
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(REFERENCE.read_text())
