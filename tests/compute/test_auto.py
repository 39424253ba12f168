"""The default, "auto": models are left alone until a pass runs sparse, and a resumed run computes as the saved one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autosparse
from autosparse import AutoSparse, kernels
from autosparse.compute import compute, fused_forward, routing, timing, tracing
from autosparse.compute.planner import Sample, Times, Workload

needs_kernels = pytest.mark.skipif(not kernels.available(), reason=f"no native kernels: {kernels.why_not()}")
EPOCHS, STEPS = 3, 4


class Measured:
    """Made-up times: a dense pass takes 1, a sparse one `slope` * density."""

    def __init__(self, slope: float) -> None:
        self.slope = slope
        self.asked: list[Workload] = []

    def __call__(self, workload: Workload, densities: Sequence[float]) -> Times:
        self.asked.append(workload)
        samples = [Sample(round(each * workload.weights), *[self.slope * each] * 3, 0.0) for each in densities]
        return Times(1.0, 1.0, 1.0, 0.0, tuple(samples))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Sparse is faster below a density of 0.4."""
    found = Measured(2.5)
    monkeypatch.setattr(timing, "measure", found)
    return found


class Net(nn.Module):
    """Two convolutions that are large enough to gain, with batch norms, and a linear layer that is too small."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(48, 48, 3, padding=1, bias=False), nn.BatchNorm2d(48), nn.ReLU())
        self.out = nn.Linear(48, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.second(self.first(x)).mean((2, 3)))


def batch(step: int, size: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(size, 3, 16, 16, generator=generator), torch.randint(5, (size,), generator=generator)


class Run:
    """A model in training; its large layer has a density of 0.48 after two steps, and of 0.34 after the first epoch."""

    def __init__(self, model: nn.Module | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = model or Net()
        method = AutoSparse(alpha=0.5, zero_epoch=2, target_sparsity=0.8, target_ramp=1.0)
        self.sp = autosparse.sparsify(self.model, method, epochs=EPOCHS, steps_per_epoch=STEPS, **options)
        self.optimizer = torch.optim.SGD(self.sp.param_groups(), lr=0.05, momentum=0.9)
        self.sp.bind(self.optimizer)
        self.losses: list[float] = []
        self.autocast: torch.dtype | None = None
        self.passes: list[dict[str, list[bool]]] = []

    def train(self, until: int, begin: int = 0) -> None:
        for step in range(begin, until):
            x, y = batch(step)
            with torch.autocast("cpu", self.autocast or torch.bfloat16, enabled=self.autocast is not None):
                loss = nn.functional.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            if (step + 1) % STEPS == 0:
                self.sp.end_epoch(loss)
            self.passes.append(self.sp.state_dict()["compute"]["passes"])

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "sp": self.sp.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sp.load_state_dict(state["sp"])


def overridden(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


def watched(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if routing._note_input in module._forward_pre_hooks.values()]


@needs_kernels
@pytest.mark.parametrize("saved_at", [1, 2, 6, 10])
@pytest.mark.parametrize("options", [{}, {"example_input": torch.zeros(1, 3, 16, 16)}], ids=["recorded", "example"])
def test_a_resumed_run_goes_on_bit_for_bit(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, saved_at: int, options: dict[str, Any]
) -> None:
    whole = Run(**options)
    whole.train(EPOCHS * STEPS)
    assert any(True in each["second.0"] for each in whole.passes if "second.0" in each), "or nothing is shown"
    first = Run(**options)
    first.train(saved_at)
    torch.save(first.state(), tmp_path / "state.pt")
    slow = Measured(100.0)  # this machine is busy now: its own times would keep everything dense
    if measured.asked and saved_at > 2:
        monkeypatch.setattr(timing, "measure", slow)
    second = Run(**options)
    second.load(torch.load(tmp_path / "state.pt", weights_only=True))
    second.train(EPOCHS * STEPS, saved_at)
    assert first.losses + second.losses == whole.losses
    assert first.passes + second.passes == whole.passes
    for name, value in whole.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], value), name
    if first.sp.state_dict()["compute"]["planner"]["times"]:
        assert slow.asked == [], "the samples came with the state"


@needs_kernels
def test_other_threads_are_measured_anew(measured: Measured, tmp_path: Path) -> None:
    first = Run()
    first.train(10)
    state = first.state()
    state["sp"]["compute"]["threads"] += 1
    assert True in state["sp"]["compute"]["passes"]["second.0"]
    second = Run()
    second.load(state)
    before = len(measured.asked)
    assert second.sp.state_dict()["compute"]["passes"] == {}
    second.train(EPOCHS * STEPS, 10)
    assert len(measured.asked) == before + 1
    assert True in second.sp.state_dict()["compute"]["passes"]["second.0"]


@needs_kernels
@pytest.mark.parametrize("missing", ["compute", "first_plan_is_due"])
def test_an_older_state_is_taken(measured: Measured, missing: str) -> None:
    first = Run()
    first.train(6)
    state = first.state()
    del (state["sp"] if missing == "compute" else state["sp"]["compute"])[missing]
    second = Run()
    second.load(state)
    second.train(EPOCHS * STEPS, 6)
    assert True in second.sp.state_dict()["compute"]["passes"]["second.0"]


@needs_kernels
def test_a_model_is_left_alone_until_a_pass_runs_sparse(measured: Measured) -> None:
    run = Run()
    assert overridden(run.model) == []
    assert watched(run.model) == ["first.0", "second.0", "out"]
    assert "large enough to gain" in str(run.sp.report())
    run.train(1)
    assert watched(run.model) == [], "for one step"
    assert overridden(run.model) == [], "dense is faster still"
    assert "dense measured faster" in str(run.sp.report())
    run.train(EPOCHS * STEPS, 1)
    assert overridden(run.model) == ["", "second.0"], "the first layer and the last are too small"
    assert [each.conv.in_channels for each in measured.asked] == [48]
    assert "3 of 9 passes of 3 layers skip the zeros" in str(run.sp.report())
    assert "2 batch norms are fused" in str(run.sp.report())
    twin = copy.deepcopy(run.model)
    assert torch.equal(twin(batch(0)[0]), run.model(batch(0)[0]))
    assert overridden(run.sp.finalize()) == []


@needs_kernels
def test_where_nothing_gains_the_run_is_the_dense_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "measure", Measured(100.0))
    auto, dense = Run(), Run()
    dense.sp.compute("dense")
    auto.train(EPOCHS * STEPS)
    dense.train(EPOCHS * STEPS)
    assert auto.losses == dense.losses
    assert overridden(auto.model) == []
    assert "dense measured faster" in str(auto.sp.report())


@needs_kernels
def test_deterministic_algorithms_keep_it_dense(measured: Measured) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        run = Run()
        run.train(EPOCHS * STEPS)
        assert "use_deterministic_algorithms is on" in str(run.sp.report())
    finally:
        torch.use_deterministic_algorithms(False)
    assert measured.asked == []
    assert overridden(run.model) == []


@needs_kernels
def test_autocast_in_float16_keeps_it_dense(measured: Measured) -> None:
    run = Run()
    run.autocast = torch.float16  # a second per step
    run.train(STEPS + 2)  # in float32 they are measured after the second
    assert measured.asked == []
    assert run.sp.report().compute.startswith(compute.COUNTED)


@needs_kernels
def test_the_largest_training_batch_counts(measured: Measured) -> None:
    run = Run()
    run.train(EPOCHS * STEPS - 1)
    assert fused_forward.count_fused(run.model)
    (run.model(batch(0, size=2)[0]).sum() * 0).backward()
    with torch.no_grad():
        run.model.eval()(batch(0, size=40)[0])
    run.model.train()
    run.train(EPOCHS * STEPS, EPOCHS * STEPS - 1)
    assert {each.conv.images for each in measured.asked} == {5}


@needs_kernels
def test_sequences_of_about_one_length_are_one_workload() -> None:
    sp = autosparse.sparsify(nn.Sequential(nn.Linear(8, 8)), AutoSparse(), epochs=1, steps_per_epoch=1)
    rows = [
        routing.workload_of(sp.layers[0], torch.Size(shape)).conv.in_size[1]
        for shape in ([30, 33, 8], [1100, 8], [8], [1, 0, 8])
    ]
    assert rows == [1024, 1024, 1, 1]


def test_a_run_without_kernels_is_dense_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "available", lambda: False)
    monkeypatch.setattr(kernels, "why_not", lambda: "no library was built")
    run = Run()
    run.train(3)
    assert overridden(run.model) == []
    assert run.sp.report().compute == f"{compute.COUNTED} (no library was built)"


@needs_kernels
def test_layers_may_be_called_by_keyword(measured: Measured) -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    sp = autosparse.sparsify(model, AutoSparse(start_sparsity=0.5), epochs=1, steps_per_epoch=1)
    x = torch.randn(3, 8)
    dense = model[0](input=x)
    sp.compute("sparse")
    torch.testing.assert_close(model[0](input=x), dense)


@needs_kernels
def test_depthwise_convolutions_are_not_watched_and_fuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that stayed on one would keep it from being fused with its batch norm."""
    monkeypatch.setattr(timing, "measure", Measured(0.01))
    depthwise = nn.Conv2d(48, 48, 3, padding=1, groups=48, bias=False)
    last = nn.Sequential(nn.Conv2d(48, 48, 3, padding=1, bias=False), nn.BatchNorm2d(48), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    first = nn.Sequential(nn.Conv2d(3, 48, 3, padding=1, bias=False), nn.BatchNorm2d(48), nn.ReLU())
    model = nn.Sequential(*first, depthwise, nn.BatchNorm2d(48), nn.ReLU(), *last, nn.Flatten(), nn.Linear(48, 5))
    run = Run(model)
    assert watched(model) == ["0", "6", "11"]
    run.train(EPOCHS * STEPS)
    assert watched(model) == []
    assert fused_forward.count_fused(model) == 3


@needs_kernels
def test_a_model_is_traced_once_per_plan(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[nn.Module] = []

    def counting(root: nn.Module, trace: Any = tracing.trace) -> Any:
        traced.append(root)
        return trace(root)

    monkeypatch.setattr(tracing, "trace", counting)
    run = Run()
    run.train(EPOCHS * STEPS)
    plans = [plan for plan, before in zip(run.passes, [{}, *run.passes], strict=False) if plan != before]
    assert plans
    assert len(traced) == 1 + len(plans), "the first plan is made before anything is fused"
    for _ in range(3):
        run.sp._compute.plan(run.sp.layers, run.sp.densities, run.model)
        run.model(batch(0)[0])
    assert len(traced) == 1 + len(plans), "a plan that changes nothing keeps its trace"


@needs_kernels
def test_a_run_of_one_epoch_uses_the_kernels_as_soon_as_they_pay(measured: Measured) -> None:
    torch.manual_seed(0)
    model = Net()
    sp = autosparse.sparsify(model, AutoSparse(target_sparsity=0.8, target_ramp=0.5), epochs=1, steps_per_epoch=16)
    optimizer = torch.optim.SGD(sp.param_groups(), lr=0.05)
    sp.bind(optimizer)
    passes = []
    for step in range(16):
        x, y = batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        passes.append(sp.state_dict()["compute"]["passes"].get("second.0"))
    assert passes[0] is None, "too dense at first"
    assert [True, True, False] in passes, "pruned weights receive gradients in the ramp"
    assert passes[8:] == [[True, True, True]] * 8, "from its end on they do not, and the plan knows it at once"
    assert len(measured.asked) == 1


@needs_kernels
@pytest.mark.usefixtures("measured")
def test_a_net_that_is_already_sparse_is_on_the_kernels_after_its_first_step() -> None:
    torch.manual_seed(0)
    model = Net()
    weight = model.second[0].weight.data
    weight *= torch.rand(weight.shape) < 0.1
    sp = autosparse.sparsify(model, autosparse.Keep(), epochs=1, steps_per_epoch=2)
    optimizer = torch.optim.SGD(sp.param_groups(), lr=0.05)
    sp.bind(optimizer)
    x, y = batch(0)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert sp.state_dict()["compute"]["passes"]["second.0"] == [True, True, True]


@needs_kernels
def test_times_are_kept_from_the_moment_they_are_taken(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "times.json"
    first = Run()
    first.sp.keep_times(file)
    first.train(1)
    assert file.exists() == bool(measured.asked)
    first.train(EPOCHS * STEPS, 1)
    assert file.exists()
    slow = Measured(100.0)  # this machine is busy now
    monkeypatch.setattr(timing, "measure", slow)
    again = Run()  # killed before anything was saved
    again.sp.keep_times(file)
    again.train(EPOCHS * STEPS)
    assert again.passes == first.passes
    assert again.losses == first.losses
    assert slow.asked == []
    file.write_text("{}")
    other = Run()
    with pytest.warns(autosparse.SparsityWarning, match="measured again"):
        other.sp.keep_times(file)
    other.train(EPOCHS * STEPS)
    assert slow.asked
