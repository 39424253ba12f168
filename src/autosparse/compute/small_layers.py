"""The thresholds of a small network in one node of the graph: layer by layer, Python would take longer than the weights.

When the model is called, the effective weights of all its layers are made at once; each layer takes its own as it is read.
What is not taken, or is read again, is made by the layer's own parametrization: the values and gradients are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from autosparse.functional import learned_gradients, threshold_value
from autosparse.kernels import threshold as native
from autosparse.kernels.memory import is_eager
from autosparse.layer import TOGETHER, Layer, Parts
from autosparse.parametrizations import SoftThreshold

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

LEAST_LAYERS = 2
MOST_WEIGHTS = 2**20  # of all layers: until all their gradients are there, those of the effective weights stay in memory

_saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks


class SmallLayers:
    """Effective weights that were made for one call of the model and wait for their layers; without layers it does nothing."""

    def __init__(self, layers: Sequence[Layer] = ()) -> None:
        self._parts: list[Parts] = [layer.parts for layer in layers if _fits(layer)]
        self._ready: dict[Parts, tuple[Tensor, nn.Parameter, int, Tensor, int]] = {}
        self._kept: set[Parts] = {layer.parts for layer in layers if isinstance(layer.places[0].module, nn.RNNBase)}
        self._handle: RemovableHandle | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> SmallLayers:
        return SmallLayers()  # the copy of a model reads its own weights

    def __reduce__(self) -> tuple[type[SmallLayers], tuple[()]]:
        return SmallLayers, ()

    def __len__(self) -> int:
        return len(self._parts)

    def attach(self, model: nn.Module) -> None:
        """Make effective weights whenever the model is called."""
        self._handle = model.register_forward_pre_hook(self._begin)
        for parts in self._parts:
            vars(parts)[TOGETHER] = self

    def remove(self) -> None:
        """Let every layer make its own again."""
        if self._handle is not None:
            self._handle.remove()
        for parts in self._parts:
            vars(parts).pop(TOGETHER, None)
        self._parts, self._handle = [], None
        self._ready.clear()

    def drop(self) -> None:
        """Forget what no layer took. What the last call did not read, such as an unused head, is left out from now on."""
        if not self._ready:
            return
        unused = self._ready.keys() - self._kept
        for parts in unused:
            vars(parts).pop(TOGETHER, None)
        self._parts = [parts for parts in self._parts if parts not in unused]
        self._ready.clear()

    def _begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.is_grad_enabled() or not is_eager() or _saved_tensor_hooks(False) is not None:
            self._ready.clear()
            return
        self.drop()
        given = [each for each in map(_given, self._parts) if each is not None]
        if len(given) < LEAST_LAYERS:
            return
        effective = _thresholds(given, *[tensor for each in given for tensor in each[1:3]])
        for (parts, weight, s, *_), made in zip(given, effective, strict=True):
            self._ready[parts] = made, weight, weight._version, s, s._version

    def take(self, parts: Parts) -> Tensor | None:
        """The effective weight, once; None where the layer has to make its own."""
        found = self._ready.get(parts)
        if found is None:
            return None
        # Where what is saved is counted or packed, as under activation checkpoints, a layer does the same every time.
        if not torch.is_grad_enabled() or not is_eager() or _saved_tensor_hooks(False) is not None:
            return None
        if parts not in self._kept:
            del self._ready[parts]
        effective, weight, weight_version, s, threshold_version = found
        part = parts._modules["0"]
        is_same = parts._parameters.get("original") is weight and weight._version == weight_version
        if is_same and len(parts._modules) == 1 and part._parameters.get("threshold") is s and s._version == threshold_version:
            return effective
        return None

    def done(self, parts: Parts) -> None:
        """A module that reads its weights several times has made its pass."""
        self._ready.pop(parts, None)


Given = tuple[Parts, nn.Parameter, nn.Parameter, Tensor, Tensor | None, str]  # weight, s, gate, reach and g


def _fits(layer: Layer) -> bool:
    part, place = layer.parametrization, layer.places[0]
    is_soft = type(part) is SoftThreshold and part.rows == 1 and part.power == 1 and part.rescale_dim is None
    return is_soft and len(layer.places) == 1 and vars(type(place.module)).get(place.tensor) is not None


def _given(parts: Parts) -> Given | None:
    """What its threshold is made of, as it is now; None where the layer's own way must be gone."""
    part: Any = parts._modules["0"]
    weight, s = parts._parameters.get("original"), part._parameters.get("threshold")
    gate, reach = part._buffers["gate"], part._buffers["reach"]  # past nn.Module, whose lookups take long
    if type(weight) is not nn.Parameter or type(s) is not nn.Parameter or not weight.requires_grad or not s.requires_grad:
        return None
    if len(parts._modules) > 1 or "forward" in vars(part) or s.dtype is not torch.float32 or weight.is_inference():
        return None
    return (parts, weight, s, gate, reach, part.function) if native.lies_right(weight, s, gate, reach) else None


class _Thresholds(torch.autograd.Function):
    """The soft thresholds of all layers.

    Tensors are not saved by torch, which frees them after a backward pass: two losses may reach different layers in turn.
    """

    @staticmethod
    def forward(ctx: Any, given: Sequence[Given], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        made, kept = [], []
        for parts, weight, s, gate, reach, function in given:
            threshold = threshold_value(s, function).item()
            effective, count = native.soft_threshold(weight, max(threshold, 0.0))
            made.append(effective)
            vars(parts._modules["0"])["_counted"] = weight._version, s._version, count
            kept.append(((weight, s, gate, reach), (weight._version, s._version, gate._version), function, threshold))
        ctx.kept = kept
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        received: list[Tensor | None] = [None]
        for ((weight, s, gate, reach), versions, function, threshold), grad in zip(ctx.kept, grads, strict=True):
            if grad is None:
                received += (None, None)
                continue
            if versions != (weight._version, s._version, gate._version):
                raise RuntimeError(CHANGED)
            received += learned_gradients(grad, weight, s, gate, reach, function, threshold, s.requires_grad)
        return tuple(received)


CHANGED = "a weight, its threshold or alpha has been modified in place since the forward pass: its gradient would be wrong"
_thresholds: Any = super(torch.autograd.Function, _Thresholds).apply
