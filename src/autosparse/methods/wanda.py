"""Wanda: prune a trained network once, by |weight| times the size of its input, without a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import InitVar
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from autosparse.common.batches import feed
from autosparse.common.tensors import top_mask
from autosparse.common.words import few
from autosparse.distributions import counts
from autosparse.layer import Layer, is_transposed_linear
from autosparse.methods.families.base import About, Run, require
from autosparse.methods.families.fixed_mask import write_mask
from autosparse.methods.families.scored import LossFunction, ScoredMask, over_ranks, progress
from autosparse.methods.registry import register


@register
class Wanda(ScoredMask):
    """Prunes a trained network once, by weight times input norm; the zeros stay in later training.

    Scores |w| * ||x||, x the inputs that the weight sees over the calibration batches; the best of every row stay.

    Blocks are pruned in the order of the network: the inputs of a block come from the blocks that are pruned already.
    """

    about = About(
        name="wanda",
        year=2023,
        family="already sparse",
        pruned_gradient="none",
        train_flops="3 f_S, and f_D for every calibration batch and block",
        reference="Sun et al., A Simple and Effective Pruning Approach for Large Language Models, ICLR 2024, arXiv 2306.11695",
    )

    scopes = ("row", "layer")

    sparsity: float = 0.5
    scope: str = "row"
    calibration: InitVar[Iterable[Any] | None] = None

    def __post_init__(self, calibration: Iterable[Any] | None = None) -> None:
        super().__post_init__()
        object.__setattr__(self, "_calibration", calibration)

    def check(self, sp: Run) -> None:
        super().check(sp)
        others = [layer.name for layer in sp.layers if not all(_has_inputs(place.module) for place in layer.places)]
        require(
            not others,
            f"wanda scores linear and convolution layers; {few(others)} are of other kinds: leave them out with exclude",
        )

    def start(self, sp: Run) -> None:
        super().start(sp)
        calibration: Iterable[Any] | None = getattr(self, "_calibration", None)
        if calibration is not None:
            self.score(sp, calibration, None)

    def choose(self, sp: Run, batches: Iterable[Any], loss_fn: LossFunction | None) -> dict[str, Tensor]:
        repeatable = batches if isinstance(batches, Sized) else list(batches)
        run = loss_fn or feed
        sp.model.eval()
        masks: dict[str, Tensor] = {}
        for block in _blocks(sp):
            sizes, batch_count = _squared_inputs(sp, block, repeatable, run)
            sp.ledger.add_dense_steps(batch_count / 3)  # a forward pass is a third of a step
            for layer in block:
                masks[layer.name] = self.best(layer, layer.weight().abs() * _as_weight(layer, sizes[layer.name].sqrt()))
                write_mask(layer, masks[layer.name])
        return masks

    def best(self, layer: Layer, scores: Tensor) -> Tensor:
        """The mask of a layer: the highest scores of every output, or of the layer as a whole; ties by index."""
        if not bool(scores.isfinite().all()):
            raise RuntimeError(f"the scores of {layer.name} are not finite: look at the calibration batches and the weights")
        if self.scope == "layer":
            return top_mask(scores, self._remaining(scores.numel()))
        places = _rows(layer, torch.arange(scores.numel(), device=scores.device).reshape(scores.shape))
        rows = scores.reshape(-1)[places]
        order = rows.argsort(dim=1, descending=True, stable=True)[:, : self._remaining(rows.shape[1])]
        mask = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
        mask[places.gather(1, order)] = True
        return mask.reshape(scores.shape)

    def _remaining(self, size: int) -> int:
        return counts({"weights": (size,)}, {"weights": self.sparsity})["weights"]


def _has_inputs(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | _ConvNd) or is_transposed_linear(module)


def _blocks(sp: Run) -> list[list[Layer]]:
    """Layers in the order of use; neighbours that share a numbered part of the network are one block."""
    order = {name: place for place, name in enumerate(sp.layer_order)}
    layers = sorted(sp.layers, key=lambda layer: order[layer.name])
    return [list(block) for _, block in groupby(layers, key=_block_name)]


def _block_name(layer: Layer) -> str:
    parts = layer.name.split(".")
    numbered = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[: numbered + 1])


def _squared_inputs(
    sp: Run, block: Sequence[Layer], batches: Iterable[Any], run: Callable[[nn.Module, Any], Any]
) -> tuple[dict[str, Tensor], int]:
    """For every layer of the block the sum of squares of each of its inputs, over batches and ranks; and the batches seen."""
    sums: dict[str, Tensor] = {}
    batch_count = 0
    with _listening(block) as inputs, torch.no_grad():
        for batch in progress(batches, f"Wanda {block[0].name}"):
            batch_count += 1
            run(sp.model, batch)
            for name, module, squares in inputs:
                sums[name] = sums.get(name, 0) + _summed(module, squares)
            inputs.clear()
    require(batch_count > 0, "the calibration is empty: Wanda needs at least one batch")
    missed = [layer.name for layer in block if layer.name not in sums]
    require(
        not missed,
        f"the calibration batches do not reach {few(missed)}: give batches that use these layers, or leave them out "
        "with exclude",
    )
    return over_ranks(sums), batch_count


@contextmanager
def _listening(block: Sequence[Layer]) -> Iterator[list[tuple[str, nn.Module, Tensor]]]:
    """A list that fills with the squared inputs of the block's layers while the model runs."""
    inputs: list[tuple[str, nn.Module, Tensor]] = []

    def note(name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        value = args[0].detach()
        inputs.append((name, module, value.to(torch.promote_types(value.dtype, torch.float32)).square()))

    with ExitStack() as hooks:
        for layer in block:
            for place in layer.places:
                hooks.enter_context(place.module.register_forward_pre_hook(partial(note, layer.name)))
        yield inputs


def _summed(module: nn.Module, squares: Tensor) -> Tensor:
    """For each weight of an output the sum of the squares that it is multiplied with."""
    if isinstance(module, _ConvTransposeNd):
        spatial = len(module.kernel_size)
        return squares.sum([dim for dim in range(squares.dim()) if dim != squares.dim() - spatial - 1])
    if not isinstance(module, _ConvNd):
        return squares.reshape(-1, squares.shape[-1]).sum(0)
    # The gradient of a convolution's sum is, for every weight, the sum of what that weight was multiplied with.
    shape = (module.groups, module.in_channels // module.groups, *module.kernel_size)
    weight = torch.zeros(shape, dtype=squares.dtype, device=squares.device, requires_grad=True)
    with torch.enable_grad():
        total = module._conv_forward(squares, weight, None).sum()
    return torch.autograd.grad(total, weight)[0]


def _as_weight(layer: Layer, norms: Tensor) -> Tensor:
    """The norms in the shape of the weight, or one that broadcasts to it."""
    module = layer.places[0].module
    if isinstance(module, _ConvTransposeNd) or is_transposed_linear(module):
        return norms.reshape(-1, *[1] * (len(layer.shape) - 1))
    if not isinstance(module, _ConvNd):
        return norms
    per_group = module.out_channels // module.groups
    return norms.repeat_interleave(per_group, dim=0)


def _rows(layer: Layer, tensor: Tensor) -> Tensor:
    """The tensor as (outputs, weights of an output)."""
    module = layer.places[0].module
    if isinstance(module, _ConvTransposeNd):
        groups = module.groups
        return tensor.reshape(groups, -1, *tensor.shape[1:]).movedim(2, 1).reshape(groups * tensor.shape[1], -1)
    return tensor.movedim(layer.channel_dim, 0).reshape(tensor.shape[layer.channel_dim], -1)
