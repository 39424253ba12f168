"""Training under bfloat16 autocast: planned for that precision, and the same gradients as dense torch to its rounding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autosparse
from autosparse import AutoSparse, kernels
from autosparse.compute import timing
from autosparse.compute.planner import BFLOAT16, FLOAT32, Planner, Workload
from autosparse.kernels.geometry import Convolution
from autosparse.sparsifier import Sparsifier
from tests.compute.test_auto import EPOCHS, STEPS, Measured, Net, Run, batch, measured

__all__ = ["measured"]
ROOT = Path(__file__).parents[2]
HALF = torch.bfloat16
pytestmark = pytest.mark.skipif(not kernels.available(HALF), reason="no bfloat16 kernels")


def autocast(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", HALF, enabled=enabled)


def half_run() -> Run:
    run = Run()
    run.autocast = HALF
    return run


def test_layers_are_planned_for_bfloat16(measured: Measured) -> None:
    run = half_run()
    run.train(EPOCHS * STEPS)
    assert {each.precision for each in measured.asked} == {BFLOAT16}
    plan = run.sp.layer_plans()[1]
    assert plan.precision == BFLOAT16
    assert str(plan).startswith("skips zeros in bfloat16: ")
    assert "1 of 1 layers in bfloat16" in run.sp.report().compute


def test_a_step_of_another_precision_is_dense_until_it_is_planned(measured: Measured) -> None:
    run = half_run()
    run.train(2 * STEPS)
    assert run.sp.layer_plans()[1].passes
    assert run.model(batch(0)[0]).dtype is torch.float32
    run.autocast = None
    run.train(EPOCHS * STEPS, 2 * STEPS)
    assert measured.asked[-1].precision == FLOAT32
    assert run.sp.layer_plans()[1].precision == FLOAT32


@pytest.mark.parametrize("saved_at", [1, 6, 10])
def test_a_resumed_run_goes_on_bit_for_bit(measured: Measured, tmp_path: Path, saved_at: int) -> None:
    whole, first, second = half_run(), half_run(), half_run()
    whole.train(EPOCHS * STEPS)
    first.train(saved_at)
    torch.save(first.state(), tmp_path / "state.pt")
    second.load(torch.load(tmp_path / "state.pt", weights_only=True))
    second.train(EPOCHS * STEPS, saved_at)
    assert any(True in each["second.0"] for each in whole.passes if "second.0" in each), "or nothing is shown"
    assert first.losses + second.losses == whole.losses
    assert first.passes + second.passes == whole.passes
    for name, value in whole.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], value), name


def sparsified(mode: str, fuse: bool = True) -> tuple[nn.Module, Sparsifier]:
    torch.manual_seed(0)
    model = Net()
    sp = autosparse.sparsify(
        model, AutoSparse(start_sparsity=0.9, alpha=0.0, schedule="constant"), epochs=1, steps_per_epoch=9, guard=None
    )
    sp.compute(mode, fuse=fuse)
    return model, sp


def gradients(model: nn.Module, way: str) -> list[Tensor]:
    for step in range(2):  # added up, as over two small batches
        x, y = batch(step)
        with autocast(way != "float32"):
            scores = checkpoint(model, x, use_reentrant=False) if way == "checkpoint" else model(x)
            loss = nn.functional.cross_entropy(scores, y)
        (loss / 2).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("way", ["accumulation", "checkpoint"])
@pytest.mark.parametrize("fuse", [True, False])
def test_gradients_of_a_whole_net(fuse: bool, way: str) -> None:
    exact = gradients(sparsified("dense")[0], "float32")
    dense = gradients(sparsified("dense")[0], "accumulation")
    ours = gradients(sparsified("sparse", fuse)[0], way)
    assert {each.dtype for each in ours} == {torch.float32}

    def distance(found: list[Tensor]) -> float:
        return sum(float((one - other).square().sum()) for one, other in zip(found, exact, strict=True)) ** 0.5

    assert distance(ours) <= 1.2 * distance(dense)


@pytest.mark.slow
def test_ranks_follow_the_plan_of_the_first(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "tests.compute.bfloat16_rank", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert first["plans"] == second["plans"]
    assert first["plans"][1] == (BFLOAT16, ("forward", "input", "weight"))
    assert all(torch.equal(value, second["model"][name]) for name, value in first["model"].items())


def test_real_times_of_both_precisions() -> None:
    planner = Planner()
    for precision in (FLOAT32, BFLOAT16):
        workload = Workload(
            Convolution(2, 32, (12, 12), 64, (3, 3), (1, 1), (1, 1)), False, torch.get_num_threads(), True, precision
        )
        times = timing.measure(workload, (0.3, 0.05))
        assert times.dense_forward > 0
        assert all(sample.forward > 0 for sample in times.samples)
        planner.decide(precision, replaced(workload), 0.1)
    again = Planner()
    again.load_state_dict(planner.state_dict())
    assert again.state_dict() == planner.state_dict()


def replaced(workload: Workload) -> Workload:
    """Large enough to be measured."""
    return Workload(Convolution(1, 256, (1, 512), 256), True, workload.threads, precision=workload.precision)
