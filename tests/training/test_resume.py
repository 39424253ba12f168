"""A run that was stopped or killed in the middle of an epoch ends exactly as one that was not."""

from __future__ import annotations

import pytest

from .conftest import Workshop

STEPS = 12  # batches of 32 in 400 digits; each has two forward passes, since steps are accumulated


@pytest.fixture(scope="module")
def unbroken(workshop: Workshop) -> str:
    done = workshop.train("unbroken")
    assert done.returncode == 0, done.stderr
    return "unbroken"


@pytest.mark.parametrize(("signal", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGKILL", -9)])
def test_a_run_that_was_cut_goes_on_bit_for_bit(workshop: Workshop, unbroken: str, signal: str, code: int) -> None:
    out = f"cut-by-{signal}"
    at = 2 * STEPS + 2 * 11 + 2  # the 12th step of the second epoch, after the checkpoint of its 8th
    cut = workshop.train(out, environment={"SIGNAL": signal, "SIGNAL_AT": str(at)})
    assert cut.returncode == code, cut.stderr
    assert not (workshop.path / out / "result.json").exists()
    assert len(workshop.metrics(out)) == 1
    if signal != "SIGKILL":
        assert f"go on with: autosparse train --resume --out {out}" in cut.stderr
        assert workshop.json(out, "run.json")["status"] == "stopped"
    resumed = workshop.command("train", "--resume", "--out", out, "--no-report")
    assert resumed.returncode == 0, resumed.stderr
    workshop.assert_same(unbroken, out)
    assert workshop.json(out, "run.json")["status"] == "done"


def test_a_complete_run_is_left_alone(workshop: Workshop, unbroken: str) -> None:
    before = (workshop.path / unbroken / "result.json").read_bytes()
    again = workshop.command("train", "--resume", "--out", unbroken, "--no-report")
    assert again.returncode == 0
    assert "complete already" in again.stdout
    assert (workshop.path / unbroken / "result.json").read_bytes() == before


def test_a_folder_that_exists_is_refused(workshop: Workshop, unbroken: str) -> None:
    again = workshop.train(unbroken)
    assert again.returncode == 2
    assert again.stderr.startswith("error: unbroken exists already")
    assert "--resume" in again.stderr


def test_a_changed_recipe_is_refused_with_the_difference(workshop: Workshop, unbroken: str) -> None:
    again = workshop.train(unbroken, "--resume", "--set", "optimizer.lr=0.2")
    assert again.returncode == 2
    assert "optimizer.lr: 0.05 -> 0.2" in again.stderr
