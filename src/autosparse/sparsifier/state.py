"""The state of a Sparsifier, saved, and checked before it is loaded."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor, nn

from autosparse.common.ranks import from_first_rank, mean_over_ranks, ranks
from autosparse.methods.families.base import Method, ReadsOlderStates, Stateful, plain_fields
from autosparse.methods.families.rounds import in_time_of_one_round

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier

VERSION = 1
NAMES_ONLY = ("preset",)  # fields that only give values to others, which are compared


def save_state(sp: Sparsifier) -> dict[str, Any]:
    """Plain values and tensors: torch.load(weights_only=True) reads it back."""
    return {
        "version": VERSION,
        **_identity(sp, sp.method),
        "epoch": sp.epoch,
        "step": sp.step,
        "epoch_start": sp._steps_at_epoch_start,
        "memory": dict(sp.memory),
        "history": list(sp.history),
        "generator": sp.generator.get_state(),
        "ledger": sp.ledger.state_dict(),
        "compute": sp._compute.state_dict(),
        **{name: None if part is None else part.state_dict() for name, part in _parts(sp).items()},
    }


def load_state(sp: Sparsifier, state: Mapping[str, Any]) -> None:
    """Check everything, then continue from `state`."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise ValueError("this is not the state of a Sparsifier: pass what sp.state_dict() returned")
    for key in ("version", *_identity(sp, sp.method)):
        if _has_tensor(state.get(key)):
            raise ValueError(f"the state is damaged: its {key} holds a tensor")
    if state["version"] != VERSION:
        raise ValueError(f"the state has version {state['version']}, this release reads {VERSION}")
    for key in ("memory", "fields", "layers"):
        if not isinstance(state.get(key, {}), Mapping):
            raise ValueError(f"the state is damaged: its {key} is {state[key]!r}, not a dictionary")
    state, identity, method = in_time_of_one_round(state), _identity(sp, sp.method), sp.method
    complete = identity.keys() <= state.keys()
    if complete and state["method"] == identity["method"]:
        method, fields = _as_saved(sp.method, state["fields"])
        state, identity = {**state, "fields": _with_defaults(fields, method)}, _identity(sp, method)
    differences = _differences(state, identity) if complete else []
    if differences:
        raise ValueError(f"this state belongs to another run: {'; '.join(differences)}")
    missing = [key for key in save_state(sp) if key not in state and key != "compute"]  # which older states do not have
    if missing:
        raise ValueError(f"the state is damaged: it lacks {', '.join(missing)}")
    _rehearse(sp, state, method)
    sp.method = method
    for key in _keys(sp):
        _take(sp, key, state[key])
    if sp.ledger.profile is not None and sp._recorder is not None:  # its hooks would record the next pass once more
        sp._recorder.close()
    if "compute" in state:
        sp._compute.load_state_dict(state["compute"], sp.layers, sp.model)


