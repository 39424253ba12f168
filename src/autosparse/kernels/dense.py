"""The same operations with dense torch: where no kernels are there, and where a pass is faster densely."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Geometry:
    """What a convolution's call says besides its tensors."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int = 1


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def linear_input_gradient(grad: Tensor, weight: Tensor) -> Tensor:
    return grad @ weight


def linear_weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    rows = x.shape[:-1].numel()
    return grad.reshape(rows, grad.shape[-1]).t() @ x.reshape(rows, x.shape[-1])


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    found = F.conv2d(x, weight, bias, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
    return found.contiguous(memory_format=torch.channels_last)


def conv2d_input_gradient(grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    return _conv2d_backward(grad, x, weight, geometry, 0)


def conv2d_weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    return _conv2d_backward(grad, x, weight, geometry, 1)


def _conv2d_backward(grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, which: int) -> Tensor:
    wanted = [which == 0, which == 1, False]
    found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        grad, x, weight, None, geometry.stride, geometry.padding, geometry.dilation, False, (0, 0), geometry.groups, wanted
    )
    return found[which]
