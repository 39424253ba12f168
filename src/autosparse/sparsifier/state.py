"""The Sparsifier's own state, saved and checked on the way back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from autosparse.common.ranks import from_first_rank, mean_over_ranks, ranks
from autosparse.methods.families.base import Stateful, plain_fields
from autosparse.methods.families.rounds import in_time_of_one_round

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier

VERSION = 1


def save(run: Sparsifier) -> dict[str, Any]:
    """Plain values and tensors: torch.load(weights_only=True) reads it back."""
    return {
        "version": VERSION,
        **_identity(run),
        "epoch": run.epoch,
        "step": run.step,
        "epoch_start": run._steps_at_epoch_start,
        "memory": dict(run.memory),
        "history": list(run.history),
        "generator": run.generator.get_state(),
        "ledger": run.ledger.state_dict(),
        "compute": run._compute.state_dict(),
        **{name: None if part is None else part.state_dict() for name, part in _parts(run).items()},
    }


def load(run: Sparsifier, state: Mapping[str, Any]) -> None:
    """Check everything, then continue from `state`."""
    if "version" not in state:
        raise ValueError("this is not the state of a Sparsifier: pass what sp.state_dict() returned")
    if state["version"] != VERSION:
        raise ValueError(f"the state has version {state['version']}, this release reads {VERSION}")
    state, identity = in_time_of_one_round(state), _identity(run)
    differences = _differences(state, identity) if identity.keys() <= state.keys() else []
    if differences:
        raise ValueError(f"this state belongs to another run: {'; '.join(differences)}")
    missing = [key for key in save(run) if key not in state and key != "compute"]  # which older states do not have
    if missing:
        raise ValueError(f"the state is damaged: it lacks {', '.join(missing)}")
    run.epoch = state["epoch"]
    run.step, run._steps_at_epoch_start = state["step"], state["epoch_start"]
    run.memory = dict(state["memory"])
    run.history = list(state["history"])
    run.generator.set_state(state["generator"].cpu())  # torch.load(map_location=...) moves it
    run.ledger.load_state_dict(state["ledger"])
    if run.ledger.profile is not None and run._recorder is not None:  # its hooks would make the next pass another one
        run._recorder.close()
        run._recorder = None
    if "compute" in state:
        run._compute.load_state_dict(state["compute"], run.layers, run.model)
    for name, part in _parts(run).items():
        if part is not None and state[name] is not None:
            part.load_state_dict(state[name])


def share(run: Sparsifier) -> None:
    """Give every rank the state of rank 0, masks included; DDP does so for weights, which may have started apart."""
    if ranks() == 1:
        return
    device = run.layers[0].stored.device
    state, refusal = from_first_rank(save(run), device), None
    try:
        load(run, state)
    except ValueError as error:
        refusal = error
    # all ranks stop together: one that went on alone would wait for the others forever
    if mean_over_ranks(float(refusal is None), device) < 1:
        raise refusal or ValueError("another rank was given another run than this one: all ranks need the same settings")
    for layer in run.layers:  # DDP leaves buffers alone under broadcast_buffers=False
        for buffer in layer.parametrization.buffers():
            dist.broadcast(buffer, src=0)


def _parts(run: Sparsifier) -> dict[str, Stateful | None]:
    """What has a state of its own; states of 0.1 hold None for a part that the method does not have."""
    return {"guard": run.guard, **run.parts}


def _identity(run: Sparsifier) -> dict[str, Any]:
    return {
        "method": run.method.about.name,
        "fields": _plain(plain_fields(run.method)),
        "layers": {layer.name: list(layer.shape) for layer in run.layers},
        "epochs": run.epochs,
        "steps_per_epoch": run.steps_per_epoch,
    }


def _plain(value: Any) -> Any:
    """Paths as text, tuples as lists: what torch.load(weights_only=True) reads, and JSON gives back the same."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _differences(saved: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    if saved["method"] != own["method"]:
        return [f"its method is {saved['method']}, this one's {own['method']}"]
    found = [f"{name} was {saved[name]}, is {own[name]}" for name in ("epochs", "steps_per_epoch") if saved[name] != own[name]]
    before, now = _plain(saved["fields"]), own["fields"]
    found += [
        f"{name} was {before.get(name)!r}, is {now.get(name)!r}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    gone, new = saved["layers"].keys() - own["layers"].keys(), own["layers"].keys() - saved["layers"].keys()
    found += [f"layers only in the state: {', '.join(sorted(gone))}"] * bool(gone)
    found += [f"layers only in this model: {', '.join(sorted(new))}"] * bool(new)
    found += [
        f"{name} has shape {saved['layers'][name]} in the state, {own['layers'][name]} here"
        for name in saved["layers"].keys() & own["layers"].keys()
        if saved["layers"][name] != own["layers"][name]
    ]
    return found
