"""Training in rounds: each trains all epochs of a run, time begins again with it, and weights may go back to earlier values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from autosparse.common.tensors import assign
from autosparse.layer import Layer
from autosparse.methods.families.base import Method, Run, Traits, require
from autosparse.methods.families.fixed_mask import FixedMask, mask_of
from autosparse.methods.families.scored import PRUNED, RankedMask, select


@dataclass(frozen=True, kw_only=True)
class Rounds(Method):
    """A method that trains more than once; `traits.rounds` says how often, and `epochs` are those of one round."""

    rounds: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rounds >= 1, f"rounds = {self.rounds}; it must be at least 1")

    def start(self, sp: Run) -> None:
        super().start(sp)
        sp.memory["round"] = 0

    def next_round(self, sp: Run) -> bool:
        """Begin the next round; False when all are done."""
        number = sp.memory["round"] + 1
        if number >= self.traits.rounds:
            return False
        self.begin_round(sp, number)
        sp.memory["round"] = number
        sp.restart()
        return True

    def at_target(self, sp: Run) -> bool:
        return bool(sp.memory["round"] == self.traits.rounds - 1)

    def begin_round(self, sp: Run, number: int) -> None:
        """Prune and rewind for round `number`, counted from 0."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class MagnitudeRounds(Rounds, RankedMask, FixedMask):
    """Round 0 trains the dense net; before round r = 1..rounds the smallest weights go, down to density (1 - S)^(r/rounds)."""

    @property
    def traits(self) -> Traits:
        return replace(super().traits, rounds=1 + self.rounds)

    def begin_round(self, sp: Run, number: int) -> None:
        masks = self.survivors(sp, number)
        self.rewind(sp)
        self.apply(sp, masks)

    def survivors(self, sp: Run, number: int) -> dict[str, Tensor]:
        """The masks of round `number`, from the weights as they are trained now; what is pruned stays pruned."""
        scores = {layer.name: surviving_magnitudes(layer) for layer in sp.layers}
        return select(scores, 1 - (1 - self.final_sparsity()) ** (number / self.rounds), self.scope)

    def final_sparsity(self) -> float:
        raise NotImplementedError

    def rewind(self, sp: Run) -> None:
        """Put back what the next round starts from, the masks not included."""

    def notes(self, sp: Run) -> list[str]:
        return [f"round {sp.memory['round']} of {self.rounds}"]


def surviving_magnitudes(layer: Layer) -> Tensor:
    return layer.weight().abs().masked_fill_(~mask_of(layer), PRUNED)


def remember(sp: Run) -> None:
    """Keep a copy of all parameters and buffers, for `rewind`; what a round learns about its masks is not rewound."""
    state = sp.model.state_dict().items()
    sp.memory["rewind"] = {
        key: value.detach().clone()
        for key, value in state
        if isinstance(value, Tensor) and ("parametrizations." not in key or key.endswith(".original"))
    }


def rewind(sp: Run) -> None:
    """Give all parameters and buffers the values of `remember`."""
    state = sp.model.state_dict()
    for key, value in sp.memory["rewind"].items():
        assign(state[key], value)


def in_time_of_one_round(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state of release 0.1, where the epochs of cs were those of all rounds, with the time of its round."""
    if "round_start" not in state.get("memory", {}):
        return state
    memory = dict(state["memory"])
    epochs_before = memory.pop("round_start")
    steps_before = epochs_before * state["steps_per_epoch"]
    return {
        **state,
        "epochs": state["epochs"] // (state["fields"]["rounds"] + state["fields"]["train_ticket"]),
        "epoch": state["epoch"] - epochs_before,
        "step": state["step"] - steps_before,
        "epoch_start": state["epoch_start"] - steps_before,
        "memory": memory,
    }
