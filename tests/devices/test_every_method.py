"""Every method on a device that refuses CPU tensors: it trains, updates masks, saves, resumes and finalizes there."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass, field

import pytest
import torch

import autosparse
from autosparse import ACDC, GradMax
from autosparse.methods import Budgeted
from autosparse.methods.target import TargetController

from ..every_method.running import Run, active, begin, make_net
from ..every_method.settings import QUICK, TOTAL
from ..states import differences
from .pretend import DEVICE, READS, PretendTensor

NAMES = autosparse.list_methods()
every_method = pytest.mark.parametrize("name", NAMES)
CUT = 13  # in the middle of an epoch, and of a round


@dataclass
class Watched:
    """A run on the device: for every step the loss, what the host read, and whether masks were updated."""

    run: Run
    losses: list[float] = field(default_factory=list)
    reads: list[list[str]] = field(default_factory=list)
    updates: list[bool] = field(default_factory=list)
    saved: io.BytesIO = field(default_factory=io.BytesIO)

    def advance(self, until: int) -> None:
        while self.run.done < until:
            self.run.begin_round()
            before = is_due(self.run, "before")
            with READS.watch() as reads:
                loss = self.run.backward()
                self.run.opt.step()
            self.losses.append(loss)
            self.reads.append(reads[1:])  # the first is the loop's own, of the loss
            self.updates.append(before or is_due(self.run, "after"))
            self.run.finish_step(loss)


def is_due(run: Run, when: str) -> bool:
    """Whether the method updates its masks here, before or after a step is counted."""
    method, controller = run.sp.method, run.sp.parts.get("controller")
    if isinstance(controller, TargetController):
        return when == "after" and controller.due(run.sp.step)
    return isinstance(method, Budgeted | ACDC | GradMax) and getattr(method, "when", "after") == when and method.due(run.sp)


def start(name: str, seed: int = 0) -> Watched:
    run = begin(name, "conv", "sgd", seed=seed, device=DEVICE)
    if seed == 0:
        run.score()
    return Watched(run)


@functools.cache
def whole_run(name: str) -> Watched:
    """Shared by the tests of a process, which leave it as it is."""
    watched = start(name)
    watched.advance(CUT)
    torch.save(watched.run.state(), watched.saved)
    watched.advance(TOTAL)
    return watched


@every_method
def test_trains_as_on_the_cpu(name: str) -> None:
    """The same losses within rounding (there the kernels run), the same number of active weights at the end."""
    here, cpu = whole_run(name), begin(name, "conv", "sgd")
    cpu.score()
    losses = cpu.advance(TOTAL)
    assert here.losses[:8] == pytest.approx(losses[:8], rel=1e-3)
    assert here.losses[-1] == pytest.approx(losses[-1], rel=0.2)
    assert here.run.sp.sparsity() == pytest.approx(cpu.sp.sparsity(), abs=0.01)
    assert sum(here.losses[-4:]) < 0.95 * sum(here.losses[:4])


@every_method
def test_the_host_reads_once_per_step_at_most(name: str) -> None:
    """And so never once per layer; only an update of the masks may wait more often, and most steps have none that does."""
    watched = whole_run(name)
    busy = [updates for reads, updates in zip(watched.reads, watched.updates, strict=True) if len(reads) > 1]
    assert all(busy)
    steered = "controller" in watched.run.sp.parts  # 80 times per run, and so at every step of this one
    assert steered or len(busy) <= TOTAL / 4


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES])
def test_a_saved_run_goes_on_exactly(name: str) -> None:
    unbroken, resumed = whole_run(name), start(name, seed=1000)
    unbroken.saved.seek(0)
    resumed.run.load(torch.load(unbroken.saved, weights_only=True))
    resumed.advance(TOTAL)
    assert resumed.losses == unbroken.losses[CUT:]
    assert differences(resumed.run.state(), unbroken.run.state()) == []


@every_method
def test_finalizes_on_the_device(name: str) -> None:
    run = whole_run(name).run.copy("sgd")
    kept = [active(layer).cpu() for layer in run.sp.layers]
    run.sp.report()
    model = run.sp.finalize()
    assert list(model.state_dict()) == list(make_net("conv").state_dict())
    assert all(isinstance(tensor, PretendTensor) for tensor in model.state_dict().values())
    weights = [layer.stored.detach().cpu() for layer in run.sp.layers]
    assert not any(weight[~mask].any() for weight, mask in zip(weights, kept, strict=True))
    plain = make_net("conv")
    plain.load_state_dict({key: tensor.cpu() for key, tensor in model.state_dict().items()})
    images = run.data(0)[0]
    assert torch.equal(plain.eval()(images.cpu()), model.eval()(images).cpu())