def _as_saved(method: Method, fields: Mapping[str, Any]) -> tuple[Method, Mapping[str, Any]]:
    try:
        return method.as_saved(fields) if isinstance(method, ReadsOlderStates) else (method, fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the state is damaged: its fields cannot be read ({error})") from error


def _rehearse(sp: Sparsifier, state: Mapping[str, Any], method: Method) -> None:
    """Load everything into copies: a state that fails half-way is refused before anything of the run has changed."""
    copied = copy.copy(sp)  # with a generator of its own
    copied.method = method
    copied.ledger = copy.copy(sp.ledger)
    copied.guard, copied.parts = copy.deepcopy((sp.guard, sp.parts))
    key = ""
    try:
        for key in _keys(sp):
            _take(copied, key, state[key])
        key = "compute"
        if key in state:
            sp._compute.check_state(state[key])
        key = "memory"  # which only the method can judge
        copied._alpha = method.annealed(copied)
        method.gate(copied)
    except Exception as error:
        what = f"its {key} cannot be loaded ({type(error).__name__}: {error})"
        raise ValueError(f"the state is damaged or belongs to another run: {what}; nothing was changed") from error


def _keys(sp: Sparsifier) -> list[str]:
    return ["epoch", "step", "epoch_start", "memory", "history", "generator", "ledger", *_parts(sp)]


def _take(sp: Sparsifier, key: str, value: Any) -> None:
    """Load one entry of a state."""
    match key:
        case "epoch" | "step":
            setattr(sp, key, _count(value))
        case "epoch_start":
            sp._steps_at_epoch_start = _count(value)
        case "memory":
            sp.memory = dict(value)
        case "history":
            sp.history = [dict(entry) for entry in value]
        case "generator":
            sp.generator.set_state(value.cpu())  # torch.load(map_location=...) moves it
        case "ledger":
            sp.ledger.load_state_dict(value)
        case _:
            part = _parts(sp)[key]
            if part is not None and value is not None:
                part.load_state_dict(value)


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a whole number of at least 0")
    return value


def share_state(sp: Sparsifier) -> None:
    """Give every rank the state of rank 0, masks included; DDP does so for weights, which may have started apart."""
    if ranks() == 1:
        return
    device = sp.layers[0].stored.device
    state, refusal = from_first_rank(save_state(sp), device), None
    try:
        load_state(sp, state)
    except ValueError as error:
        refusal = error
    # all ranks stop together: one that went on alone would wait for the others forever
    if mean_over_ranks(float(refusal is None), device) < 1:
        raise refusal or ValueError("the ranks were given different runs: all ranks need the same settings")
    for layer in sp.layers:  # DDP leaves buffers alone under broadcast_buffers=False
        for buffer in layer.parametrization.buffers():
            dist.broadcast(buffer, src=0)


def _parts(sp: Sparsifier) -> dict[str, Stateful | None]:
    """What has a state of its own; states of 0.1 hold None for a part that the method does not have."""
    return {"guard": sp.guard, **sp.parts}


def _identity(sp: Sparsifier, method: Method) -> dict[str, Any]:
    return {
        "method": method.about.name,
        "fields": _plain(plain_fields(method)),
        "layers": {layer.name: list(layer.shape) for layer in sp.layers},
        "epochs": sp.epochs,
        "steps_per_epoch": sp.steps_per_epoch,
    }


def _has_tensor(value: Any) -> bool:
    """Whether there is a tensor in what should be plain values: torch refuses to compare it with them."""
    if isinstance(value, Mapping):
        return any(_has_tensor(item) for item in value.values())
    return any(_has_tensor(item) for item in value) if isinstance(value, list | tuple) else isinstance(value, Tensor)


def _plain(value: Any) -> Any:
    """Paths as text, tuples as lists: what torch.load(weights_only=True) reads, and JSON gives back the same."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _with_defaults(fields: Mapping[str, Any], method: Method) -> Mapping[str, Any]:
    """The fields of a saved method; those that it does not mention came later and count as their defaults."""
    unmentioned = [field for field in dataclasses.fields(method) if field.name not in fields]
    defaults = {field.name: field.default for field in unmentioned if field.default is not dataclasses.MISSING}
    defaults |= {field.name: field.default_factory() for field in unmentioned if callable(field.default_factory)}
    if not defaults:
        return fields
    values = plain_fields(dataclasses.replace(method, **defaults))  # a method may work out a default from other fields
    return {**fields, **{name: values[name] for name in defaults}}


def _differences(saved: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    if saved["method"] != here["method"]:
        return [f"its method is {saved['method']}, this one's {here['method']}"]
    before, now = ({name: of[name] for name in ("epochs", "steps_per_epoch")} | _plain(of["fields"]) for of in (saved, here))
    names = [name for name in (*now, *sorted(before.keys() - now.keys())) if name not in NAMES_ONLY]
    differences = [
        f"{name} was {before.get(name)!r}, is {now.get(name)!r}" for name in names if before.get(name) != now.get(name)
    ]
    shapes, shapes_here = saved["layers"], here["layers"]
    for where, only in (("the state", shapes.keys() - shapes_here.keys()), ("this model", shapes_here.keys() - shapes.keys())):
        differences += [f"layers only in {where}: {', '.join(sorted(only))}"] * bool(only)
    differences += [
        f"{name} has shape {shapes[name]} in the state, {shapes_here[name]} here"
        for name in shapes
        if name in shapes_here and shapes[name] != shapes_here[name]
    ]
    return differences


class Restart:
    """After the model's load_state_dict: the start anew, if the state was a plain one. A copy of the model has an idle one."""

    def __init__(self, sp: Sparsifier | None) -> None:
        self.sp = sp

    def __call__(self, model: nn.Module, incompatible_keys: Any) -> None:
        if self.sp is not None:
            start_again_if_loaded(self.sp)

    def __deepcopy__(self, memo: dict[int, Any]) -> Restart:
        return Restart(None)


def start_again_if_loaded(sp: Sparsifier) -> None:
    """Before the first step: thresholds and masks from plain weights that load_state_dict has brought."""
    parts = [layer.parametrization for layer in sp.layers if layer.attached]
    if any(part.took_plain_weight for part in parts):
        for part in parts:
            part.took_plain_weight = False
        if sp.step == 0:
            sp._started = False
            sp._start()
