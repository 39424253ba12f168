"""Fusing by proof: the first fused step is compared with torch's own and leaves no trace; what differs is not fused."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import autosparse
from autosparse import AutoSparse, kernels
from autosparse.common.warnings import SparsityWarning
from autosparse.compute import fused_forward, fused_layers, planner, proof, timing
from autosparse.compute.planner import Sample, Times, Workload
from autosparse.compute.rehearsal import results_of

from ..states import differences
from .test_fused_models import Net, Residual

pytestmark = [
    pytest.mark.skipif(not kernels.available(), reason=f"no native kernels: {kernels.why_not()}"),
    pytest.mark.filterwarnings("error::autosparse.common.warnings.SparsityWarning"),
]
NORMS = 8  # of Net


@pytest.fixture(autouse=True)
def everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up times, by which every layer runs sparse under "auto"."""

    def measure(workload: Workload, densities: Sequence[float]) -> Times:
        samples = [Sample(round(each * workload.weights), *[0.1 * each] * 3, 0.0) for each in densities]
        return Times(1.0, 1.0, 1.0, 0.0, tuple(samples))

    monkeypatch.setattr(timing, "measure", measure)
    monkeypatch.setattr(planner, "LEAST_WORK", 0)
    if kernels.instruction_set() == "portable":
        pytest.skip("nothing is fused without vector instructions")


class Run:
    """A model in training under "auto": planned after its first step, fused from the second on."""

    def __init__(self, model: nn.Module, mode: str = "auto") -> None:
        self.model, self.step_number = model, 0
        method = AutoSparse(alpha=0.0, schedule="constant", start_sparsity=0.7)
        self.sp = autosparse.sparsify(model, method, epochs=2, steps_per_epoch=10)
        self.sp.compute(mode)
        self.optimizer = torch.optim.SGD(self.sp.param_groups(weight_decay=1e-4), lr=0.01, momentum=0.9)
        self.sp.bind(self.optimizer)

    def backward(self) -> float:
        generator = torch.Generator().manual_seed(self.step_number)
        x, y = torch.randn(6, 3, 12, 12, generator=generator), torch.randint(5, (6,), generator=generator)
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            losses.append(self.backward())
            self.optimizer.step()
            self.step_number += 1
        return losses

    def fused(self) -> int:
        return fused_forward.count_fused(self.model)

    def verdicts(self) -> dict[str, Any]:
        fusing: dict[str, Any] = self.sp.state_dict()["compute"]["fusing"]
        return fusing

    def state(self) -> dict[str, Any]:
        parts = {"model": self.model.state_dict(), "sp": self.sp.state_dict(), "optimizer": self.optimizer.state_dict()}
        return copy.deepcopy(parts)

    def load(self, state: dict[str, Any], step_number: int) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sp.load_state_dict(state["sp"])
        self.step_number = step_number


def start(kind: Callable[[], nn.Module], mode: str = "auto") -> Run:
    torch.manual_seed(0)
    return Run(kind(), mode)


def assert_trains_like_torch(kind: Callable[[], nn.Module], fused: int, steps: int = 3) -> Run:
    """The same losses, gradients and buffers as without kernels, with so many batch norms fused."""
    run, dense = start(kind), start(kind, "dense")
    assert run.train(steps) == pytest.approx(dense.train(steps), rel=1e-4)
    assert run.backward() == pytest.approx(dense.backward(), rel=1e-4)
    assert run.fused() == fused
    for (name, own), other in zip(dense.model.named_parameters(), run.model.parameters(), strict=True):
        assert (own.grad is None) == (other.grad is None), name
        assert own.grad is None or torch.allclose(own.grad, other.grad, rtol=0.02, atol=1e-4), name
    for (name, buffer), other in zip(dense.model.named_buffers(), run.model.buffers(), strict=True):
        assert torch.allclose(buffer, other, rtol=1e-3, atol=1e-4), name
    return run


# -------------------------------------------------------------------------------------------------------- ordinary models


