"""GradMax: layers start narrow and grow; new channels are those that give the next step the largest gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from autosparse.common.words import few
from autosparse.layer import Layer
from autosparse.methods.families.base import About, Run, Stateful, Traits, require
from autosparse.methods.families.fixed_mask import FixedMask, mask_of, write_mask
from autosparse.methods.families.scored import over_ranks
from autosparse.methods.registry import register
from autosparse.methods.threesp import channel_notes
from autosparse.parametrizations import Masked
from autosparse.structure.tracing import CannotFollow
from autosparse.structure.wiring import Wiring, wire

_CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class Space:
    """The channels between a layer and the one that reads them, in the order in which they grow."""

    maker: str
    reader: str
    channels: tuple[int, ...]


@dataclass
class Growth:
    """What is collected in the step before layers grow; nothing of it outlives that step."""

    spaces: list[Space]
    sums: dict[int, Tensor] = field(default_factory=dict)
    prepared_for: int = 0  # the step that hooks are set up for, or that needs none

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class Growing(Masked):
    """A mask of channels that grows."""

    def __init__(self, weight: Tensor, module: nn.Module) -> None:
        super().__init__(weight)
        self._module = (module,)  # in a tuple: the module holds this one, not the other way round

    def harden(self, weight: Tensor) -> None:
        stop_listening(self._module[0])


class _Listener:
    """Hooks on two layers: adds up the gradient of a direct map from the first one's input to the other's output."""

    def __init__(self, growth: Growth, number: int, maker: nn.Module, reader: nn.Module) -> None:
        self.growth, self.number, self.maker, self.reader = growth, number, maker, reader
        self.inputs: list[Tensor] = []

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled():
            self.inputs = [args[0].detach()]

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        if self.inputs and output.requires_grad:
            output.register_hook(partial(self.add, self.inputs.pop()))  # type: ignore[no-untyped-call]

    def add(self, data: Tensor, gradient: Tensor) -> None:
        found = direct_gradient(self.maker, self.reader, data, gradient.detach())
        before = self.growth.sums.get(self.number)
        self.growth.sums[self.number] = found if before is None else before + found


def direct_gradient(maker: nn.Module, reader: nn.Module, data: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of a linear map of zeros from a layer's input to the output of the one that reads it.

    For convolutions its kernel covers what both cover together: k1 + s1 (k2 - 1), with stride s1 s2.
    """
    dtype = torch.promote_types(data.dtype, torch.float32)
    data, gradient = data.to(dtype), gradient.to(dtype)
    if not isinstance(maker, _ConvNd) or not isinstance(reader, _ConvNd):
        return gradient.reshape(-1, gradient.shape[-1]).T @ data.reshape(-1, data.shape[-1])
    kernel = [a + s * (b - 1) for a, b, s in zip(maker.kernel_size, reader.kernel_size, maker.stride, strict=True)]
    stride = [a * b for a, b in zip(maker.stride, reader.stride, strict=True)]
    edges = zip(_whole(maker.padding), _whole(reader.padding), maker.stride, strict=True)
    padding = [own + stride * further for own, further, stride in edges]
    weight = torch.zeros((gradient.shape[1], data.shape[1], *kernel), dtype=dtype, device=data.device, requires_grad=True)
    with torch.enable_grad():
        output = _CONVOLVE[len(kernel)](data, weight, stride=stride, padding=padding)
    return torch.autograd.grad(output, weight, gradient)[0]


def outgoing(direct: Tensor, maker: nn.Module, reader: nn.Module, count: int) -> Tensor:
    """The top right singular vectors of the direct gradient, one row per new channel in the shape (outputs, *kernel)."""
    if not isinstance(maker, _ConvNd) or not isinstance(reader, _ConvNd):
        return _top(direct.T, count)
    # M[(input, a), (output, b)] = direct[output, input, a + s1 b]
    sizes, strides = reader.kernel_size, maker.stride
    patches = direct
    for axis, (own, size, stride) in enumerate(zip(maker.kernel_size, sizes, strides, strict=True)):
        patches = patches.unfold(2 + axis, own, stride)
        assert patches.shape[2 + axis] == size
    spatial = len(sizes)
    inside, positions = list(range(2 + spatial, 2 + 2 * spatial)), list(range(2, 2 + spatial))
    matrix = patches.permute(1, *inside, 0, *positions).reshape(direct.shape[1] * math.prod(maker.kernel_size), -1)
    return _top(matrix, count).reshape(-1, direct.shape[0], *sizes)


