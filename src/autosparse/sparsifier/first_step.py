"""What sparsifying costs a trained model: the loss of the first training batch beside that of the plain model."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autosparse.common.ranks import from_first_rank, leads, ranks
from autosparse.common.tensors import is_sharded
from autosparse.common.warnings import warn
from autosparse.cost.count import tensors_in
from autosparse.cost.recorder import has_compiled_parts
from autosparse.sparsifier.plain_pass import plain_output
from autosparse.sparsifier.trained import is_trained

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier

RISE = 0.1  # of the loss, or of the outputs where the loss cannot be known
NEGLIGIBLE = 1e-3  # of a loss, or the part of a weight that a start may take away unnoticed
ENTRIES = 2**24  # of the outputs: enough of a batch to judge by


class FirstStep:
    """Waits for the first training forward of a model that the start has changed; gone after the first step."""

    def __init__(self, sp: Sparsifier | None) -> None:
        self._sp = sp
        self._handles: list[Any] = []
        self._plain: dict[str, Tensor] = {}  # the weights as they were before the start
        self._module: nn.Module | None = None  # the one that is compared
        self._expected: list[Tensor] | None = None
        self._losses: tuple[float, float] | None = None
        self._change = 0.0

    def __deepcopy__(self, memo: dict[int, Any]) -> FirstStep:
        return FirstStep(None)  # a copy of a model may never train: it compares nothing

    @property
    def waits(self) -> bool:
        """Whether a comparison is still to come."""
        return self._sp is not None and bool(self._handles)

    def watch(self, modules: Iterable[nn.Module]) -> None:
        """Compare at the first of these modules that is called."""
        for module in modules:
            self._handles += [
                # before the recorder's, which would count this pass as well
                module.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True),
                module.register_forward_hook(self._after),
            ]

    def before_start(self) -> None:
        """Keep the weights of a trained model: a method may store its zeros in them."""
        self.close()
        layers = self._sp.layers if self._sp else []
        weights = {layer.name: layer.weight() for layer in layers if not is_sharded(layer.stored)}
        if self._sp and len(weights) == len(layers) and is_trained(self._sp.model, weights.values()):
            self._plain = {name: weight.clone() for name, weight in weights.items()}

    def after_start(self) -> None:
        """Watch a model whose effective weights are no longer what they were."""
        if self._sp is None or not self._plain:
            return
        if any(_differs(layer.effective(), self._weights()[layer.name]) for layer in self._sp.layers):
            self.watch([self._sp.model])
        for layer in self._sp.layers:
            if torch.equal(self._plain[layer.name], layer.weight()):
                del self._plain[layer.name]  # it is stored: no need for a copy

    def agree(self) -> None:
        """Let all processes compare or none: a model whose parts exchange data would wait for the others forever."""
        sp = self._sp
        if sp is None or ranks() == 1:
            return
        if not from_first_rank(self.waits, sp.layers[0].stored.device):
            self.close()
        elif not self.waits:
            self.watch([sp.model])

    def finish(self) -> None:
        """At the first optimizer step: say what was seen, once."""
        sp, losses, change = self._sp, self._losses, self._change
        if self.waits and "torch._dynamo" in sys.modules:
            self._sp = None  # compiled code may have passed the hooks by; without them it would be compiled again
        else:
            self.close()
        if sp is None or sp.step:
            return
        cost = ""
        if losses is not None and losses[1] - losses[0] > max(NEGLIGIBLE, RISE * abs(losses[0])):
            cost = f"the loss of the first batch is {losses[1]:.4g}, that of the plain model {losses[0]:.4g}"
        elif losses is None and change > RISE:
            cost = f"the outputs for the first batch differ from the plain model's by {change:.0%}"
        if cost and leads():
            what = f"{sp.method.about.name} starts with {sp.sparsity():.0%} zeros in a trained model"
            warn(f"{what}: {cost}. {sp.method.traits.start_gently}")

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._plain, self._module, self._expected, self._losses = [], {}, None, None, None

    def _weights(self) -> dict[str, Tensor]:
        assert self._sp is not None
        stored = {layer.name: self._plain.get(layer.name, layer.weight()) for layer in self._sp.layers}
        return {layer.name: layer.parametrization.unpruned(stored[layer.name]) for layer in self._sp.layers}

    def _can_compare(self) -> bool:
        sp = self._sp
        if sp is None or sp.step or not sp.layers[0].attached or any(is_sharded(layer.stored) for layer in sp.layers):
            return False
        return not sp._compute.skips_zeros and not has_compiled_parts(sp.model)

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or torch.jit.is_tracing() or self._sp is None:  # type: ignore[attr-defined,no-untyped-call]
            return
        if not module.training or not torch.is_grad_enabled() or self._module is not None:
            return
        if not self._can_compare():
            self.close()
            return
        try:
            output = plain_output(module, self._sp.layers, self._weights(), args, kwargs)
            self._module, self._expected = module, list(_numbers(output))
        except Exception:  # what only this pass cannot do is no reason to stop the user's
            self.close()

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        expected = self._expected
        if expected is None or module is not self._module:
            return
        found = list(_numbers(output))
        self.close()
        if [tensor.shape for tensor in found] != [tensor.shape for tensor in expected]:
            return
        for before, now in zip(expected, found, strict=True):
            if not now.requires_grad:
                continue
            if now.numel() == 1:
                self._losses = float(before), float(now.detach())
            else:
                before = _some(before).clone()
                self._change = _change(before, _some(now.detach()))
                now.register_hook(  # type: ignore[no-untyped-call]
                    partial(self._see_gradient, before, now.detach(), now._version)
                )
            return

    def _see_gradient(self, before: Tensor, now: Tensor, version: int, gradient: Tensor) -> None:
        if self._losses is None and now._version == version:
            self._losses = cross_entropies(before, _some(now), _some(gradient))


def _numbers(output: Any) -> Iterable[Tensor]:
    """The tensors of an output that can carry a gradient; a `loss` among them comes first."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    output = vars(output) if hasattr(output, "__dataclass_fields__") and not isinstance(output, Mapping) else output
    return (tensor for tensor in tensors_in((loss, output)) if tensor.is_floating_point())


