"""The steps of a batch norm that no pass of a convolution can take along: sweeps over all pixels, and folding of sums."""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from autosparse.kernels import training_table as structs
from autosparse.kernels.library import kernels
from autosparse.kernels.memory import empty_pixels, is_images_last, pixels_last
from autosparse.kernels.pixels import STATISTICS, STORE, GradientSource, Sink, Source, address, slices_for


def sweep(source: structs.Source, like: Tensor, sink: Sink, target: Tensor | None) -> Tensor:
    """One pass over all pixels from a source to a sink, all in the order of `like`; returns its sums."""
    extent, images_last = _extent(like), is_images_last(like)
    slices = slices_for(extent.rows * extent.channels if images_last else extent.images * extent.rows * extent.cols)
    native_sink, sums = sink.native(target, extent.channels, slices)
    table = kernels().table_of(like.dtype)
    table.sweep(byref(extent), images_last, byref(source), torch.get_num_threads(), slices, byref(native_sink))
    return sums


def _extent(tensor: Tensor) -> structs.Extent:
    images, channels, rows, cols = tensor.shape
    return structs.Extent(images, rows, cols, channels)


def _stored(source: structs.Source, like: Tensor, images_last: bool) -> Tensor:
    """What a source with tensors like this one stands for, in either order."""
    target = empty_pixels(like, like.shape, images_last)
    if is_images_last(like) == images_last:
        sweep(source, like, Sink(STORE), target)
        return target
    native_sink, _ = Sink(STORE).native(target, like.shape[1], 1)
    table = kernels().table_of(like.dtype)
    table.turn(byref(_extent(like)), images_last, byref(source), torch.get_num_threads(), byref(native_sink))
    return target


def statistics(raw: Tensor, shift: Tensor) -> Tensor:
    """The sums of raw - shift and of its square."""
    return sweep(Source(raw).native(), raw, Sink(STATISTICS, shift=shift), None)


def materialise(source: Source | GradientSource) -> Tensor:
    """What a source stands for as a tensor with channels last."""
    if isinstance(source, Source) and source.folded is None:
        return in_order(source.raw, images_last=False)
    return _stored(source.native(), source.raw, images_last=False)


def in_order(tensor: Tensor, images_last: bool) -> Tensor:
    """The same tensor with images last or with channels last."""
    if is_images_last(tensor) == images_last:
        return tensor if images_last else pixels_last(tensor)
    if not images_last:
        return _stored(Source(tensor).native(), tensor, images_last)
    tensor = pixels_last(tensor)
    return _stored(Source(tensor).native(), tensor, images_last)


def join(first: Source, second: Source) -> Tensor:
    """The sum of a normalised source and another one in the same order, after the ReLU of the first."""
    return _stored(first.joined(second), first.raw, is_images_last(first.raw))


def finish(grad: Tensor, sink: Sink, target: Tensor) -> Tensor:
    """Takes a gradient that is there as a tensor to a sink; `target` may be the gradient itself."""
    return sweep(Source(grad).native(), grad, sink, target)


def fold_statistics(
    raw: Tensor, sums: Tensor, shift: Tensor, epsilon: float, gamma: Tensor | None, beta: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Mean, biased variance and 1 / standard deviation in double; scale and offset of the batch norm with the mean."""
    channels = raw.shape[1]
    moments, folded = torch.empty(3, channels, dtype=torch.float64), torch.empty(3, channels)

    def fold(sums: Tensor, shift: Tensor) -> bool:
        exact = kernels().table.fold_statistics(
            channels, raw.numel() // channels, sums.data_ptr(), shift.data_ptr(), epsilon,
            address(gamma), address(beta), moments.data_ptr(), folded.data_ptr(),
        )  # fmt: skip
        return bool(exact)

    if not fold(sums, shift):  # the mean is too far from the shift: once more around the mean itself
        mean = moments[0].float()
        fold(statistics(raw, mean), mean)
    return moments, folded


def track_statistics(raw: Tensor, moments: Tensor, factor: float, running_mean: Tensor, running_variance: Tensor) -> None:
    """Moves running statistics towards those of a raw value."""
    channels = raw.shape[1]
    kernels().table.track_statistics(
        channels, raw.numel() // channels, moments.data_ptr(), factor, running_mean.data_ptr(), running_variance.data_ptr()
    )


def fold_gradients(raw: Tensor, grad_folded: Tensor, moments: Tensor, gamma: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of gamma and beta, and the coefficients of the raw value's gradient."""
    channels = raw.shape[1]
    of_gamma, of_beta, coefficients = torch.empty(channels), torch.empty(channels), torch.empty(3, channels)
    kernels().table.fold_gradients(
        channels, raw.numel() // channels, grad_folded.data_ptr(), moments.data_ptr(), address(gamma),
        of_gamma.data_ptr(), of_beta.data_ptr(), coefficients.data_ptr(),
    )  # fmt: skip
    return of_gamma, of_beta, coefficients
