"""torch.compile of whole sparsified models: no graph breaks, no recompiles, the eager run's numbers."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from autosparse import STR, AutoSparse
from autosparse.methods.families.base import Method
from autosparse.models import small_transformer

from .training import Run, batch, begin, conv_net, make_optimizer, mlp

IMAGE = (1, 8, 8)
ANNEALED = AutoSparse(alpha=0.9, schedule="linear", zero_epoch="never", dense_grad_every=2, start_sparsity=0.4)
METHODS: dict[str, Method] = {
    "annealed": ANNEALED,
    "target, channels, backward sparsity": AutoSparse(
        alpha=0.5, threshold="channel", target_sparsity=0.7, backward_sparsity=0.2
    ),
    "shared": STR(threshold="shared", start_sparsity=0.5),
}


def transformer() -> nn.Module:
    return small_transformer(classes=3, image_size=8, rows=2, size=8, blocks=1, heads=2, feed_forward=16)


def compiled_twin(run: Run, backend: object, threshold_decay: float | None = None) -> Run:
    """The same run from the same start, through torch.compile."""
    model, sp = copy.deepcopy((run.model, run.sp))
    opt = make_optimizer("sgd", sp.param_groups(weight_decay=1e-2, threshold_decay=threshold_decay))
    sp.bind(opt)
    return Run(model, sp, opt, run.shape, forward=torch.compile(model, fullgraph=True, backend=backend))


def assert_close(left: nn.Module, right: nn.Module, tolerance: float) -> None:
    for name, value in left.state_dict().items():
        torch.testing.assert_close(right.state_dict()[name], value, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("build", "shape"), [(conv_net, IMAGE), (mlp, (10,))], ids=["conv net", "mlp"])
def test_a_hundred_alphas_without_a_recompile(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    run = begin(build(), ANNEALED, shape, epochs=100, steps=2)
    backend = CompileCounterWithBackend("aot_eager")
    twin = compiled_twin(run, backend)
    alphas, gates = set(), set()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(100):
            twin.advance(1)
            gates.add(twin.sp.layers[0].parametrization.gate.item())
            twin.advance(1)
            alphas.add(twin.sp.alpha)
    assert backend.frame_count == 1
    assert len(alphas) == 100
    assert gates == {0.0}  # between the dense gradients of dense_grad_every
    run.advance(200)
    assert twin.sp.sparsity() == pytest.approx(run.sp.sparsity(), abs=1e-3)
    assert_close(run.model, twin.model, 1e-4)


@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_compiled_training_equals_eager_training(method: Method) -> None:
    run = begin(conv_net(), method, IMAGE)
    twin = compiled_twin(run, "aot_eager")
    run.advance(10)
    twin.advance(10)
    assert_close(run.model, twin.model, 1e-5)
    assert twin.sp.sparsity() == pytest.approx(run.sp.sparsity(), abs=1e-3)
    inputs, _ = batch(0, IMAGE)
    expected = run.model(inputs)
    torch.testing.assert_close(run.sp.finalize()(inputs), expected, rtol=0, atol=1e-6)


def test_a_compiled_transformer_block_trains() -> None:
    run = begin(transformer(), ANNEALED, IMAGE)
    twin = compiled_twin(run, "aot_eager")
    run.advance(5)
    twin.advance(5)
    assert_close(run.model, twin.model, 1e-5)


def test_a_guard_that_holds_a_layer_does_not_recompile() -> None:
    """The guard changes thresholds and gates of single layers: values, not code."""
    run = begin(mlp(), AutoSparse(alpha=0.5, start_sparsity=0.6), density_floor=0.3, guard_every=1)
    twin = compiled_twin(run, "aot_eager", threshold_decay=3.0)
    with torch._dynamo.config.patch(error_on_recompile=True):
        twin.advance(10)
    assert twin.sp.events


def test_train_and_eval_are_one_compilation_each() -> None:
    # with an example input nothing waits for an eager pass, whose end would be one more change of code
    run = begin(conv_net(), ANNEALED, IMAGE, example_input=torch.randn(1, *IMAGE))
    backend = CompileCounterWithBackend("aot_eager")
    twin = compiled_twin(run, backend)
    inputs, _ = batch(0, IMAGE)
    for _ in range(2):
        twin.advance(5)
        assert twin.forward is not None
        twin.forward.eval()
        with torch.no_grad():
            output = twin.forward(inputs)
            torch.testing.assert_close(output, twin.model(inputs), rtol=0, atol=1e-6)
        twin.forward.train()
    assert backend.frame_count == 2


def test_compiled_in_place_after_sparsify() -> None:
    run = begin(transformer(), ANNEALED, IMAGE)
    run.model.compile(fullgraph=True, backend="aot_eager")
    run.advance(5)
    inputs, _ = batch(0, IMAGE)
    expected = run.model(inputs)
    torch.testing.assert_close(run.sp.finalize()(inputs), expected, rtol=0, atol=1e-6)


def test_macs_of_a_compiled_model_come_from_the_example_input() -> None:
    run = begin(conv_net(), ANNEALED, IMAGE, example_input=torch.randn(1, *IMAGE))
    twin = compiled_twin(run, "aot_eager")
    twin.advance(5)
    report = twin.sp.report()
    assert [layer.macs for layer in report.layers] == [36 * 6 * 9, 16 * 8 * 54, 128 * 3]
    assert 0 < twin.sp.cost.train_fraction < 1


@pytest.mark.skipif(not shutil.which("g++") and not shutil.which("clang++"), reason="inductor needs a C++ compiler")
def test_inductor_gives_the_eager_runs_numbers() -> None:
    run = begin(mlp(), AutoSparse(alpha=0.5, threshold="channel", backward_sparsity=0.2, start_sparsity=0.4))
    twin = compiled_twin(run, "inductor")
    run.advance(5)
    with torch._dynamo.config.patch(error_on_recompile=True):
        twin.advance(5)
    assert_close(run.model, twin.model, 1e-5)
