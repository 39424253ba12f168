"""A run that was stopped or killed in the middle of an epoch ends exactly as one that was not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .conftest import Workshop

STEPS = 12  # batches of 32 in 400 digits; each has two forward passes, since steps are accumulated


@pytest.fixture(scope="module")
def unbroken(workshop: Workshop) -> str:
    done = workshop.train("unbroken")
    assert done.returncode == 0, done.stderr
    return "unbroken"


@pytest.mark.parametrize(
    ("signal", "code"),
    [
        pytest.param("SIGTERM", 143, marks=pytest.mark.slow),
        pytest.param("SIGINT", 130, marks=pytest.mark.slow),
        ("SIGKILL", -9),
    ],
)
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
    again = workshop.answer(unbroken, "--resume")
    assert again.returncode == 0
    assert "complete already" in again.stdout
    assert (workshop.path / unbroken / "result.json").read_bytes() == before


def test_a_folder_that_exists_is_refused(workshop: Workshop, unbroken: str) -> None:
    again = workshop.answer(unbroken)
    assert again.returncode == 2
    assert again.stderr.startswith("error: unbroken exists already")
    assert "--resume" in again.stderr


def test_a_changed_recipe_is_refused_with_the_difference(workshop: Workshop, unbroken: str) -> None:
    again = workshop.answer(unbroken, "--resume", "--set", "optimizer.lr=0.2")
    assert again.returncode == 2
    assert "optimizer.lr: 0.05 -> 0.2" in again.stderr


def test_start_or_resume_does_whichever_fits(workshop: Workshop, unbroken: str) -> None:
    cut = workshop.train("either", "--start-or-resume", environment={"SIGNAL": "SIGKILL", "SIGNAL_AT": "46"})
    assert cut.returncode == -9
    done = workshop.train("either", "--start-or-resume")
    assert done.returncode == 0, done.stderr
    workshop.assert_same(unbroken, "either")
    assert "complete already" in workshop.answer("either", "--start-or-resume").stdout
    changed = workshop.answer("either", "--start-or-resume", "--set", "optimizer.lr=0.2")
    assert changed.returncode == 2
    assert "optimizer.lr: 0.05 -> 0.2" in changed.stderr
    both = workshop.answer("either", "--start-or-resume", "--resume")
    assert both.returncode == 2
    assert "not both" in both.stderr


def test_under_torchrun_this_is_the_default(workshop: Workshop, unbroken: str) -> None:
    torchrun = {"TORCHELASTIC_RUN_ID": "any"}
    assert "complete already" in workshop.answer(unbroken, environment=torchrun).stdout
    changed = workshop.answer(unbroken, "--set", "optimizer.lr=0.2", environment=torchrun)
    assert changed.returncode == 2
    assert "the recipe differs from that of the run in unbroken: optimizer.lr: 0.05 -> 0.2" in changed.stderr
    refused = workshop.answer(unbroken, "--no-start-or-resume", environment=torchrun)
    assert refused.returncode == 2
    assert "unbroken exists already" in refused.stderr


@pytest.mark.parametrize("redirection", ["| true", pytest.param(">&-", marks=pytest.mark.slow)])
def test_a_closed_output_does_not_end_a_run(workshop: Workshop, unbroken: str, redirection: str) -> None:
    out = f"closed-{len(redirection)}"
    words = f"{sys.executable} -m autosparse train tiny.yaml --no-report --out {out} 2>&1"
    every_step = "import autosparse.training.progress as p; p.LINE_SECONDS = 0"
    (workshop.path / "sitecustomize.py").write_text(every_step)
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "AUTOSPARSE_ALLOW_CODE": "user_net"}
    settings["PYTHONPATH"] = f"{workshop.path}:{os.environ.get('PYTHONPATH', '')}"
    command = ["bash", "-c", f"set -o pipefail; {words} {redirection}"]
    done = subprocess.run(command, cwd=workshop.path, env=settings, check=False)
    assert done.returncode == 0
    workshop.assert_same(unbroken, out)