def _some(tensor: Tensor) -> Tensor:
    """As many of the first samples as make a judgement."""
    samples = max(1, ENTRIES * len(tensor) // max(1, tensor.numel())) if tensor.dim() else 1
    return tensor[:samples] if tensor.dim() else tensor


def _differs(effective: Tensor, weight: Tensor) -> bool:
    return bool((effective - weight).norm() > NEGLIGIBLE * weight.norm())


def _change(before: Tensor, now: Tensor) -> float:
    """How far outputs have moved, beside how far they lie apart."""
    before, now = before.float(), now.float()
    apart = (before - before.mean()).norm()
    return float((now - before).norm() / apart) if float(apart) else 0.0


def cross_entropies(before: Tensor, now: Tensor, gradient: Tensor) -> tuple[float, float] | None:
    """The mean cross-entropies of both outputs, if the gradient is that of a cross-entropy: it then tells the labels.

    Of a softmax p with label y it is c (p - 1_y): a row adds up to 0 and is negative at the label alone.
    """
    for dim in (1, -1) if gradient.dim() > 2 else (-1,):
        rows = gradient.float().movedim(dim, -1).flatten(0, -2)
        rows_used = rows.abs().sum(-1) > 0  # the others are padding
        rows = rows[rows_used]
        if not len(rows) or rows.shape[-1] < 2:
            continue
        size, negative = rows.abs().sum(-1), (-rows).clamp_min(0).sum(-1)
        lowest, labels = rows.min(-1)
        fits = (rows.sum(-1).abs() < 0.02 * size) & (-lowest > 0.9 * negative)
        if float(size[fits].sum()) > 0.95 * float(size.sum()):  # where the model is sure, rounding hides the label's part
            scores = [output.float().movedim(dim, -1).flatten(0, -2)[rows_used] for output in (before, now)]
            plain, sparse = (float(F.cross_entropy(score, labels)) for score in scores)
            return plain, sparse
    return None
