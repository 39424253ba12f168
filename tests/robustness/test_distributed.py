"""Two gloo ranks, started once for all tests: DDP and FSDP2."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ..states import differences
from .distributed_worker import CASES, EPOCHS, SHARDED, STEPS, WORLD
from .training import Run

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo")

ROOT = Path(__file__).parents[2]
WITHOUT_NORM = [name for name in CASES if "batch norm" not in name]
ORDER = "the order is: .to(), sparsify, then compile / DDP / fully_shard, then the optimizer, then bind"

Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    folder = tmp_path_factory.mktemp("ranks")
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.robustness.distributed_worker", str(rank), str(folder)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        errors = [process.communicate(timeout=300)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    # torch's gloo processes may abort (SIGABRT) while the interpreter shuts down, after all work is written: that is compared
    for process, error in zip(started, errors, strict=True):
        raced = process.returncode == -signal.SIGABRT and "terminate called without an active exception" in error
        assert process.returncode == 0 or raced, error
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.fixture(scope="module")
def alone() -> dict[str, Run]:
    """One process with the whole batch, from the weights of rank 0."""
    torch.set_num_threads(1)
    runs = {}
    for name in WITHOUT_NORM:
        runs[name] = CASES[name].start(seed=0)
        runs[name].advance(EPOCHS * STEPS)
    return runs


@pytest.mark.parametrize("name", CASES)
def test_ddp_ranks_are_bit_identical(name: str, ranks: Ranks) -> None:
    """Weights, thresholds, alpha, gates, controller, guard, ledger; though the ranks began with other weights."""
    first, second = (rank["run_ddp"][name] for rank in ranks)
    assert differences(first, second) == []
    assert first["sp"]["step"] == EPOCHS * STEPS


@pytest.mark.parametrize("name", WITHOUT_NORM)
def test_ddp_equals_one_process_with_the_whole_batch(name: str, ranks: Ranks, alone: dict[str, Run]) -> None:
    found, expected = ranks[0]["run_ddp"][name], alone[name]
    for key, value in expected.model.state_dict().items():
        torch.testing.assert_close(found["model"][key], value, rtol=0, atol=1e-6, msg=key)
    assert found["alpha"] == expected.sp.alpha
    assert found["sparsity"] == expected.sp.sparsity()
    assert len(found["sp"]["guard"]["events"]) == len(expected.sp.events)


def test_the_controller_and_the_guard_took_part(ranks: Ranks) -> None:
    state = ranks[0]["run_ddp"]["target"]["sp"]
    assert len(state["controller"]["history"]) == EPOCHS * STEPS
    assert ranks[0]["run_ddp"]["target"]["sparsity"] == pytest.approx(0.7, abs=0.005)
    assert any(rank["run_ddp"][name]["sp"]["guard"]["events"] for rank in ranks for name in CASES)


def test_autotune_follows_the_mean_loss_of_the_ranks(ranks: Ranks) -> None:
    """References 1.5, 1.5: mean 2.0 raises alpha by 5 %, mean 1.2 lowers it by 0.5 %; alone the ranks would disagree."""
    for rank in ranks:
        found = rank["run_autotune"]
        assert found["losses"] == pytest.approx([2.0, 1.2, 1.0])
        assert found["alphas"][:2] == pytest.approx([0.5 * 1.05, 0.5 * 1.05 * 0.995])


def test_a_loss_that_is_nan_on_one_rank_is_an_error_on_all(ranks: Ranks) -> None:
    for rank in ranks:
        assert rank["run_autotune"]["nan"].startswith("ValueError: the loss of epoch 0 is nan: nothing was changed")
        assert rank["run_autotune"]["epoch"] == 0


@pytest.mark.parametrize("wrapper", ["DDP", "fully_shard"])
def test_wrapped_models_are_refused(wrapper: str, ranks: Ranks) -> None:
    for rank in ranks:
        assert rank["run_refusals"][wrapper].startswith("ValueError: the model is wrapped already")
        assert rank["run_refusals"][wrapper].endswith(ORDER)


def test_ranks_with_other_settings_are_refused(ranks: Ranks) -> None:
    assert "start_sparsity was 0.4, is 0.5" in ranks[1]["run_refusals"]["other settings"]
    assert "the ranks were given different runs" in ranks[0]["run_refusals"]["other settings"], "no rank goes on alone"


# ---------------------------------------------------------------------------------------------------------------- FSDP2


@pytest.mark.parametrize("name", SHARDED)
def test_fsdp2_equals_one_process(name: str, ranks: Ranks, alone: dict[str, Run]) -> None:
    expected = alone[name].sp
    plain = expected.dense_state_dict()
    for rank in ranks:
        found = rank["run_fsdp"][name]
        assert found["sharded"]
        assert list(found["dense"]) == list(plain)
        for key, value in plain.items():
            torch.testing.assert_close(found["dense"][key], value, rtol=0, atol=1e-6, msg=key)
        assert found["sparsity"] == expected.sparsity()
        assert found["zeros"] == [layer.zeros for layer in expected.report().layers]
        assert found["kinds"] == ["Linear"] * 3
        assert len(found["sp"]["guard"]["events"]) == len(expected.events)


@pytest.mark.parametrize("name", SHARDED)
def test_fsdp2_ranks_agree_bit_by_bit(name: str, ranks: Ranks) -> None:
    first, second = (rank["run_fsdp"][name] for rank in ranks)
    assert differences(first, second) == []


def test_fsdp2_finalize_is_refused_with_the_way_out(ranks: Ranks) -> None:
    for rank in ranks:
        message = rank["run_fsdp"]["target"]["finalize"]
        assert message.startswith("RuntimeError: a sharded model cannot be made plain in place")
        assert message.endswith("build a plain one on every rank and call sp.finalize(into=plain)")


def test_fsdp2_finalize_into_a_plain_model_gathers(ranks: Ranks) -> None:
    for rank in ranks:
        found = rank["run_fsdp"]["target"]
        assert differences(found["plain"], found["dense"]) == []


def test_fsdp2_resumes_from_full_states(ranks: Ranks) -> None:
    for rank in ranks:
        found = rank["run_fsdp_resume"]
        assert differences(*found["dense"]) == []
        assert differences(*found["states"]) == []


def test_fsdp2_from_the_meta_device(ranks: Ranks) -> None:
    for rank in ranks:
        found = rank["run_fsdp_meta"]
        assert found["start"] == pytest.approx(0.5, abs=0.01)
        assert found["end"] > 0.4
        assert found["gate"] == pytest.approx(found["alpha"])
