"""The plain loop through accelerate's prepare, accumulate and backward, on one process and on two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autosparse

from ..states import differences
from .accelerate_run import ACCUMULATION, CLIP, EPOCHS, TARGET, TUNED, Run, data, net
from .ranks import assert_finished

ROOT = Path(__file__).parents[2]


def trained(run: Run, epochs: int = EPOCHS) -> Run:
    for _ in range(epochs):
        run.epoch()
    return run


def test_the_loop_is_the_plain_one() -> None:
    """Bit by bit: the same steps written out without accelerate."""
    run = trained(Run(TARGET, batch=16))
    model = net()
    sp = autosparse.sparsify(model, TARGET, epochs=EPOCHS, steps_per_epoch=3)
    opt = torch.optim.AdamW(sp.param_groups(weight_decay=0.01), lr=0.02)
    sp.bind(opt)
    inputs, targets = data().tensors
    for _ in range(EPOCHS):
        for rows in ((0, 16), (32, 48), (64,)):
            for row in rows:
                part = slice(row, row + 16)
                (nn.functional.cross_entropy(model(inputs[part]), targets[part]) / ACCUMULATION).backward()
            nn.utils.clip_grad_norm_([each for group in opt.param_groups[:-1] for each in group["params"]], CLIP)
            opt.step()
            opt.zero_grad()
        sp.end_epoch(loss=run.losses[sp.epoch])
    assert sp.step == 12
    assert sp.sparsity() == pytest.approx(0.7, abs=0.01)
    assert differences(run.plain.state_dict(), model.state_dict()) == []
    assert differences(run.sp.state_dict(), sp.state_dict()) == []


def test_clipping_is_for_weights() -> None:
    run = trained(Run(TARGET, batch=16), epochs=1)
    assert [weights for weights, _ in run.gradients] == pytest.approx([CLIP] * 3, rel=1e-3)
    assert max(thresholds for _, thresholds in run.gradients) > CLIP


def test_bf16() -> None:
    run = Run(TARGET, batch=16, precision="bf16")
    trained(run)
    assert run.accelerator.mixed_precision == "bf16"
    assert run.sp.sparsity() == pytest.approx(0.7, abs=0.01)


def test_states_are_saved_and_loaded(tmp_path: Path) -> None:
    whole = trained(Run(TUNED, batch=16), epochs=2)
    whole.accelerator.save_state(str(tmp_path))
    resumed = Run(TUNED, batch=16, seed=5)
    resumed.accelerator.load_state(str(tmp_path))
    seen = [trained(run, epochs=2).seen() for run in (whole, resumed)]
    assert len(resumed.sp.parts["tuner"].history) == 3
    assert differences({**seen[0], "gradients": None}, {**seen[1], "gradients": None}) == []


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "tests.integrations.accelerate_run", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert_finished(done)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.slow
def test_two_processes_agree_and_resume(ranks: list[dict[str, Any]]) -> None:
    first, second = ranks
    assert differences(first, second) == []
    assert first["whole"]["sp"]["step"] == 12
    assert len(first["whole"]["sp"]["tuner"]["history"]) == 3
    for part in ("model", "opt", "sp"):
        assert differences(first["resumed"][part], first["whole"][part]) == []


@pytest.mark.slow
def test_two_processes_do_what_one_does_with_twice_the_batch(ranks: list[dict[str, Any]]) -> None:
    for name, method in (("whole", TUNED), ("target", TARGET)):
        alone, together = trained(Run(method, batch=16)).seen(), ranks[0][name]
        for part in {"history", "tuner", "controller"} & set(alone["sp"]):
            torch.testing.assert_close(together["sp"][part], alone["sp"][part], rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(together["model"], alone["model"], rtol=1e-6, atol=1e-9)
