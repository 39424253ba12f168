"""Training 2N steps equals training N, saving, loading in a new process and training N: bit by bit."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import autosparse
from autosparse import STR, AutoSparse
from autosparse.methods import Method

from ..states import differences, untimed
from .resume_worker import CASES
from .training import begin, mlp

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All cases cut here and finished by one new process."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("resume")
    for number, case in enumerate(CASES.values()):
        run = case.build(seed=number)
        run.advance(case.cut, case.close_last)
        torch.save(run.state(), folder / f"{number}.pt")
    command = [sys.executable, "-m", "tests.robustness.resume_worker", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return {name: torch.load(folder / f"{number}.done.pt", weights_only=True) for number, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_resume_in_a_new_process_is_bit_exact(name: str, continued: dict[str, Any]) -> None:
    case = CASES[name]
    run = case.build(seed=list(CASES).index(name))
    run.advance(case.cut, case.close_last)
    case.finish(run)
    expected = {**run.state(), "report": untimed(run.sp.report())}
    assert differences(continued[name], expected) == []
    assert (run.sp.step, run.sp.epoch) == (20, 4)


def test_the_cases_use_what_they_say(continued: dict[str, Any]) -> None:
    """A guard that acted and a controller that moved: otherwise their states would be compared empty."""
    steered = continued["conv, target, SGD"]["sp"]
    assert steered["guard"]["events"]
    assert len(steered["controller"]["history"]) == 20
    assert len(continued["conv, autotune, SGD"]["sp"]["tuner"]["history"]) == 3


def test_a_state_of_another_run_is_refused_and_nothing_is_lost() -> None:
    run = begin(mlp(), AutoSparse(alpha=0.5))
    run.advance(5)
    before = copy.deepcopy(run.sp.state_dict())
    others = {
        "its method is str, this one's autosparse": begin(mlp(), STR()).sp.state_dict(),
        r"alpha was 0\.6, is 0\.5": begin(mlp(), AutoSparse(alpha=0.6)).sp.state_dict(),
        "epochs was 9, is 4": begin(mlp(), AutoSparse(alpha=0.5), epochs=9).sp.state_dict(),
        r"0 has shape \[30, 10\] in the state, \[24, 10\] here": begin(mlp(width=30), AutoSparse(alpha=0.5)).sp.state_dict(),
        "layers only in this model: 4": begin(mlp(), AutoSparse(alpha=0.5), exclude="4").sp.state_dict(),
        "the state has version 99, this release reads 1": {**before, "version": 99},
        "this is not the state of a Sparsifier": run.model.state_dict(),
    }
    for message, state in others.items():
        with pytest.raises(ValueError, match=message):
            run.sp.load_state_dict(state)
        assert differences(run.sp.state_dict(), before) == []


@pytest.mark.parametrize("part", ["ledger", "controller", "guard", "generator", "memory", "epoch_start"])
def test_a_damaged_state_is_refused_and_nothing_is_lost(part: str) -> None:
    run = begin(mlp(), AutoSparse(alpha=0.5, target_sparsity=0.7))
    run.advance(7)
    state = copy.deepcopy(run.sp.state_dict())
    other = begin(mlp(), AutoSparse(alpha=0.5, target_sparsity=0.7))
    before = copy.deepcopy(other.sp.state_dict())
    del state[part]
    with pytest.raises(ValueError, match=f"lacks {part}"):
        other.sp.load_state_dict(state)
    assert differences(other.sp.state_dict(), before) == []


def damaged(state: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The state with one entry, or one entry of an entry, missing or of another type."""
    for key, value in state.items():
        yield f"{key} missing", {name: entry for name, entry in state.items() if name != key}
        if value is None:  # a part that the run does not have
            continue
        for other in ("damaged", 0.5, {"damaged": [1, 2]}):
            yield f"{key} = {other!r}", {**state, key: other}
        if isinstance(value, dict) and key not in ("memory", "fields", "layers"):
            for inner in value:
                yield f"{key}.{inner} missing", {**state, key: {name: each for name, each in value.items() if name != inner}}


@pytest.mark.parametrize(
    "method",
    [
        AutoSparse(alpha=0.5, target_sparsity=0.7),
        AutoSparse(autotune=autosparse.AutoTune(epochs=2, reference=[0.5, 0.4])),
        autosparse.method("rigl", sparsity=0.5, update_every=2),
        autosparse.method("cs"),
    ],
    ids=["target", "autotune", "rigl", "cs"],
)
def test_a_state_damaged_anywhere_is_refused_before_anything_is_loaded(method: Method) -> None:
    run = begin(mlp(), method)
    run.advance(7)
    state = copy.deepcopy(run.sp.state_dict())
    accepted = []
    for what, broken in damaged(state):
        other = begin(mlp(), method)
        before = copy.deepcopy(other.sp.state_dict())
        try:
            other.sp.load_state_dict(broken)
        except ValueError:
            assert differences(other.sp.state_dict(), before) == [], what
        else:
            accepted.append(what)
    # what older states lack; and only a method could say what its memory needs
    assert set(accepted) <= {
        "compute missing",
        "compute.first_plan_is_due missing",
        "compute.fusing missing",
        "compute.precisions missing",
        "memory = {'damaged': [1, 2]}",
    }


def test_a_finalized_run_takes_no_state() -> None:
    run = begin(mlp(), STR())
    state = run.sp.state_dict()
    run.sp.finalize()
    with pytest.raises(RuntimeError, match="finalized"):
        run.sp.load_state_dict(state)


@pytest.mark.parametrize(
    ("method", "field", "other"),
    [
        (STR(), "g", {"g": "exp"}),
        (AutoSparse(), "alpha", {"alpha": 0.5}),
        # a default that the method works out
        (autosparse.method("mest", sparsity=0.5, update_epochs=1), "mutation", {"mutation": (0.1, 0.05)}),
        (autosparse.method("topkast+ga"), "ga", {"ga": autosparse.GradientAnnealing(alpha=0.5)}),
        (autosparse.method("rigl", sparsity=0.5, update_every=2), "update_end", {"update_end": 0.5}),
    ],
)
def test_a_field_that_a_state_does_not_mention_counts_as_its_default(method: Method, field: str, other: dict[str, Any]) -> None:
    run = begin(mlp(), method)
    run.advance(3)
    state = copy.deepcopy(run.sp.state_dict())
    del state["fields"][field]
    resumed = begin(mlp(), method)
    resumed.sp.load_state_dict(state)
    assert resumed.sp.step == 3
    with pytest.raises(ValueError, match=f"{field} was .*, is "):
        begin(mlp(), replace(method, **other)).sp.load_state_dict(state)


def test_the_same_fields_in_tuples_and_lists_are_the_same_run() -> None:
    method = AutoSparse(autotune=autosparse.AutoTune(epochs=2, reference=[0.5, 0.4]))
    state = begin(mlp(), method).sp.state_dict()
    state["fields"]["autotune"]["reference"] = tuple(state["fields"]["autotune"]["reference"])
    begin(mlp(), method).sp.load_state_dict(state)


def test_a_reference_file_given_as_a_path_is_saved_as_text(tmp_path: Path) -> None:
    recorder = autosparse.ReferenceRecorder(tmp_path / "dense.json")
    for loss in (0.5, 0.4):
        recorder.record(loss)
    method = AutoSparse(autotune=autosparse.AutoTune(epochs=2, reference=tmp_path / "dense.json"))
    run = begin(mlp(), method)
    torch.save(run.sp.state_dict(), tmp_path / "sp.pt")
    run.sp.load_state_dict(torch.load(tmp_path / "sp.pt", weights_only=True))
