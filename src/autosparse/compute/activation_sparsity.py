"""Linear and convolution modules whose weight gradient sees only the largest of their inputs; all else is as before."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from autosparse.compute import overrides
from autosparse.compute.overrides import LARGEST_INPUTS
from autosparse.parametrizations import Masked

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NOT_KNOWN = -1.0


class InputBound(Masked):
    """A masked weight, with the magnitude below which inputs of its module are left out of the weight gradient."""

    bound: Tensor

    def __init__(self, weight: Tensor, input_sparsity: float) -> None:
        super().__init__(weight)
        self.input_sparsity = input_sparsity
        dtype = torch.promote_types(weight.dtype, torch.float32)
        # Below 0 every input counts, and the next training forward measures it again. Saved, so that a resumed run goes on.
        self.register_buffer("bound", torch.full((1,), _NOT_KNOWN, dtype=dtype, device=weight.device))
        self.measures = True  # mirrors bound < 0: a forward pass may not branch on a tensor
        self.register_load_state_dict_post_hook(_after_load)  # type: ignore[no-untyped-call]

    def renew(self) -> None:
        """Measure the bound again in the next training forward."""
        self.bound.fill_(_NOT_KNOWN)
        self.measures = True

    def measure(self, inputs: Tensor) -> None:
        """The k-th largest magnitude of a batch of inputs, k = (1 - sparsity) of them and at least 1."""
        magnitudes = inputs.detach().abs().flatten()
        left_out = min(int(self.input_sparsity * magnitudes.numel() + 0.5), magnitudes.numel() - 1)
        self.bound.copy_(magnitudes.kthvalue(left_out + 1).values)
        self.measures = False

    def largest(self, inputs: Tensor) -> Tensor:
        """The inputs, with those below the bound set to 0."""
        is_large = inputs.detach().abs()
        return is_large.ge_(self.bound.to(is_large.dtype)).mul_(inputs.detach())


def _after_load(module: nn.Module, _: Any) -> None:
    assert isinstance(module, InputBound)
    module.measures = bool(module.bound < 0)


def supports(module: nn.Module) -> bool:
    """Whether inputs can be left out: a Linear or convolution that computes as torch's own class does."""
    if isinstance(module, NonDynamicallyQuantizableLinear) or overrides.owner_of(module) is not None:
        return False  # MultiheadAttention reads its output projection's weight without calling the module
    return type(module).forward in (nn.Linear.forward, *(kind.forward for kind in _CONVOLUTIONS))


def attach(module: nn.Module) -> None:
    """Let the module's weight gradient see the largest inputs only; its weight must have an `InputBound`."""
    overrides.take(module, LARGEST_INPUTS, _convolution if isinstance(module, _CONVOLUTIONS) else _linear)


def detach(module: nn.Module) -> None:
    """Take the module's own forward again."""
    overrides.release(module, LARGEST_INPUTS)


def is_attached(module: nn.Module) -> bool:
    return overrides.owner_of(module) == LARGEST_INPUTS


def _largest_inputs(module: nn.Module, inputs: Tensor) -> Tensor:
    bound = module.parametrizations["weight"][0]  # type: ignore[index]
    assert isinstance(bound, InputBound)
    if bound.measures and module.training:
        bound.measure(inputs)
    return bound.largest(inputs)


def _cast(*tensors: Tensor | None) -> list[Any]:
    """What autocast would do inside the operation, done outside so that the backward pass has one dtype."""
    device = next(each for each in tensors if each is not None).device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return list(tensors)
    return [None if each is None else each.to(torch.get_autocast_dtype(device)) for each in tensors]


def _linear(module: nn.Linear, input: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return nn.Linear.forward(module, input)
    inputs, weight, bias = _cast(input, module.weight, module.bias)
    largest = _largest_inputs(module, inputs)
    output: Tensor = _Linear.apply(inputs, weight, bias, largest)  # type: ignore[no-untyped-call]
    return output


def _convolution(module: _ConvNd, input: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return type(module).forward(module, input)  # type: ignore[no-any-return]
    inputs, weight, bias = _cast(input, module.weight, module.bias)
    batched = inputs.dim() == weight.dim()
    inputs = inputs if batched else inputs.unsqueeze(0)
    largest = _largest_inputs(module, inputs)
    padding = module.padding
    if isinstance(padding, str) or module.padding_mode != "zeros":
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        inputs, largest = (F.pad(each, module._reversed_padding_repeated_twice, mode=mode) for each in (inputs, largest))
        padding = (0,) * len(module.stride)
    shape = (module.stride, padding, module.dilation, module.groups)
    output: Tensor = _Convolution.apply(inputs, weight, bias, largest, shape)  # type: ignore[no-untyped-call]
    return output if batched else output.squeeze(0)


# Both operations are linear in their input, so gradients taken at the largest inputs are the right ones:
# that of the input does not depend on the inputs at all, and that of the weight sees only the largest.


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None, largest: Tensor) -> Tensor:
        return F.linear(inputs, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], inputs[3])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, largest = ctx.saved_tensors
        rows = grad.reshape(-1, weight.shape[0])
        to_input = grad @ weight if ctx.needs_input_grad[0] else None
        to_weight = rows.T @ largest.reshape(-1, weight.shape[1]) if ctx.needs_input_grad[1] else None
        return to_input, to_weight, rows.sum(0) if ctx.needs_input_grad[2] else None, None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None, largest: Tensor, shape: tuple[Any, ...]) -> Tensor:
        stride, padding, dilation, groups = shape
        return torch.convolution(inputs, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], inputs[3])
        ctx.shape = inputs[4]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, largest = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.shape
        needed = list(ctx.needs_input_grad[:3])
        sizes = [weight.shape[0]] if needed[2] else None
        gradients = torch.ops.aten.convolution_backward(
            grad, largest, weight, sizes, stride, padding, dilation, False, [0] * len(stride), groups, needed
        )
        return *gradients, None, None
