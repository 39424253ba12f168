"""One call of a layer whose weight has zeros: its arguments, and its passes on tensors, each dense or sparse.

A linear layer and a 2d convolution differ in their geometry alone; to the kernels both are convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from autosparse.kernels import checks, dense, passes
from autosparse.kernels.compressed import WEIGHTS, Compressed
from autosparse.kernels.geometry import Convolution, Geometry
from autosparse.kernels.layout import Layout, layout_for
from autosparse.kernels.library import available
from autosparse.kernels.memory import empty_pixels, pixels_last, weight_format
from autosparse.kernels.pixels import PLAIN_STORE, Source

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = range(3)

out_shape_of = lru_cache(maxsize=1024)(checks.conv2d_shape)


@dataclass(eq=False)
class LayerCall:
    """A dense effective weight, zeros inside. Without geometry it is that of a linear layer.

    `gradient_entries`: where the weight gets a gradient: "all", "active" (where it is not zero) or "mask" (where `mask` is
    true); elsewhere its gradient is zero. `sparse`: for the forward pass, the input gradient and the weight gradient,
    whether it skips the zeros; the result is the same either way.
    """

    weight: Tensor | None
    bias: Tensor | None
    geometry: Geometry | None
    gradient_entries: str
    mask: Tensor | None
    sparse: Sequence[bool]
    shape: torch.Size = field(init=False)
    format: torch.memory_format = field(init=False)
    device: torch.device = field(init=False)
    images_last: bool = field(init=False, default=False)  # the order of the tensors that its kernels read and write
    _compressed: Compressed | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        weight = self.dense_weight
        self.shape, self.format, self.device = weight.shape, weight_format(weight), weight.device

    @property
    def dense_weight(self) -> Tensor:
        assert self.weight is not None, "the dense weight was dropped"
        return self.weight

    # ---- what the kernels need ---------------------------------------------------------------------------------------

    def layout(self, x: Tensor) -> Layout:
        conv = _convolution(x.shape, self.shape, self.geometry, self.images_last)
        return layout_for(conv, self.format is torch.channels_last, x.dtype)

    def compressed(self, x: Tensor) -> Compressed:
        """Found once: the weight of a call does not change."""
        if self._compressed is None:
            self._compressed = WEIGHTS.find(self.layout(x), self.dense_weight.contiguous(memory_format=self.format))
            self._compressed.users.add(self)
        return self._compressed

    def pattern(self, x: Tensor) -> Compressed:
        """Where the weight gets a gradient."""
        if self.gradient_entries != "mask" or self.mask is None:
            return self.compressed(x)
        return WEIGHTS.find(self.layout(x), self.mask.contiguous(memory_format=self.format))

    def skips(self, which: int, *tensors: Tensor) -> bool:
        """Whether a pass runs on the sparse kernels."""
        grouped = self.geometry is not None and self.geometry.groups != 1
        every = which == WEIGHT_GRADIENT and self.gradient_entries == "all"
        usable = available(tensors[0].dtype) and not self._is_empty(*tensors)
        return usable and self.sparse[which] and not grouped and not every

    def _is_empty(self, *tensors: Tensor) -> bool:
        return self.shape.numel() == 0 or any(tensor.numel() == 0 for tensor in tensors)

    def drop_dense_weight(self) -> bool:
        """Forget the dense weight if no gradient needs it any more; whether it is forgotten."""
        form = self._compressed
        for_input = self.sparse[INPUT_GRADIENT] and form is not None and form.layout.gradient_group is not None
        if form is not None and for_input and (self.gradient_entries == "all" or self.sparse[WEIGHT_GRADIENT]):
            self.weight = None
            WEIGHTS.drop_dense_weight(form)
        return self.weight is None

    # ---- the passes --------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        result = self.empty_result(x, out_shape_of)
        if not self.skips(FORWARD, x):
            return self._dense_forward(x, result)
        bias = None if self.bias is None else self.bias.contiguous()
        passes.forward(self.compressed(x), Source(self._ordered(x)), bias, PLAIN_STORE, result)
        return result

    def empty_result(self, x: Tensor, shape_of: Callable[..., Sequence[int]] = checks.conv2d_shape) -> Tensor:
        """Memory for the result, once the call has passed its checks."""
        if self.geometry is None:
            checks.linear(x, self.dense_weight, self.bias, self.gradient_entries, self.mask, self.sparse)
            return x.new_empty((*x.shape[:-1], self.shape[0]))
        checks.common("sparse_conv2d", x, self.dense_weight, self.bias, self.gradient_entries, self.mask, self.sparse)
        return empty_pixels(x, shape_of(x.shape, self.shape, self.geometry))

    def input_gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        result = self.empty_input_gradient(x)
        if self.skips(INPUT_GRADIENT, x):
            passes.input_gradient(self.compressed(x), Source(self._ordered(grad)), PLAIN_STORE, result)
            return result
        if self.geometry is None:
            return result.copy_(dense.linear_input_gradient(grad, self.weight_as(grad)))
        return result.copy_(dense.conv2d_input_gradient(grad, x, self.weight_as(grad), self.geometry))

    def empty_input_gradient(self, x: Tensor) -> Tensor:
        return x.new_empty(x.shape) if self.geometry is None else empty_pixels(x, x.shape)

    def weight_gradient(self, grad: Tensor, x: Tensor, into: Tensor | None = None) -> Tensor:
        """A new tensor, or `into` with the gradient added to it."""
        if self.skips(WEIGHT_GRADIENT, x):
            result = self.empty_gradient() if into is None else into
            sources = Source(self._ordered(x)), Source(self._ordered(grad))
            passes.weight_gradient(self.pattern(x), *sources, result, adds=into is not None)
            return result
        if self.geometry is None:
            result = self.restrict(dense.linear_weight_gradient(grad, x))
        else:
            result = self.restrict(dense.conv2d_weight_gradient(grad, x, self.weight_or_its_shape(grad), self.geometry))
        return result if into is None else into.add_(result)

    def bias_gradient(self, grad: Tensor) -> Tensor:
        if self.geometry is None:
            return grad.reshape(grad.shape[:-1].numel(), grad.shape[-1]).sum(0, dtype=torch.float32)
        return grad.sum(dim=(0, 2, 3), dtype=torch.float32)

    def empty_gradient(self) -> Tensor:
        """Of the weight: float32 as the weight, whatever the activations are."""
        return torch.empty(self.shape, device=self.device, memory_format=self.format)

    def weight_as(self, like: Tensor) -> Tensor:
        """The dense weight for torch's operations, which take all tensors in one type."""
        return self.dense_weight.to(like.dtype)

    def weight_or_its_shape(self, like: Tensor) -> Tensor:
        """For a gradient of the weight alone, where torch reads no more than its shape."""
        if self.weight is not None and self.weight.dtype is like.dtype:
            return self.weight
        return torch.empty(self.shape, dtype=like.dtype, device=like.device, memory_format=self.format)

    def restrict(self, gradient: Tensor) -> Tensor:
        """A gradient made densely, with zeros where the weight gets none."""
        gradient = gradient.contiguous(memory_format=self.format).float()
        if self.gradient_entries == "all":
            return gradient
        return gradient.mul_((self.dense_weight != 0) if self.mask is None else self.mask)

    def _dense_forward(self, x: Tensor, result: Tensor) -> Tensor:
        if self.geometry is None:
            return dense.linear(x, self.weight_as(x), self.bias_as(x))
        return result.copy_(dense.conv2d(x, self.weight_as(x), self.bias_as(x), self.geometry))

    def bias_as(self, like: Tensor) -> Tensor | None:
        return None if self.bias is None else self.bias.to(like.dtype)

    def _ordered(self, activations: Tensor) -> Tensor:
        return activations.contiguous() if self.geometry is None else pixels_last(activations)


@lru_cache(maxsize=1024)
def _convolution(x_shape: torch.Size, weight_shape: torch.Size, geometry: Geometry | None, images_last: bool) -> Convolution:
    if geometry is None:
        return Convolution(1, x_shape[-1], (1, x_shape[:-1].numel()), weight_shape[0])
    conv = Convolution(
        x_shape[0],
        x_shape[1],
        (x_shape[2], x_shape[3]),
        weight_shape[0],
        (weight_shape[2], weight_shape[3]),
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        images_last,
    )
    return conv.simplified()
