"""The passes of a layer as calls to be timed, dense and sparse, on tensors of its shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from autosparse.compute.planner import BFLOAT16, Workload
from autosparse.kernels import dense, normalise, passes
from autosparse.kernels.compressed import Compressed
from autosparse.kernels.geometry import Geometry
from autosparse.kernels.layout import Layout
from autosparse.kernels.memory import empty_pixels
from autosparse.kernels.pixels import PLAIN_STORE, STATISTICS, GradientSource, Sink, Source

Calls = Mapping[str, Callable[[], object]]


class LayerCalls:
    """Input and output gradient of a layer, and the calls that work on them. They are ones: no time depends on values."""

    def __init__(self, workload: Workload) -> None:
        conv = workload.conv
        self.workload = workload
        dtype = torch.bfloat16 if workload.precision == BFLOAT16 else torch.float32
        self.shape: tuple[int, ...] = (conv.out_channels, conv.in_channels)
        if workload.linear:
            pixels = conv.images * conv.in_size[0] * conv.in_size[1]
            self.x, self.grad = (torch.ones(pixels, each, dtype=dtype) for each in (conv.in_channels, conv.out_channels))
            return
        self.shape = (*self.shape, *conv.kernel)
        shapes = (conv.images, conv.in_channels, *conv.in_size), (conv.images, conv.out_channels, *conv.out_size)
        self.x, self.grad = (normalise.in_order(torch.ones(shape, dtype=dtype), conv.images_last) for shape in shapes)
        self.geometry = Geometry(conv.stride, conv.padding, conv.dilation)
        if workload.fused:  # what the input is made of, and what the output's gradient is
            self.source = Source(self.x, torch.ones(3, conv.in_channels), relu=True)
            self.of_raw = GradientSource(self.grad, self.grad, torch.ones(3, conv.out_channels))
            self.shift = torch.zeros(conv.out_channels)

    def dense(self, weight: Tensor) -> Calls:
        """By torch: "forward", "input" and "weight". Weights are cast as autocast casts them, gradients cast back."""
        x, grad, dtype = self.x, self.grad, self.x.dtype
        if self.workload.linear:
            cast = weight.to(dtype)
            return {
                "forward": lambda: dense.linear(x, weight.to(dtype), None),
                "input": lambda: dense.linear_input_gradient(grad, cast),
                "weight": lambda: dense.linear_weight_gradient(grad, x).float(),
            }
        weight = weight.contiguous(memory_format=torch.channels_last)
        cast = weight.to(dtype)
        if self.workload.fused:
            return self._dense_among_fused(weight, cast)
        return {
            "forward": lambda: dense.conv2d(x, weight.to(dtype), None, self.geometry),
            "input": lambda: dense.conv2d_input_gradient(grad, x, cast, self.geometry),
            "weight": lambda: dense.conv2d_weight_gradient(grad, x, cast, self.geometry).float(),
        }

    def _dense_among_fused(self, weight: Tensor, cast: Tensor) -> Calls:
        """With the sweeps that they need between fused neighbours, as fused_layer.py makes them."""
        images_last, grad = self.workload.conv.images_last, normalise.in_order(self.grad, images_last=False)

        def forward() -> None:
            result = dense.conv2d(normalise.materialise(self.source), weight.to(cast.dtype), None, self.geometry)
            normalise.statistics(normalise.in_order(result, images_last), self.shift)

        def of_input() -> None:
            like_x = empty_pixels(self.x, self.x.shape)
            found = normalise.in_order(dense.conv2d_input_gradient(grad, like_x, cast, self.geometry), images_last)
            normalise.finish(found, Sink.of_gradient(self.source), torch.empty_like(self.x))

        def of_weight() -> None:
            dense.conv2d_weight_gradient(grad, normalise.materialise(self.source), cast, self.geometry).float()

        # the gradient of the raw result serves both dense passes
        calls = {"forward": forward, "input": of_input, "weight": of_weight, "grad": lambda: normalise.materialise(self.of_raw)}
        return {**calls, "alone": self._alone(weight, cast)}

    def _alone(self, weight: Tensor, cast: Tensor) -> Callable[[], None]:
        """Convolution, batch norm and ReLU as torch computes them, and their gradients."""
        x, grad = (normalise.in_order(tensor, images_last=False) for tensor in (self.x, self.grad))
        scale, offset = (torch.ones(len(weight), requires_grad=True) for _ in range(2))

        def step() -> None:
            raw = dense.conv2d(x, weight.to(cast.dtype), None, self.geometry).requires_grad_()
            with torch.enable_grad():
                result = F.batch_norm(raw, None, None, scale, offset, training=True).relu_()
            of_raw = torch.autograd.grad(result, (raw, scale, offset), grad)[0]
            of_weight = dense.conv2d_gradients(of_raw, x, cast, self.geometry, True, True)[1]
            assert of_weight is not None
            of_weight.float()

        return step

    def sparse(self, layout: Layout, weight: Tensor) -> tuple[int, Calls]:
        """The non-zeros of a weight, and our passes with it: those of torch, "compress" and perhaps "both".

        The transposed weight is made in the passes that need it."""
        threads = torch.get_num_threads()
        compressed = Compressed(layout, weight, threads)

        calls = self._fused(compressed, weight) if self.workload.fused else self._plain(compressed, weight)
        return compressed.nonzeros, {
            "compress": lambda: compressed.fill(weight, threads),
            **calls,
        }

    def _plain(self, compressed: Compressed, weight: Tensor) -> Calls:
        x, grad = self.x, self.grad
        return {
            "forward": lambda: passes.forward(compressed, Source(x), None, PLAIN_STORE, torch.empty_like(grad)),
            "input": lambda: passes.input_gradient(compressed, Source(grad), PLAIN_STORE, torch.empty_like(x)),
            "weight": lambda: passes.weight_gradient(compressed, Source(x), Source(grad), torch.empty_like(weight)),
        }

    def _fused(self, compressed: Compressed, weight: Tensor) -> Calls:
        source, of_raw, sink = self.source, self.of_raw, Sink.of_gradient(self.source)
        statistics = Sink(STATISTICS, shift=self.shift)
        if not passes.reaches_all(compressed):
            return self._plain(compressed, weight)
        calls: dict[str, Callable[[], object]] = {
            "forward": lambda: passes.forward(compressed, source, None, statistics, torch.empty_like(self.grad)),
            "input": lambda: passes.input_gradient(compressed, of_raw, sink, torch.empty_like(self.x)),
            "weight": lambda: passes.weight_gradient(compressed, source, of_raw, torch.empty_like(weight)),
        }
        if passes.joint_gradients_fit(compressed):
            calls["both"] = lambda: passes.joint_gradients(
                compressed, source, of_raw, sink, torch.empty_like(self.x), torch.empty_like(weight)
            )
        return calls
