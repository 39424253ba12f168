"""The sparse layers as torch runs them by itself: the same passes as in operators.py, for a quarter of what a call costs.

Where nothing traces or records, an operator of torch.library would only be looked up, wrapped and unwrapped.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from autosparse.common.gradient_sums import GradientSum, open_sum_of
from autosparse.kernels.layer_call import LayerCall


def run(x: Tensor, call: LayerCall) -> Tensor:
    result: Tensor = _Layer.apply(x, call.weight, call.bias, call.mask, call)  # type: ignore[no-untyped-call]
    return result


class _Layer(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, call: LayerCall) -> Tensor:
        ctx.call, ctx.sum = call, open_sum_of(call.own_weight)
        result = call.forward(x)
        ctx.save_for_backward(x, None if call.let_go() else weight, mask)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *_ = ctx.saved_tensors  # refuses a weight or a mask that has changed
        call: LayerCall = ctx.call
        for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
        return (
            call.input_gradient(grad, x) if for_x else None,
            _weight_gradient(call, grad, x, ctx.sum) if for_weight else None,
            call.bias_gradient(grad) if for_bias else None,
            None,
            None,
        )


def _weight_gradient(call: LayerCall, grad: Tensor, x: Tensor, gradient_sum: GradientSum | None) -> Tensor | None:
    if gradient_sum is None:
        return call.weight_gradient(grad, x)
    gradient_sum.total = call.weight_gradient(grad, x, gradient_sum.total)
    return None