def _top(matrix: Tensor, count: int) -> Tensor:
    _, _, vectors = torch.linalg.svd(matrix.double().cpu(), full_matrices=False)
    # singular vectors have no sign of their own: the largest entry is positive, so that all machines agree
    signs = vectors.gather(1, vectors.abs().argmax(1, keepdim=True)).sign()
    rows: Tensor = (vectors * signs)[:count]
    if len(rows) < count:  # more channels than directions: they begin again
        rows = rows.repeat(-(-count // len(rows)), 1)[:count]
    return rows.to(matrix)


def _whole(padding: str | tuple[int, ...]) -> tuple[int, ...]:
    assert not isinstance(padding, str)  # `are_alike` has refused words
    return padding


@register
class GradMax(FixedMask):
    """Grows channels during training, along the top singular vectors of the gradient.

    Starts with a part of the channels between two layers and adds the rest during training.
    """

    about = About(
        name="gradmax",
        year=2022,
        family="sparse to sparse",
        pruned_gradient="none",
        train_flops="3 f_S, f_S grows with the square of the width",
        reference="Evci et al., GradMax: Growing Neural Networks using Gradient Information, ICLR 2022, arXiv 2201.05125",
        budget="budgeted",
    )
    facts = Traits(needs_example=True)

    start_width: float = 0.25
    final_width: float = 1.0
    begin: float = 0.13
    end: float = 0.5
    growths: int = 12
    scale: float = 0.5
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 < self.start_width <= self.final_width <= 1,
            f"start_width = {self.start_width} grows to final_width = {self.final_width}: 0 < start_width <= final_width <= 1",
        )
        require(
            0 <= self.begin <= self.end <= 1, f"begin = {self.begin}, end = {self.end}; they are parts of the run, the end last"
        )
        require(self.growths >= 1, f"growths = {self.growths}; it must be at least 1")
        require(self.scale > 0, f"scale = {self.scale}; it must be above 0")
        require(self.epsilon >= 0, f"epsilon = {self.epsilon}; it must be at least 0")

    def parts(self, sp: Run) -> dict[str, Stateful]:
        wiring = wire(sp.model, sp.layers, sp.example_input, self.about.name)
        spaces = find_spaces(wiring, sp)
        if not spaces:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in list(wiring.stay.items())[:5])
            raise CannotFollow(f"gradmax grows channels that one layer makes and one reads; this model has none. {reasons}")
        return {"wiring": wiring, "growth": Growth(spaces)}

    def parametrization(self, layer: Layer, sp: Run) -> Growing:
        return Growing(layer.stored, layer.places[0].module)

    def schedule(self, total_steps: int) -> list[int]:
        """The steps after which layers grow, rising."""
        first, last = max(1, round(self.begin * total_steps)), max(1, round(self.end * total_steps))
        gaps = max(1, self.growths - 1)
        return sorted({round(first + (last - first) * number / gaps) for number in range(self.growths)})

    def due(self, sp: Run) -> bool:
        """Whether layers grow after step sp.step."""
        return sp.step in self.schedule(sp.total_steps)

    def width(self, sp: Run, step: int) -> float:
        """The share of channels after a step."""
        steps = self.schedule(sp.total_steps)
        done = sum(each <= step for each in steps) / len(steps)
        return self.start_width + (self.final_width - self.start_width) * done

    def at_target(self, sp: Run) -> bool:
        return sp.step >= self.schedule(sp.total_steps)[-1]

    def counts(self, sp: Run, step: int) -> list[int]:
        """Channels of every space after a step: at least one."""
        width = self.width(sp, step)
        return [max(1, int(width * len(space.channels) + 0.5)) for space in sp.parts["growth"].spaces]

    def start(self, sp: Run) -> None:
        super().start(sp)
        self.set_widths(sp, self.counts(sp, 0))
        self.listen(sp)

    def gate(self, sp: Run) -> float:
        self.listen(sp)  # after a step and after loading alike
        return 0.0

    def after_step(self, sp: Run) -> None:
        super().after_step(sp)
        if self.due(sp):
            self.grow(sp)

    def listen(self, sp: Run) -> None:
        """Watch the step that decides on new channels, and no other."""
        growth: Growth = sp.parts["growth"]
        if growth.prepared_for == sp.step + 1:  # asked again between backward and the step
            return
        growth.prepared_for = sp.step + 1
        growth.sums.clear()
        modules = {layer.name: layer.places[0].module for layer in sp.layers}
        for module in modules.values():
            stop_listening(module)
        if sp.step + 1 not in self.schedule(sp.total_steps):
            return
        for number, space in enumerate(growth.spaces):
            maker, reader = modules[space.maker], modules[space.reader]
            if are_alike(maker, reader):
                listener = _Listener(growth, number, maker, reader)
                maker.register_forward_pre_hook(listener.before)
                reader.register_forward_hook(listener.after)

    def grow(self, sp: Run) -> None:
        growth: Growth = sp.parts["growth"]
        before, after = self.counts(sp, sp.step - 1), self.counts(sp, sp.step)
        layers = {layer.name: layer for layer in sp.layers}
        fresh = {}
        sums = over_ranks({str(number): growth.sums[number] for number in sorted(growth.sums)})
        for number, space in enumerate(growth.spaces):
            count = after[number] - before[number]
            if not count:
                continue
            maker, reader = layers[space.maker], layers[space.reader]
            directions = None
            if are_alike(maker.places[0].module, reader.places[0].module):
                if str(number) not in sums:
                    raise RuntimeError(
                        f"gradmax saw no gradient between {space.maker} and {space.reader} at step {sp.step}: it listens with "
                        "hooks, which compiled code leaves out; run the steps at which it grows eagerly "
                        f"(torch.compiler.set_stance('force_eager')): {self.schedule(sp.total_steps)[:5]} ..."
                    )
                directions = outgoing(sums[str(number)], maker.places[0].module, reader.places[0].module, count)
            fresh[number] = directions
        norms = {number: self._norms(sp, growth.spaces[number]) for number in fresh}
        self.set_widths(sp, after)
        for number, directions in fresh.items():
            space = growth.spaces[number]
            self._fill(sp, space, space.channels[before[number] : after[number]], directions, norms[number])

    def set_widths(self, sp: Run, counts: list[int]) -> None:
        """Masks for these numbers of channels; optimizer state of what is new is 0 already."""
        wiring: Wiring = sp.parts["wiring"]
        kept = torch.ones(wiring.count, dtype=torch.bool)
        for space, count in zip(sp.parts["growth"].spaces, counts, strict=True):
            kept[list(space.channels[count:])] = False
        for layer in sp.layers:
            write_mask(layer, wiring.mask(layer.name, kept.to(layer.stored.device), layer.shape))

    def _norms(self, sp: Run, space: Space) -> tuple[Tensor, Tensor]:
        """Mean L2 norms of what there is: of a channel's weights in the layer that makes it, and in the one that reads it."""
        wiring: Wiring = sp.parts["wiring"]
        found = []
        for layer, side in self._sides(sp, space):
            ids = wiring.layers[layer.name].dims[side]
            squares = layer.weight().double().square().movedim(side, 0).reshape(layer.shape[side], -1).sum(1)
            sums = torch.zeros(wiring.count, dtype=squares.dtype, device=squares.device)
            index = torch.from_numpy(ids).to(squares.device)
            sums.index_add_(0, index.clamp_min(0), squares * (index >= 0))
            active = mask_of(layer).movedim(side, 0).reshape(layer.shape[side], -1).any(1)
            of_space = torch.zeros(wiring.count, dtype=torch.bool, device=squares.device)
            of_space[index[active & (index >= 0)]] = True
            norms = sums.sqrt()
            found.append((norms * of_space).sum() / of_space.sum())
        return found[0], found[1]

    def _sides(self, sp: Run, space: Space) -> list[tuple[Layer, int]]:
        wiring: Wiring = sp.parts["wiring"]
        layers = {layer.name: layer for layer in sp.layers}
        makes, reads = wiring.layers[space.maker].makes, wiring.layers[space.reader].reads
        assert makes is not None
        assert reads is not None
        return [(layers[space.maker], makes), (layers[space.reader], reads)]

    def _fill(
        self, sp: Run, space: Space, channels: tuple[int, ...], directions: Tensor | None, norms: tuple[Tensor, Tensor]
    ) -> None:
        """Weights of new channels: almost none in, the chosen directions out, and norms between that change nothing."""
        wiring: Wiring = sp.parts["wiring"]
        (maker, makes), (reader, reads) = self._sides(sp, space)
        for place, channel in enumerate(channels):
            # a batch norm gives any filter the same size, and a tiny one gradients that are as much too large
            incoming = 1.0 if self._is_normed(sp, wiring.vectors[channel]) else self.epsilon
            for layer, side, norm, scale in ((maker, makes, norms[0], incoming), (reader, reads, norms[1], self.scale)):
                ids = wiring.layers[layer.name].dims[side]
                slices = (torch.from_numpy(ids) == channel).nonzero().reshape(-1)
                stored = layer.stored.detach().movedim(side, 0)
                if layer is reader and directions is not None:
                    vector = directions[place].reshape(1, *stored.shape[1:])
                else:
                    vector = torch.rand((len(slices), *stored.shape[1:]), generator=sp.generator)
                vector = vector.to(stored.device, torch.float64)
                vector = vector / torch.linalg.vector_norm(vector).clamp_min(1e-12) * (norm.to(stored.device) * scale)
                mask = mask_of(layer).movedim(side, 0)
                first, last = int(slices[0]), int(slices[-1]) + 1
                stored[first:last] = vector.to(stored.dtype) * mask[first:last]
            self._reset(sp, wiring.vectors[channel])

    def _is_normed(self, sp: Run, keys: Iterable[str]) -> bool:
        return any(isinstance(sp.model.get_submodule(key.rpartition(".")[0]), _NormBase) for key in keys)

    def _reset(self, sp: Run, places: Mapping[str, Any]) -> None:
        """Biases 0, and norms that leave a channel as it is."""
        for key, indices in places.items():
            name, _, tensor = key.rpartition(".")
            module = sp.model.get_submodule(name)
            is_norm = isinstance(module, _NormBase | nn.GroupNorm)
            value = getattr(module, tensor).detach()
            value[torch.from_numpy(indices).to(value.device)] = 1.0 if is_norm and tensor in ("weight", "running_var") else 0.0

    def notes(self, sp: Run) -> list[str]:
        spaces: list[Space] = sp.parts["growth"].spaces
        pairs = [f"{space.maker} to {space.reader}" for space in spaces]
        return [f"grows the channels from {few(pairs)}", *channel_notes(sp.parts["wiring"])]


