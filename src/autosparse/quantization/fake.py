"""Fake quantization: modules that round weights and inputs as int8 will, while gradients pass as if they did not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from autosparse.common.parametrized import own_class
from autosparse.quantization.affine import ACTIVATION_LEVELS, WEIGHT_LIMIT, activation_parameters

INPUT = "input_quantizer"
_MARK = "levels"
_TINY = torch.finfo(torch.float32).tiny


class FakeQuantizedWeight(nn.Module):
    """A parametrization that rounds every output channel to 255 levels; zeros stay zeros. It comes after any other."""

    levels: Tensor

    def __init__(self, channel_dim: int = 0) -> None:
        super().__init__()
        self.channel_dim = channel_dim
        # saved, so that a state says which weights are rounded
        self.register_buffer(_MARK, torch.tensor(WEIGHT_LIMIT, dtype=torch.int16))

    def forward(self, weight: Tensor) -> Tensor:
        rounded: Tensor = _Rounded.apply(weight, self.channel_dim)  # type: ignore[no-untyped-call]
        return rounded

    def right_inverse(self, weight: Tensor) -> Tensor:
        """What is stored when a plain weight is assigned."""
        return weight


class _Rounded(torch.autograd.Function):
    """The numbers of `quantize_weight` and `dequantize_weight`; all weights receive their gradient unchanged."""

    @staticmethod
    def forward(weight: Tensor, channel_dim: int) -> Tensor:
        others = [dim for dim in range(weight.dim()) if dim != channel_dim]
        exact = weight.float()
        largest = exact.abs().amax(others, keepdim=True)
        scales = torch.where(largest > 0, (largest / WEIGHT_LIMIT).clamp_min(_TINY), 1.0)
        return torch.round(exact / scales).clamp_(-WEIGHT_LIMIT, WEIGHT_LIMIT).mul_(scales).to(weight.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class FakeQuantizedInput(nn.Module):
    """Rounds what a layer is given to 256 levels of a fixed range; beyond the range no gradient passes."""

    scale: Tensor
    zero_point: Tensor

    def __init__(self, low: float, high: float, device: torch.device) -> None:
        super().__init__()
        scale, zero_point = activation_parameters(low, high)
        self.register_buffer("scale", torch.tensor([scale], dtype=torch.float32, device=device))
        self.register_buffer("zero_point", torch.tensor([zero_point], dtype=torch.int32, device=device))

    def forward(self, x: Tensor) -> Tensor:
        rounded = torch.fake_quantize_per_tensor_affine(x.float(), self.scale.float(), self.zero_point, 0, ACTIVATION_LEVELS)
        return rounded.to(x.dtype)


def _round_input(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    if not inputs or not isinstance(inputs[0], Tensor) or not inputs[0].is_floating_point():
        return None
    return module._modules[INPUT](inputs[0]), *inputs[1:]  # type: ignore[misc]


def attach_input(module: nn.Module, low: float, high: float) -> None:
    """Let the module's first input be rounded."""
    device = next(module.parameters()).device
    module.add_module(INPUT, FakeQuantizedInput(low, high, device))
    module.register_forward_pre_hook(_round_input)


def attach_weight(module: nn.Module, tensor: str, channel_dim: int) -> None:
    """Let a weight be rounded, after the parametrizations that it has."""
    parametrize.register_parametrization(module, tensor, FakeQuantizedWeight(channel_dim), unsafe=True)
    stored = module.parametrizations[tensor].original  # type: ignore[index, union-attr]
    module.parametrizations[tensor].to(stored.device)  # type: ignore[index]


def is_quantization_aware(model: nn.Module) -> bool:
    """Whether weights or inputs of the model are rounded."""
    return any(isinstance(module, FakeQuantizedInput | FakeQuantizedWeight) for module in model.modules())


def saved_places(state: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, str]]]:
    """The modules whose inputs a saved state rounds, and the modules and names of the weights."""
    inputs = [key.removesuffix(f"{INPUT}.scale").rstrip(".") for key in state if f".{key}".endswith(f".{INPUT}.scale")]
    weights = []
    for key in state:
        prefix, found, rest = key.rpartition("parametrizations.")
        if found and rest.endswith(f".{_MARK}"):
            weights.append((prefix.rstrip("."), rest.split(".")[0]))
    return inputs, weights


def remove(model: nn.Module) -> None:
    """Take all fake quantization off; weights that carry nothing else keep their rounded values.

    A weight with another parametrization keeps its list: whoever put that there removes it.
    """
    for module in model.modules():
        if INPUT in module._modules:
            del module._modules[INPUT]
            for key in [key for key, hook in module._forward_pre_hooks.items() if hook is _round_input]:
                del module._forward_pre_hooks[key]
    for module, tensor in list(_rounded_alone(model)):
        order = [*_plain_order(module)]
        value = getattr(module, tensor).detach()
        own_class(module)
        parametrize.remove_parametrizations(module, tensor, leave_parametrized=False)
        with torch.no_grad():
            getattr(module, tensor).copy_(value)
        module._parameters.update({name: module._parameters.pop(name) for name in order if name in module._parameters})


def _plain_order(module: nn.Module) -> list[str]:
    """Parametrized tensors first, as torch's own layers have weights before biases."""
    return [*module.parametrizations, *module._parameters]  # type: ignore[misc]


def _rounded_alone(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for module in model.modules():
        for tensor, parts in getattr(module, "parametrizations", {}).items() if parametrize.is_parametrized(module) else ():
            if len(parts) == 1 and isinstance(parts[0], FakeQuantizedWeight):
                yield module, tensor


def plain_entries(model: nn.Module, *, rounded: bool) -> dict[str, Any]:
    """The model's state without what fake quantization adds: its own keys, with rounded weights or those that are stored."""
    names = {module: name for name, module in model.named_modules()}
    alone = {
        f"{names[module]}.parametrizations.{tensor}.original".lstrip("."): (module, tensor)
        for module, tensor in _rounded_alone(model)
    }
    state = model.state_dict(keep_vars=True)
    inputs, weights = saved_places(state)
    extra = {f"{name}.{INPUT}.{part}".lstrip(".") for name in inputs for part in ("scale", "zero_point")}
    marks = {f"{name}.parametrizations.{tensor}.".lstrip(".") for name, tensor in weights}
    entries: dict[str, Any] = {}
    for key, value in state.items():
        if key in alone:
            module, tensor = alone[key]
            prefix = names[module]
            entries[f"{prefix}.{tensor}".lstrip(".")] = getattr(module, tensor).detach() if rounded else value
        elif key not in extra and not (key.endswith(f".{_MARK}") and key.rpartition(".")[0].rpartition(".")[0] + "." in marks):
            entries[key] = value
    return entries
