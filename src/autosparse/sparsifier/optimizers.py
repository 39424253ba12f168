"""The optimizers of a run: their groups, with the thresholds apart from the weights, and torch's own step hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from autosparse.common.tensors import whole
from autosparse.common.warnings import warn
from autosparse.common.words import few


def build_groups(
    model: nn.Module,
    thresholds: Sequence[nn.Parameter],
    groups: Iterable[Any] | None,
    weight_decay: float | None,
    threshold_decay: float | None,
    coupled_decay: bool = False,
) -> list[dict[str, Any]]:
    """The user's groups (or one of all parameters) without the thresholds, then a group of the thresholds."""
    threshold_ids = {id(threshold) for threshold in thresholds}
    groups = [{"params": list(model.parameters())}] if groups is None else list(groups)
    if groups and not isinstance(groups[0], Mapping):
        groups = [{"params": groups}]
    decay_of_others = _decay("weight_decay", weight_decay)
    built, named = [], False
    for group in groups:
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        named |= any(isinstance(entry, tuple) for entry in params)
        others = [entry for entry in params if id(entry[1] if isinstance(entry, tuple) else entry) not in threshold_ids]
        if others:
            built.append({**decay_of_others, **group, "params": others})
    decay = _decay("threshold_decay", threshold_decay)
    if thresholds:
        # torch wants names for all parameters or for none
        learned = [pair for pair in model.named_parameters() if id(pair[1]) in threshold_ids] if named else list(thresholds)
        # Adam divides coupled decay by its own size, so that its strength is lost; SGD and AdamW ignore the key.
        built.append({"params": learned, **decay, "decoupled_weight_decay": not coupled_decay})
    return built


def _decay(name: str, value: float | None) -> dict[str, float]:
    """A group's decay; None leaves it to the optimizer's default."""
    if value is not None and value < 0:
        raise ValueError(f"{name} = {value}; it must be at least 0")
    return {} if value is None else {"weight_decay": value}


def find_groups(optimizers: Sequence[Optimizer], thresholds: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """The optimizers' groups that hold any of the thresholds."""
    threshold_ids = {id(threshold) for threshold in thresholds}
    return [group for group in _groups(optimizers) if any(id(parameter) in threshold_ids for parameter in group["params"])]


def check_optimizers(optimizers: Sequence[Optimizer], thresholds: Mapping[str, nn.Parameter]) -> None:
    """Every threshold must be trained by one of the optimizers."""
    trained = {id(parameter) for group in _groups(optimizers) for parameter in group["params"]}
    missing = [name for name, threshold in thresholds.items() if id(threshold) not in trained]
    if missing:
        raise ValueError(
            f"the optimizer lacks {len(missing)} of {len(thresholds)} learned thresholds ({few(missing, 3)}): "
            "make it after sparsify, from sp.param_groups(weight_decay=...)"
        )


def warn_without_decay(optimizers: Sequence[Optimizer], thresholds: Iterable[nn.Parameter]) -> None:
    """Say that nothing makes the thresholds rise."""
    if all(not group.get("weight_decay", 0) for group in find_groups(optimizers, thresholds)):
        warn(
            "the thresholds have no weight decay, and decay is what makes them rise: hardly anything will be pruned. "
            "Use sp.param_groups(weight_decay=...), threshold_decay=autosparse.threshold_decay(total=8, lrs=...), "
            "or a target_sparsity."
        )


def _groups(optimizers: Sequence[Optimizer]) -> Iterator[dict[str, Any]]:
    for optimizer in optimizers:
        yield from optimizer.param_groups


def unwrap(optimizer: Any) -> Optimizer:
    """The torch optimizer inside a wrapper such as accelerate's, which has no hooks."""
    while not isinstance(optimizer, Optimizer) or type(optimizer).__name__ == "AcceleratedOptimizer":
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            raise TypeError(f"bind takes a torch.optim.Optimizer, got {type(optimizer).__name__}")
        optimizer = inner
    return optimizer


class Binding:
    """Calls `before` once the gradients are there and `after` when a step was really taken.

    Several optimizers that step one after the other count as one step, from the start of the first to the end of the last.
    """

    def __init__(self, optimizers: Sequence[Optimizer], before: Callable[[], bool], after: Callable[[], None]) -> None:
        self.optimizers = list(optimizers)
        self._before = before
        self._after = after
        self._begun = False  # a GradScaler may skip the first of several optimizers and not the last
        self._handles = [
            self.optimizers[0].register_step_pre_hook(self._pre),
            self.optimizers[-1].register_step_post_hook(self._post),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def scale(self) -> float:
        """What a GradScaler multiplied the gradients by, where a fused optimizer divides inside its step."""
        scale = getattr(self.optimizers[0], "grad_scale", None)
        return 1.0 if scale is None else float(scale)

    def state_of(self, parameter: Tensor) -> dict[str, Any]:
        """The optimizer's state of one parameter; empty before its first step."""
        return next((optimizer.state[parameter] for optimizer in self.optimizers if parameter in optimizer.state), {})

    def _pre(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer itself
        if closure is None:
            self._run_before(optimizer)
            return None
        pending = [True]  # LBFGS calls the closure many times: the work belongs to the first

        def after_backward() -> Any:
            loss = closure()
            if pending:
                pending.clear()
                self._run_before(optimizer)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": after_backward}
        return (args[0], after_backward, *args[2:]), kwargs

    def _run_before(self, optimizer: Optimizer) -> None:
        self._begun = not _overflowed(optimizer) and not _is_rehearsal(optimizer)
        if self._begun and self._before():
            for bound in self.optimizers:
                bound.zero_grad(set_to_none=True)

    def _post(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._begun and not _overflowed(optimizer):
            self._begun = False
            self._after()


def _overflowed(optimizer: Optimizer) -> bool:
    """Fused optimizers get overflowing gradients and skip inside their step; others are not called at all."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)


def _is_rehearsal(optimizer: Optimizer) -> bool:
    """torch.distributed.checkpoint fills an optimizer's state with a step at rate 0 and zero gradients: not a training step."""
    if optimizer.state or any(float(group.get("lr", 1)) for group in optimizer.param_groups):
        return False
    gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
    return not any(gradient is not None and bool(whole(gradient).any()) for gradient in gradients)