class Drawing(nn.Module):
    """A layer that draws from all generators."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 0.1 * random.random() + 0.1 * float(np.random.rand()))


class Dropout(Net):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Sequential(Drawing(), nn.Dropout(0.5), nn.Linear(20, 5))  # type: ignore[assignment]


def test_an_ordinary_model_stays_fused() -> None:
    run = assert_trains_like_torch(Net, NORMS)
    assert len(run.verdicts()["compared"][""]) == NORMS
    assert run.verdicts()["refused"] == run.verdicts()["given_up"] == []


class Pairs(Net):
    """Takes whole batches of 70 images alone."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).reshape(70, 5)


@pytest.mark.parametrize(("kind", "images"), [(Net, None), (Pairs, 70)])
def test_few_images_are_enough_for_the_comparison(
    kind: type[nn.Module], images: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []

    def noted(root: nn.Module, forward: Any, arguments: Sequence[Tensor], *rest: Any) -> Any:
        given.append(len(arguments[0]))
        return results_of(root, forward, arguments, *rest)

    monkeypatch.setattr(proof, "results_of", noted)
    run = start(kind)
    run.train(1) if images is None else run.model(torch.randn(70, 3, 12, 12)).sum().backward()
    run.optimizer.step()
    run.model(torch.randn(70, 3, 12, 12))
    assert run.fused() == NORMS
    assert given[-1] == (images or kernels.lanes() + 70 % kernels.lanes())


def test_gradients_of_single_numbers_are_compared_together() -> None:
    """In one of them nearly all cancels, so that rounding is large beside it."""
    net = nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 2))
    found = results_of(net, lambda root, x: root(x), [torch.randn(4, 3)])
    assert [None if each is None else tuple(each.shape) for each in found.gradients] == [(1, 3), (2, 1), (2,), (1,)]


def random_states() -> list[Any]:
    numpy_state = np.random.get_state(legacy=True)
    return [torch.get_rng_state(), list(random.getstate()[1]), numpy_state[1].tolist(), numpy_state[2]]  # type: ignore[index]


def seed_all() -> None:
    torch.manual_seed(3), random.seed(3), np.random.seed(3)


@pytest.mark.parametrize("kind", [Net, Dropout])
def test_the_comparison_leaves_one_ordinary_step(kind: type[nn.Module]) -> None:
    """Beside a run that is told the verdict: random numbers, statistics and gradients are equal to the bit."""
    comparing = start(kind)
    seed_all()
    comparing.train(1)
    told, state = start(kind), comparing.state()
    told.load(state, 1)
    told.sp._compute._proofs.accept("", [name for name, _ in told.model.named_modules()])
    outcomes = []
    for run in (comparing, told):
        seed_all()
        before = run.verdicts()["compared"]
        loss = run.backward()
        gradients = {name: each.grad for name, each in run.model.named_parameters()}
        outcomes.append([loss, gradients, dict(run.model.named_buffers()), random_states()])
        assert (run.verdicts()["compared"] != before) == (run is comparing)
        assert run.fused() == NORMS
    assert differences(*outcomes) == []


def test_hooks_run_once_per_step() -> None:
    run, seen = start(Net), []
    run.train(1)
    run.model.blocks.register_forward_hook(lambda *_: seen.append("forward"))  # type: ignore[union-attr]
    run.model.fc.register_full_backward_hook(lambda *_: seen.append("backward"))  # type: ignore[union-attr]
    run.model.fc.bias.register_hook(lambda _: seen.append("tensor"))  # type: ignore[union-attr]
    run.train(1)
    assert run.fused() > 0
    assert sorted(seen) == ["backward", "forward", "tensor"]


def test_evaluation_and_no_grad_wait_for_a_step_that_can_be_compared() -> None:
    run = start(Net)
    run.train(1)
    with torch.no_grad():
        run.model(torch.zeros(2, 3, 12, 12))
    assert run.verdicts()["compared"] == {}
    run.train(1)
    assert run.fused() == NORMS


