"""Fused steps beside torch's own: the first one of a module is compared, and what differs runs layer by layer from then on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from autosparse.common.warnings import warn
from autosparse.compute import fused_layers
from autosparse.compute.fused_layers import Normalised
from autosparse.compute.fusion import Fused
from autosparse.compute.rehearsal import Forward, Results, rehearsal, results_of
from autosparse.kernels.library import lanes

# Relative difference that two orders of adding up float32 numbers may make in a whole step.
ROUNDING = 1e-3
# Deep nets amplify rounding. What exceeds it may be this many times what a relative change NOISE of all parameters makes.
NOISE, AMPLIFIED = 1e-6, 100.0
# An activation that rounding moves across 0 changes a gradient by more, if every single step is right by itself.
CROSSED = 0.1

Tensors = Sequence[Tensor | None]


class Proofs:
    """The verdicts of a run, by names in the model. They are saved with it: a resumed run goes on without comparing again."""

    def __init__(self, is_needed: bool = False) -> None:
        self._is_needed = is_needed
        self._compared: dict[str, set[str]] = {}  # modules whose fused forward is right, and the batch norms that it fuses
        self.refused: set[str] = set()  # batch norms whose own fused step differs
        self.given_up: set[str] = set()  # modules whose fused forward differs for any other reason

    def cover(self, module: str, norms: Collection[str]) -> bool:
        """Whether the fused forward of this module, with these batch norms fused, needs no comparison."""
        return not self._is_needed or set(norms) <= self._compared.get(module, set())

    def accept(self, module: str, norms: Iterable[str]) -> None:
        self._compared.setdefault(module, set()).update(norms)

    def refuse(self, norms: Collection[str]) -> None:
        self.refused.update(norms)
        warn(f"fused steps differ from torch's own at {_listed(norms)}: these layers run one by one")

    def give_up(self, module: str) -> None:
        self.given_up.add(module)
        where = f"module {module!r}" if module else "the model"
        warn(f"the fused steps of {where} together differ from its own forward: it runs layer by layer, or fused in parts")

    def refused_inside(self, root: nn.Module, name: str) -> set[nn.Module]:
        """The batch norms in a module of this name that must not be fused."""
        return {module for each, module in root.named_modules(prefix=name) if each in self.refused} if self.refused else set()

    def state_dict(self) -> dict[str, Any]:
        compared = {module: sorted(norms) for module, norms in self._compared.items()}
        return {"compared": compared, "refused": sorted(self.refused), "given_up": sorted(self.given_up)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        compared = {str(module): {str(norm) for norm in norms} for module, norms in state["compared"].items()}
        self.refused, self.given_up = set(map(str, state["refused"])), set(map(str, state["given_up"]))
        self._compared = compared

    def __str__(self) -> str:
        """What was given up; empty where nothing was."""
        refused = f"; not fused, since the results differ from torch's own: {_listed(self.refused)}" if self.refused else ""
        whole = f"; not fused as a whole: {_listed(self.given_up)}" if self.given_up else ""
        return refused + whole


def _listed(names: Collection[str], most: int = 5) -> str:
    shown = [name or "the model" for name in sorted(names)[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


class Verdict(NamedTuple):
    """Whether fused steps give torch's own results; if not, the batch norms that are the cause, where single ones are."""

    is_same: bool
    differing: frozenset[nn.Module] = frozenset()


def compare(root: nn.Module, fused: Fused, arguments: Sequence[Tensor], keywords: Mapping[str, Tensor]) -> Verdict | None:
    """One step of a module on images of this input beside its own, gradients and buffers included; neither leaves a trace.

    None if nothing can be told: its own results are not finite, or a compiled module hides its tensors.
    """
    if any(isinstance(each, torch.jit.ScriptModule) for each in root.modules()):
        return None
    whole, own_forward = (*arguments, *keywords.values()), _by_position(type(root).forward, list(keywords))
    given = _few_images(whole)
    own = _results_or_none(root, own_forward, given)
    if own is None:  # it may need whole batches
        given, own = whole, results_of(root, own_forward, whole)
    if not all(bool(result.isfinite().all()) for result in (*own.values, *own.gradients) if result is not None):
        return None
    ours = _results_or_none(root, _by_position(fused.function, list(keywords)), given)
    if ours is not None and _agree(own, ours):
        return Verdict(True)
    differing = _differing_steps(root, fused, given, list(keywords))
    if differing or ours is None or not _agree(own, results_of(root, own_forward, given)):
        return Verdict(False, frozenset(differing))  # by itself, or since its own results are never the same
    return Verdict(_agree(own, ours, results_of(root, own_forward, given, NOISE), CROSSED))


