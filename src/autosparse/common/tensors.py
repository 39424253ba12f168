"""Exact k-th values and top-k masks, random streams; sharded tensors read and written as whole ones; files of tensors."""

from __future__ import annotations

import hashlib
import math
import operator
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SAMPLE = 20_000
EXACT = 2**24  # float32 counts exactly up to here


def kth_smallest(values: Tensor, k: int) -> Tensor:
    """The k-th smallest element (k counts from 1), exact; on the CPU a strided sample brackets it: large ones need no sort."""
    flat = values.reshape(-1)
    if not 1 <= k <= flat.numel():
        raise ValueError(f"k = {k} is outside 1..{flat.numel()}")
    if flat.numel() < 8 * SAMPLE or flat.device.type != "cpu":  # another device would have to wait for the bracket
        return flat.kthvalue(k).values
    sample = flat[:: flat.numel() // SAMPLE].contiguous()
    middle = k / flat.numel()
    spread = 3 * (middle * (1 - middle) / sample.numel()) ** 0.5 + 2 / sample.numel()
    places = (max(0, int((middle - spread) * len(sample))), min(len(sample) - 1, int((middle + spread) * len(sample))))
    low, high = torch.stack([sample.kthvalue(place + 1).values for place in places]).tolist()
    # On a CPU comparisons into floats are several times faster than into booleans: one of the latter is enough.
    work = torch.clamp(flat, low, high)
    bracket = _few(flat, work == flat)
    ones = torch.split(torch.lt(flat, low, out=work), EXACT)
    below = sum(int(part.sum(dtype=torch.float32)) for part in ones)
    if below < k <= below + bracket.numel():
        return bracket.kthvalue(k - below).values
    return flat.kthvalue(k).values


def _few(values: Tensor, chosen: Tensor) -> Tensor:
    """values[chosen] where few are chosen: eight flags are skipped at a time, as one word."""
    words = values.numel() // 8 * 8
    near = torch.nonzero(chosen[:words].view(torch.int64)).reshape(-1)
    rows = values[:words].view(-1, 8).index_select(0, near).reshape(-1)
    flags = chosen[:words].view(torch.int64).index_select(0, near).view(torch.bool)
    return torch.cat([rows[flags], values[words:][chosen[words:]]])


def top_mask(scores: Tensor, count: int) -> Tensor:
    """Exactly `count` True where the scores are largest; ties go to the lower index, and NaN is largest."""
    total = scores.numel()
    if count <= 0 or count >= total:
        return torch.full(scores.shape, count > 0, dtype=torch.bool, device=scores.device)
    flat = scores.reshape(-1)
    cut = kth_smallest(flat, total - count + 1)
    if flat.device.type != "cpu":
        return _top_without_waiting(flat, cut, count).reshape(scores.shape)
    mask = flat >= cut
    surplus = int(torch.count_nonzero(mask)) - count
    if surplus:
        missed = flat.isnan()  # no comparison is true of them: left out, they would be pruned before anyone sees them
        mask |= missed
        surplus = int(torch.count_nonzero(mask)) - count
        tied = torch.nonzero(missed if cut.isnan() else flat == cut).reshape(-1)
        mask[tied[len(tied) - surplus :]] = False
    return mask.reshape(scores.shape)


def _top_without_waiting(flat: Tensor, cut: Tensor, count: int) -> Tensor:
    """The same mask by operations that a device can queue: the host reads nothing."""
    missed = flat.isnan()
    above = (flat > cut) | (missed & ~cut.isnan())
    tied = (flat == cut) | (missed & cut.isnan())
    return above | (tied & (tied.cumsum(0) <= count - above.sum()))


def split_at(magnitudes: Tensor, below: int) -> Tensor:
    """A bound with `below` of the magnitudes under it: midway to the next one, so that rounding cannot move a weight."""
    flat = magnitudes.reshape(-1)
    lower = kth_smallest(flat, min(below, flat.numel())) if below > 0 else flat.new_zeros(())
    upper = kth_smallest(flat, below + 1) if 0 < below < flat.numel() else lower
    bound = (lower + upper) / 2
    if bound > 0:
        return bound
    # Many zeros, or nothing to cut: below the smallest weight that is not zero, where a threshold can still be learned.
    positive = flat[flat > 0]
    return positive.min() / 2 if positive.numel() else bound


def start_bound(magnitudes: Tensor, below: int) -> Tensor:
    """The same for a soft threshold that starts there: with nothing to prune it is at most 0.1 % of the mean magnitude."""
    bound = split_at(magnitudes, below)
    return bound if below > 0 else torch.minimum(bound, magnitudes.mean() / 1000)


def threshold_for(magnitudes: Tensor, density: float) -> Tensor:
    """A threshold that leaves at least this density above it, and at least one magnitude."""
    keep = max(1, math.ceil(density * magnitudes.numel()))  # rounding down would leave less than the density
    return split_at(magnitudes, magnitudes.numel() - keep)


def threshold_under_ties(magnitudes: Tensor, density: float) -> Tensor:
    """The same where several weights have one magnitude: below all of those that share the last one to be kept."""
    keep = max(1, math.ceil(density * magnitudes.numel()))
    last = kth_smallest(magnitudes, magnitudes.numel() - keep + 1)
    below = magnitudes[magnitudes < last]
    return (last + below.max()) / 2 if below.numel() else last / 2


def random_stream(seed: int, purpose: str) -> torch.Generator:
    """A generator for one purpose, whose numbers are not those that `torch.manual_seed` gives to the weights."""
    digest = hashlib.sha256(f"{purpose} {operator.index(seed)}".encode()).digest()
    # A CPU generator reads only the low 32 bits of its seed. The highest of them is set here, so that no seed below 2**31,
    # this one or another, starts the same stream.
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") | 1 << 31)


def whole(tensor: Tensor) -> Tensor:
    """The full tensor of a sharded parameter (a collective call), any other tensor unchanged."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def assign(target: Tensor, value: Tensor) -> None:
    """Write a whole tensor into a parameter or buffer, sharded or not."""
    with torch.no_grad():
        if hasattr(target, "full_tensor"):
            from torch.distributed.tensor import DTensor, distribute_tensor

            assert isinstance(target, DTensor)
            value = distribute_tensor(value.to(target.dtype), target.device_mesh, target.placements)
        target.copy_(value)


def load_plain(path: Path) -> Any:
    """Tensors and plain values that torch.save wrote; the error for anything else leaves out torch's advice to execute it."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        reason = "it holds more than tensors and plain values"
    except Exception as error:  # whatever a damaged archive makes torch raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise ValueError(f"{path} is damaged, or not a file of autosparse ({reason}); nothing in it was executed")


def precise(tensor: Tensor) -> Tensor:
    """As float64, on the CPU where the device has none."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")