def stop_listening(module: nn.Module) -> None:
    """Remove this method's hooks; found by their kind, so that copies of a model lose theirs as well."""
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key in [key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), _Listener)]:
            del hooks[key]


def are_alike(maker: nn.Module, reader: nn.Module) -> bool:
    """Whether a direct map between the two is one of their kind; others grow at random, as the authors' do."""
    if isinstance(maker, nn.Linear) and isinstance(reader, nn.Linear):
        return True
    if not isinstance(maker, _ConvNd) or not isinstance(reader, _ConvNd):
        return False
    return len(maker.kernel_size) == len(reader.kernel_size) and _is_plain(maker) and _is_plain(reader)


def _is_plain(layer: _ConvNd) -> bool:
    if isinstance(layer, _ConvTransposeNd) or isinstance(layer.padding, str):
        return False
    return layer.padding_mode == "zeros" and set(layer.dilation) == {1}


def find_spaces(wiring: Wiring, sp: Run) -> list[Space]:
    """Channels that one layer alone makes and one other alone reads."""
    makers: dict[int, list[str]] = {}
    readers: dict[int, list[str]] = {}
    for name in sp.layer_order:
        slices = wiring.layers[name]
        for side, table in ((slices.makes, makers), (slices.reads, readers)):
            for channel in slices.of(side):
                table.setdefault(channel, []).append(name)
    found: dict[tuple[str, str], list[int]] = {}
    heads = {channel for ids in wiring.heads.values() for channel in ids.tolist()}
    for channel in range(wiring.count):
        made, read = makers.get(channel, []), readers.get(channel, [])
        if len(made) == len(read) == 1 and channel not in heads:
            found.setdefault((made[0], read[0]), []).append(channel)
    order = {name: place for place, name in enumerate(sp.layer_order)}
    pairs = sorted(found, key=lambda pair: order[pair[0]])
    return [Space(*pair, tuple(found[pair])) for pair in pairs if len(found[pair]) > 1]
