"""The same operations with dense torch: where no kernels are there, and where a pass is faster densely."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from autosparse.kernels.geometry import Geometry


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def linear_input_gradient(grad: Tensor, weight: Tensor) -> Tensor:
    return grad @ weight


def linear_weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    rows = x.shape[:-1].numel()
    return grad.reshape(rows, grad.shape[-1]).t() @ x.reshape(rows, x.shape[-1])


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    output = F.conv2d(x, weight, bias, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
    return output.contiguous(memory_format=torch.channels_last)


def conv2d_input_gradient(grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    gradient = conv2d_gradients(grad, x, weight, geometry, True, False)[0]
    assert gradient is not None
    return gradient


def conv2d_weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    gradient = conv2d_gradients(grad, x, weight, geometry, False, True)[1]
    assert gradient is not None
    return gradient


def conv2d_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, of_x: bool, of_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Those of input and weight that are asked for."""
    if of_weight and weight.shape[2:] == (1, 1) and geometry.stride != (1, 1) and geometry.padding == (0, 0):
        return _strided_pointwise_gradients(grad, x, weight, geometry, of_x)
    gradients: tuple[Tensor | None, ...] = torch.ops.aten.convolution_backward(
        grad, x, weight, None, geometry.stride, geometry.padding, geometry.dilation, False, (0, 0), geometry.groups,
        [of_x, of_weight, False],
    )  # fmt: skip
    return gradients[0], gradients[1]


def _strided_pointwise_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, of_x: bool
) -> tuple[Tensor | None, Tensor | None]:
    """From the pixels that a 1x1 convolution reads alone: torch 2.13.0 with two threads writes beyond the weight gradient
    of a strided one in channels_last (input (3, 9, 10, 8), weight (16, 9, 1, 1), stride 2)."""
    of_input = conv2d_gradients(grad, x, weight, geometry, True, False)[0] if of_x else None
    down, across = geometry.stride
    read = x[..., ::down, ::across].contiguous(memory_format=torch.channels_last)
    unstrided = Geometry((1, 1), (0, 0), (1, 1), geometry.groups)
    return of_input, conv2d_gradients(grad, read, weight, unstrided, False, True)[1]
