"""What `deploy` is told about precision: calibration batches, checked against the example, and ranges observed on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from autosparse.quantization.ranges import Observer, RangeKind
from autosparse.serving.example import Example

Precision = Literal["float32", "bfloat16", "int8", "auto"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
MAX_BATCHES = 512
MAX_SAMPLES = 4096  # tokens that a linear layer's error is measured on


@dataclass(frozen=True)
class Quantization:
    """Batches to observe (none for bfloat16), how ranges follow from them, and the layers that stay in float32."""

    batches: list[Example]
    precision: str = "int8"
    ranges: RangeKind = "minmax"
    keep: frozenset[str] = frozenset()

    def observer(self) -> Observer:
        return Observer(self.ranges)


@dataclass
class Calibration:
    """What calibration finds out about a model. Where it is known from a file, nothing is observed and nothing compared."""

    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)  # by value of a graph, or by linear layer
    errors: dict[str, float] = field(default_factory=dict)  # by layer
    corrections: dict[str, list[float]] = field(default_factory=dict)  # of biases, by layer of a graph
    refused: list[str] = field(default_factory=list)  # parts that differ too much
    difference: float = 0.0  # of the whole model's output on the example
    known: bool = False

    def range_of(self, name: str) -> tuple[float, float]:
        if name not in self.ranges:
            raise ForgottenError(f"no range of {name} is remembered")
        return self.ranges[name]

    def correction_of(self, name: str, channels: int) -> Tensor:
        """What is added to the biases of a layer; nothing in folders that were saved without."""
        correction = self.corrections.get(name, [0.0] * channels)
        if len(correction) != channels:
            raise ForgottenError(f"the correction of {name} is for {len(correction)} channels, it has {channels}")
        return torch.tensor(correction)


def quantization_for(
    precision: str, calibration: Iterable[Any] | None, ranges: str, example: Example, training: bool
) -> Quantization | None:
    """What int8 and bfloat16 need; None for float32. Whatever is missing or does not fit is an error before any work."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is unknown; allowed: {', '.join(PRECISIONS)}")
    if ranges not in get_args(RangeKind):
        raise ValueError(f"ranges={ranges!r} is unknown; allowed: {', '.join(get_args(RangeKind))}")
    if precision == "float32" or (precision == "auto" and calibration is None):
        return None
    if precision == "bfloat16":
        return Quantization([], precision)
    if calibration is None:
        raise ValueError(
            "precision='int8' needs calibration data: give calibration=batches, an iterable of inputs like example_input "
            "(a few hundred samples of the training data)"
        )
    if training:
        raise ValueError("the model is in training mode: call model.eval() before it is calibrated for int8")
    return Quantization(_checked(calibration, example), "int8", ranges)  # type: ignore[arg-type]


def _checked(calibration: Iterable[Any], example: Example) -> list[Example]:
    if isinstance(calibration, Tensor | dict):
        raise TypeError("calibration is an iterable of batches, each like example_input: put a single batch into a list")
    batches: list[Example] = []
    for number, given in enumerate(calibration):
        if number == MAX_BATCHES:
            raise ValueError(f"calibration has more than {MAX_BATCHES} batches; give fewer, larger or smaller ones")
        batch = Example.of(given)
        _check_like(batch, example, number)
        batches.append(batch)
    if not batches:
        raise ValueError("calibration has no batches: give at least one input like example_input")
    return batches


def _check_like(batch: Example, example: Example, number: int) -> None:
    """The same structure; of floats only the number of samples may differ, of integers (tokens) lengths too."""
    given, structure = pytree.tree_flatten((batch.args, batch.named))
    wanted, expected = pytree.tree_flatten((example.args, example.named))
    if structure != expected:
        raise ValueError(
            f"calibration batch {number} is not built like example_input ({structure} instead of {expected}); "
            "batches hold what the model is called with, without labels"
        )
    for value, model in zip(given, wanted, strict=True):
        if not isinstance(model, Tensor):
            continue
        if not isinstance(value, Tensor) or value.dtype != model.dtype or value.device.type != "cpu":
            what = f"{value.dtype} on {value.device}" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"calibration batch {number} holds {what}, where example_input holds {model.dtype} on the CPU")
        free = model.dim() if not model.is_floating_point() else 1
        if value.dim() != model.dim() or value.shape[free:] != model.shape[free:]:
            raise ValueError(
                f"calibration batch {number} has a tensor of shape {tuple(value.shape)}, example_input one of "
                f"{tuple(model.shape)}: only the number of samples may differ"
            )


def observe_nodes(
    graph: fx.GraphModule, nodes: set[fx.Node], batches: Sequence[list[Tensor]], new: Callable[[], Observer], where: str
) -> dict[fx.Node, tuple[float, float]]:
    """The ranges of some nodes' values while these inputs pass a graph."""
    observers = {node: new() for node in nodes}

    class Watcher(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            if n in observers:
                _update(observers[n], result, str(n.meta.get("layer", n.name)), where)
            return result

    with torch.no_grad():
        for tensors in batches:
            Watcher(graph).run(*(tensor.clone() for tensor in tensors))
    return {node: _range(observer, str(node.meta.get("layer", node.name)), where) for node, observer in observers.items()}


@dataclass(frozen=True)
class ObservedInput:
    """The range of what a layer reads, and the first that it read: (tokens, columns) for a linear layer."""

    range: tuple[float, float]
    sample: Tensor | None  # none where the range is known from a file


def sample_of(x: Tensor) -> Tensor:
    """Some tokens of a linear layer's input."""
    return x.detach().reshape(-1, x.shape[-1])[:MAX_SAMPLES].clone()


def observe_modules(
    model: nn.Module, modules: dict[nn.Module, str], batches: Sequence[Example], new: Callable[[], Observer]
) -> dict[nn.Module, ObservedInput]:
    """What some modules read, without those that are never called with a float tensor."""
    observers = {module: new() for module in modules}
    samples: dict[nn.Module, Tensor] = {}

    def record(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        first = next(iter((*inputs, *named.values())), None)
        if isinstance(first, Tensor) and first.is_floating_point() and first.numel():
            samples.setdefault(module, sample_of(first))
            _update(observers[module], first, modules[module], "")

    handles = [module.register_forward_pre_hook(record, with_kwargs=True) for module in modules]
    try:
        with torch.no_grad():
            for batch in batches:
                batch.run(model)
    finally:
        for handle in handles:
            handle.remove()
    return {module: ObservedInput(_range(observers[module], modules[module], ""), x) for module, x in samples.items()}


def _update(observer: Observer, value: Tensor, layer: str, where: str) -> None:
    try:
        observer.update(value)
    except ValueError as error:
        raise CalibrationError(f"calibration of {f'{where}.{layer}'.strip('.')}: {error}") from None


def _range(observer: Observer, layer: str, where: str) -> tuple[float, float]:
    try:
        return observer.range()
    except ValueError as error:
        raise CalibrationError(f"calibration of {f'{where}.{layer}'.strip('.')}: {error}") from None


class CalibrationError(ValueError):
    """Calibration data that give no range."""


class ForgottenError(ValueError):
    """Remembered choices or ranges that are not those of this model."""