def _few_images(batch: Sequence[Tensor]) -> Sequence[Tensor]:
    """As many as make a vector and leave the batch's own remainder: the kernels cut fewer images in the same way."""
    sizes = {tensor.shape[:1] for tensor in batch}
    if len(sizes) != 1 or not (size := sizes.pop()):
        return batch
    return [tensor[: lanes() + size[0] % lanes()] for tensor in batch]


def _by_position(forward: Forward, keywords: Sequence[str]) -> Forward:
    """The last arguments become keywords."""

    def called(root: nn.Module, *given: Tensor) -> Any:
        first = len(given) - len(keywords)
        return forward(root, *given[:first], **dict(zip(keywords, given[first:], strict=True)))

    return called


def _results_or_none(root: nn.Module, forward: Forward, arguments: Sequence[Tensor]) -> Results | None:
    try:
        return results_of(root, forward, arguments)
    except Exception:  # a fused step may fail in any way: what follows is torch's own forward
        return None


def _differing_steps(root: nn.Module, fused: Fused, given: Sequence[Tensor], keywords: Sequence[str]) -> set[nn.Module]:
    """Batch norms that differ by themselves, each with its convolution and the input that it has in this pass."""
    differing: set[nn.Module] = set()

    def conv_norm(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor | Normalised) -> Normalised:
        if not _same_step(conv, norm, fused_layers.plain(x) if isinstance(x, Normalised) else x):
            differing.add(norm)
        return fused_layers.conv_norm(conv, norm, x)

    def joined_conv_norm(
        first: Normalised, second: Any, in_place: bool, relu: bool, conv: nn.Conv2d, norm: nn.BatchNorm2d
    ) -> tuple[Tensor, Normalised]:
        total = fused_layers.joined(first, second, in_place, relu)
        return total, conv_norm(conv, norm, total)

    steps: dict[Any, Callable[..., Any]] = {fused_layers.conv_norm: conv_norm, fused_layers.joined_conv_norm: joined_conv_norm}
    try:
        with rehearsal(root), torch.no_grad():  # this pass gives inputs alone: a graph would hold all of them
            _by_position(fused.with_steps(steps), keywords)(root, *(each.detach().clone() for each in given))
    except Exception:  # what it has told by then is true
        pass
    return differing


def _same_step(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor) -> bool:
    pair, x = nn.ModuleList([conv, norm]), x.detach().requires_grad_()
    own = results_of(pair, lambda _, x: norm(conv(x)), [x])
    ours = _results_or_none(pair, lambda _, x: fused_layers.conv_norm_as_tensor(conv, norm, x), [x])
    if ours is None:
        return False
    return _agree(own, ours) or _agree(own, ours, results_of(pair, lambda _, x: norm(conv(x)), [x], NOISE))


def _agree(own: Results, ours: Results, noisy: Results | None = None, of_gradients: float = ROUNDING) -> bool:
    """Whether two results differ by no more than rounding and, if it is given, the noise explain."""
    others = own if noisy is None else noisy
    values = _are_close(ROUNDING, own.values, ours.values, others.values)
    return len(own.values) > 0 and values and _are_close(of_gradients, own.gradients, ours.gradients, others.gradients)


def _are_close(allowed: float, own: Tensors, ours: Tensors, noisy: Tensors) -> bool:
    return len(own) == len(ours) == len(noisy) and all(map(partial(_is_close, allowed), own, ours, noisy))


def _is_close(allowed: float, own: Tensor | None, ours: Tensor | None, noisy: Tensor | None) -> bool:
    """Of gradients, None stands for 0."""
    if own is None or ours is None:
        return all(each is None or not bool(each.any()) for each in (own, ours))
    if own.shape != ours.shape or own.dtype != ours.dtype:
        return False
    if not own.is_floating_point():
        return torch.equal(own, ours)
    by_noise = 0.0 if noisy is None else _size(own - noisy)
    return _size(own - ours) <= allowed * _size(own) + AMPLIFIED * by_noise


def _size(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor))