def test_results_that_are_not_finite_are_compared_later(monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(Net)
    run.train(1)
    run.model(torch.full((2, 3, 12, 12), torch.nan))
    assert run.verdicts() == {"compared": {}, "refused": [], "given_up": []}
    for norm in (each for each in run.model.modules() if isinstance(each, nn.BatchNorm2d)):
        norm.reset_running_stats()
    run.train(1)
    assert run.fused() == NORMS


class Checkpointed(Net):
    """Its blocks save no activations: torch counts what they save, in the first pass and in the second."""

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.blocks, self.stem(x), use_reentrant=False) if x.mean() < 1e9 else x
        found: Tensor = self.fc(self.depthwise(y).mean((2, 3)))  # type: ignore[arg-type]
        return found


def test_activation_checkpoints() -> None:
    assert_trains_like_torch(Checkpointed, NORMS)


def test_a_model_that_is_recorded_runs_layer_by_layer() -> None:
    """Fused steps hide their operations, from torch's counter of FLOPs for one."""
    run = start(Net)
    run.train(1)
    with FlopCounterMode(display=False) as counter:
        run.model(torch.randn(2, 3, 12, 12))
    assert counter.get_total_flops() > 0
    assert run.verdicts() == {"compared": {}, "refused": [], "given_up": []}


