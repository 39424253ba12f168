"""Two ranks train, are killed, resume and end as an unbroken pair does; the same command, replicated or sharded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autosparse import load_sparse

from .conftest import Workshop

STEPS = 12
FORWARDS_A_STEP = 2  # accumulated


def ranks_ended(done: Any, out: str, workshop: Workshop) -> bool:
    """Judged by what they wrote: gloo may abort at interpreter shutdown, after all work is done."""
    return (workshop.path / out / "result.json").exists() or done.returncode == 0


def unbroken_run(workshop: Workshop, strategy: str) -> str:
    """Two ranks from start to end, trained by the first test that needs them; replicas keep what each rank ended with."""
    out = f"{strategy}-unbroken"
    if not (workshop.path / out / "result.json").exists():
        keep = {"KEEP_RANKS": "1"} if strategy == "ddp" else {}
        done = workshop.train(out, "--set", f"train.strategy={strategy}", ranks=2, environment=keep)
        assert ranks_ended(done, out, workshop), done.stderr
    return out


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_killed_and_resumed_equal_two_unbroken(workshop: Workshop, strategy: str) -> None:
    settings = ("--set", f"train.strategy={strategy}")
    unbroken, cut = unbroken_run(workshop, strategy), f"{strategy}-cut"
    at = FORWARDS_A_STEP * (STEPS + 11)  # the 11th step of the second epoch, after the checkpoint of its 8th
    killed = workshop.train(
        cut, *settings, ranks=2, environment={"SIGNAL": "SIGKILL", "SIGNAL_AT": str(at), "SIGNAL_RANK": "1"}
    )
    assert killed.returncode != 0
    assert not (workshop.path / cut / "result.json").exists()
    assert len(workshop.metrics(cut)) == 1
    resumed = workshop.train(cut, "--resume", *settings, ranks=2)
    assert ranks_ended(resumed, cut, workshop), resumed.stderr
    workshop.assert_same(unbroken, cut)
    assert workshop.json(cut, "result.json")["sparsity"] == pytest.approx(0.6, abs=0.005)
    assert workshop.json(cut, "run.json")["world"] == 2
    exported = workshop.command("export", cut, "--format", "safetensors", "--out", f"{cut}.safetensors")
    assert exported.returncode == 0, exported.stderr
    weights = load_sparse(workshop.path / f"{cut}.safetensors")
    for name, tensor in workshop.weights(cut).items():
        assert torch.equal(tensor, weights[name]), name


def test_replicas_are_bit_identical(workshop: Workshop) -> None:
    """Thresholds, gates, masks and weights as the ranks of the unbroken run left them."""
    unbroken_run(workshop, "ddp")
    first, second = (torch.load(workshop.path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))
    compared = [name for name in first if "running_" not in name and "num_batches" not in name]
    assert any("threshold" in name for name in compared)
    for name in compared:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize(
    ("strategy", "rank", "step"),
    [
        ("ddp", 0, STEPS + 11),
        pytest.param("ddp", 1, STEPS + 11, marks=pytest.mark.slow),
        pytest.param("ddp", 1, 2, marks=pytest.mark.slow),  # before the first checkpoint
        pytest.param("fsdp", 0, 2 * STEPS + 5, marks=pytest.mark.slow),
        pytest.param("fsdp", 1, STEPS, marks=pytest.mark.slow),
    ],
)
def test_torchrun_restarts_a_run_by_itself(workshop: Workshop, strategy: str, rank: int, step: int) -> None:
    """The same command starts the run, and after a rank was killed goes on with it."""
    settings, unbroken, cut = (
        ("--set", f"train.strategy={strategy}"),
        unbroken_run(workshop, strategy),
        f"elastic-{strategy}-{rank}-{step}",
    )
    kill = {"SIGNAL": "SIGKILL", "SIGNAL_AT": str(FORWARDS_A_STEP * step), "SIGNAL_RANK": str(rank)}
    done = workshop.train(cut, *settings, ranks=2, restarts=1, environment=kill)
    assert ranks_ended(done, cut, workshop), done.stderr
    assert "Signal 9 (SIGKILL)" in done.stderr or "exitcode: -9" in done.stderr, done.stderr
    workshop.assert_same(unbroken, cut)
    assert workshop.json(cut, "run.json")["status"] == "done"


@pytest.mark.slow
def test_another_number_of_processes_is_refused(workshop: Workshop) -> None:
    cut = "cut-for-one"
    workshop.train(cut, ranks=2, environment={"SIGNAL": "SIGKILL", "SIGNAL_AT": "40", "SIGNAL_RANK": "0"})
    alone = workshop.train(cut, "--resume")
    assert alone.returncode == 2
    assert "trained by 2 processes, these are 1" in alone.stderr


def test_more_ranks_than_samples_is_refused(workshop: Workshop) -> None:
    refused = workshop.train("too-few", "--set", "data.limit=32", "--set", "data.limit_test=1", ranks=2)
    assert refused.returncode != 0
    assert "sample" in refused.stderr
    assert "Traceback" not in refused.stderr.split("error:")[0]