def test_weights_that_are_cached_over_a_step() -> None:
    run, twin = start(Net), start(Net)
    run.train(1), twin.train(1)
    with nn.utils.parametrize.cached():
        run.backward()
    twin.backward()
    for (name, one), other in zip(run.model.named_parameters(), twin.model.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name


# ------------------------------------------------------------------------------------ models that break the assumptions


class DoublingConv(nn.Conv2d):
    """Looks like torch's own, and is not: forward is inherited."""

    def _conv_forward(self, *arguments: Any) -> Tensor:
        return 2 * super()._conv_forward(*arguments)


class Halving(nn.BatchNorm2d):
    def __call__(self, x: Tensor) -> Tensor:
        found: Tensor = super().__call__(x) / 2
        return found


class FixedGain(nn.BatchNorm2d):
    @property
    def eps(self) -> float:
        return 0.5

    @eps.setter
    def eps(self, value: float) -> None:
        pass


class Capped(nn.ReLU):
    def __call__(self, x: Tensor) -> Tensor:
        found: Tensor = super().__call__(x).clamp(max=1)
        return found


def with_stem(index: int, module: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        net = Net()
        net.stem[index] = module()
        return net

    return make


STRANGE: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "convolution": (with_stem(0, lambda: DoublingConv(3, 12, 3, padding=1, bias=False)), NORMS - 1),
    "batch norm": (with_stem(1, lambda: Halving(12)), NORMS - 1),
    "property": (with_stem(1, lambda: FixedGain(12)), NORMS - 1),
    "activation": (with_stem(2, Capped), NORMS - 1),
}


@pytest.mark.parametrize("name", STRANGE)
def test_subclasses_with_other_semantics(name: str) -> None:
    run = assert_trains_like_torch(*STRANGE[name])
    assert run.verdicts()["refused"] == run.verdicts()["given_up"] == [], "nobody had to try"


def test_a_subclass_that_changes_nothing_is_fused() -> None:
    class Renamed(nn.Conv2d):
        """Only made in another way."""

        def __init__(self) -> None:
            super().__init__(3, 12, 3, padding=1, bias=False)

        def reset_parameters(self) -> None:
            nn.init.normal_(self.weight, std=0.1)

    assert_trains_like_torch(with_stem(0, Renamed), NORMS)


class Tied(Net):
    """One batch norm for two convolutions: its statistics follow the order of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Conv2d(12, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.stem[1](self.stem[0](x)))
        y = self.stem[1](self.second(y)) + y
        found: Tensor = self.fc(self.depthwise(self.blocks(F.relu(y))).mean((2, 3)))
        return found


class Resetting(Net):
    """Writes into the buffers of its batch norm between the convolution and the norm."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem[0](x)
        self.stem[1].running_mean.mul_(0.5)
        found: Tensor = self.fc(self.depthwise(self.blocks(F.relu(self.stem[1](y)))).mean((2, 3)))
        return found


class Double(Net):
    """Part of it computes in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12)).double()

    def forward(self, x: Tensor) -> Tensor:
        y = self.wide(self.stem(x).double()).float()
        found: Tensor = self.fc(self.depthwise(self.blocks(y)).mean((2, 3)))
        return found


class WritesLater(Net):
    """Writes into what a batch norm has given, while others read it."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem[1](self.stem[0](x))
        z = y * 2
        y.mul_(0.5)
        found: Tensor = self.fc(self.depthwise(self.blocks(F.relu(y + z))).mean((2, 3)))
        return found


@pytest.mark.parametrize(("kind", "fused"), [(Tied, NORMS - 1), (Resetting, NORMS - 1), (Double, NORMS), (WritesLater, NORMS)])
def test_shared_modules_buffers_types_and_writes(kind: type[nn.Module], fused: int) -> None:
    run = assert_trains_like_torch(kind, fused)
    assert run.verdicts()["refused"] == run.verdicts()["given_up"] == [], "nobody had to try"


CALLS = {"count": 0}


class Counting(Net):
    """Depends on what no trace shows, and on nothing that could be set back."""

    def forward(self, x: Tensor) -> Tensor:
        CALLS["count"] += 1
        return super().forward(x) * (1 + CALLS["count"] % 2)


def test_a_forward_that_no_trace_can_tell_is_given_up_and_its_parts_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(Counting)
    run.train(1)
    with pytest.warns(SparsityWarning, match="the fused steps of the model together differ from its own forward"):
        run.train(1)
    assert run.verdicts()["given_up"] == [""]
    assert run.fused() == NORMS
    assert "not fused as a whole: the model" in str(run.sp.report())
    again = start(Counting)
    again.load(run.state(), 2)
    again.train(1)
    assert again.fused() == NORMS
    assert again.verdicts() == run.verdicts()


# ---------------------------------------------------------------------------------------------- steps that are wrong


def break_conv_norm(monkeypatch: pytest.MonkeyPatch, damage: Callable[[nn.BatchNorm2d, Any], Any]) -> None:
    """The fused step of batch norms with 12 channels goes wrong."""
    right = fused_layers.conv_norm

    def conv_norm(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Any) -> Any:
        return damage(norm, right(conv, norm, x)) if norm.num_features == 12 else right(conv, norm, x)

    monkeypatch.setattr(fused_layers, "conv_norm", conv_norm)


class Scaled(torch.autograd.Function):
    """The same values with gradients that are 5 % too large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 1.05 * grad


def wrong_value(norm: nn.BatchNorm2d, value: Any) -> Any:
    return value._replace(folded=value.folded * 1.01)


def wrong_gradient(norm: nn.BatchNorm2d, value: Any) -> Any:
    return value._replace(raw=Scaled.apply(value.raw), folded=Scaled.apply(value.folded))  # type: ignore[no-untyped-call]


def wrong_statistics(norm: nn.BatchNorm2d, value: Any) -> Any:
    assert norm.running_mean is not None
    norm.running_mean.add_(0.01)
    return value


def failure(norm: nn.BatchNorm2d, value: Any) -> Any:
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize("damage", [wrong_value, wrong_gradient, wrong_statistics, failure])
def test_a_wrong_step_is_refused_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: Callable[[nn.BatchNorm2d, Any], Any]
) -> None:
    break_conv_norm(monkeypatch, damage)
    run, dense = start(Net), start(Net, "dense")
    losses = run.train(1)
    with pytest.warns(SparsityWarning, match=r"fused steps differ from torch's own at stem\.1: these layers run one by one"):
        losses += run.train(1)
    losses += run.train(1)
    assert losses == pytest.approx(dense.train(3), rel=1e-4)
    assert run.fused() == NORMS - 1
    assert run.verdicts()["refused"] == ["stem.1"]
    assert "not fused, since the results differ from torch's own: stem.1" in str(run.sp.report())
    torch.save(run.state(), tmp_path / "state.pt")
    resumed = start(Net)
    resumed.load(torch.load(tmp_path / "state.pt", weights_only=True), 3)
    assert resumed.train(2) == run.train(2), "and it does not warn again"
    assert differences(resumed.state(), run.state()) == []
    assert resumed.fused() == NORMS - 1


def test_a_resumed_run_does_not_compare_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = start(Net)
    whole.train(3)
    state = whole.state()
    losses = whole.train(2)

    def refuse(*_: Any) -> None:
        raise AssertionError("compared again")

    monkeypatch.setattr(fused_forward, "compare", refuse)
    resumed = start(Net)
    resumed.load(state, 3)
    assert resumed.train(2) == losses
    assert differences(resumed.state(), whole.state()) == []
    twin = copy.deepcopy((resumed.model, resumed.sp))[0]
    twin(torch.zeros(2, 3, 12, 12))
    assert fused_forward.count_fused(twin) == NORMS


def test_loading_into_a_run_takes_the_verdicts_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(Net)
    run.train(2)
    state = run.state()
    assert run.fused() == NORMS
    state["sp"]["compute"]["fusing"]["refused"] = ["stem.1"]
    run.load(state, 2)
    run.train(1)
    assert run.fused() == NORMS - 1


def test_a_state_without_verdicts_is_taken_and_compared() -> None:
    run = start(Net)
    run.train(2)
    state = run.state()
    del state["sp"]["compute"]["fusing"]
    resumed = start(Net)
    resumed.load(state, 2)
    assert resumed.verdicts()["compared"] == {}
    assert resumed.train(2) == run.train(2)
    assert resumed.verdicts() == run.verdicts()


def test_a_damaged_verdict_is_refused() -> None:
    run = start(Net)
    state = run.state()
    state["sp"]["compute"]["fusing"] = {"compared": 3}
    with pytest.raises(ValueError, match="its compute cannot be loaded"):
        run.load(state, 0)


# ------------------------------------------------------------------------------------- batch norms with an activation


class BatchNormAct2d(nn.BatchNorm2d):
    """A batch norm that applies an activation, as timm has it."""

    __module__ = "timm.layers.norm_act"

    def __init__(self, channels: int, activation: nn.Module) -> None:
        super().__init__(channels)
        self.drop = nn.Identity()
        self.act = activation

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.act(self.drop(super().forward(x)))
        return found


class Shifted(BatchNormAct2d):
    """As the one above by name, and not by what it computes."""

    __module__ = "timm.layers.norm_act"
    __qualname__ = "BatchNormAct2d"

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


Shifted.__name__ = "BatchNormAct2d"


class Activating(nn.Module):
    """A residual block of such batch norms."""

    def __init__(self, norm: Callable[[int, nn.Module], nn.Module], activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 12, 3, padding=1, bias=False), norm(12, activation())
        self.conv2, self.bn2 = nn.Conv2d(12, 12, 3, padding=1, bias=False), norm(12, nn.Identity())
        self.conv3, self.bn3 = nn.Conv2d(12, 12, 3, padding=1, bias=False), norm(12, activation())
        self.rest, self.fc = Residual(12, 20), nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x))
        y = torch.relu(self.bn2(self.conv2(y)) + y)
        found: Tensor = self.fc(self.rest(self.bn3(self.conv3(y))).mean((2, 3)))
        return found


@pytest.mark.parametrize("activation", [lambda: nn.ReLU(inplace=True), lambda: nn.SiLU(inplace=True), nn.Identity])
def test_a_batch_norm_with_an_activation_is_fused(activation: Callable[[], nn.Module]) -> None:
    assert_trains_like_torch(lambda: Activating(BatchNormAct2d, activation), 6)


def test_one_that_does_something_else_is_not() -> None:
    run = assert_trains_like_torch(lambda: Activating(Shifted, nn.ReLU), 3)
    assert run.verdicts()["refused"] == [], "an example shows it before anything is fused"
