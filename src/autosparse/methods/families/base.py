"""What a method is: a frozen, validated config, a parametrization for a weight, and a few hooks in time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autosparse.cost.ledger import Ledger
from autosparse.layer import Layer
from autosparse.parametrizations import Masked, SparseParametrization

Part = TypeVar("Part", bound=SparseParametrization)


@dataclass(frozen=True)
class About:
    """A row of the table of methods."""

    name: str
    year: int
    family: str
    pruned_gradient: str
    train_flops: str
    reference: str
    doc: str = ""  # by default the first line of the class's docstring
    budget: str = ""  # "budgeted" or "learned"; `register` sees by the field `sparsity` which


@dataclass(frozen=True)
class Traits:
    """Facts about a method that the Sparsifier acts on."""

    dense_ends: tuple[bool, bool] = (False, False)  # whether the first and the last layer are left out of the run
    guarded: bool = True  # whether the guard watches the densities: budgets keep themselves
    learned_decay: float | None = None  # weight decay of the method's own tensors if the user gives none; None: as the weights
    penalty_decays: bool = False  # its penalty takes the place of weight decay on the layers that it works on
    needs_decay: bool = False  # without decay of its thresholds it prunes nothing
    gate_is_rare: bool = False  # pruned weights receive gradients at few steps only
    rounds: int = 1  # how many times it trains all epochs of a run
    retrain_rate: float = 1.0  # published share of the learning rate in rounds after the first
    needs_zeros: bool = False  # works on weights that are sparse already
    needs_example: bool = False  # follows channels through the model: sparsify needs an example input
    shardable: bool = False  # can run under FSDP2, where every rank holds a part of a weight
    # advice when the start costs a trained model much
    start_gently: str = (
        "To keep what it has learned, use a method that starts dense, such as "
        "AutoSparse(start_sparsity=0, target_sparsity=...) or GMP(sparsity=...)."
    )
    prune_more: str = "raise the method's penalty or train longer"  # advice when nothing is pruned


class Stateful(Protocol):
    """Something that changes over a run and can be saved and loaded."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Run(Protocol):
    """What a method may read and change of a run; the Sparsifier is one."""

    model: nn.Module
    layers: list[Layer]
    layer_order: list[str]  # names in the order of use if an example input has shown it, else in the order of the model
    epochs: int  # of one round
    steps_per_epoch: int
    epoch: int
    step: int
    memory: dict[str, Any]  # what the method remembers between steps, saved with the state
    parts: dict[str, Any]  # the method's state machines, by name
    generator: torch.Generator
    ledger: Ledger
    example_input: Any  # what sparsify was given, or None

    @property
    def total_steps(self) -> int: ...
    @property
    def alpha(self) -> float: ...
    @property
    def density_floor(self) -> float: ...
    @property
    def held_floor(self) -> float: ...
    @property
    def optimizers(self) -> list[Optimizer]: ...
    def densities(self) -> list[float]: ...
    def sparsity(self) -> float: ...
    def thresholds(self) -> list[nn.Parameter]: ...
    def learned_groups(self) -> list[dict[str, Any]]: ...
    def optimizer_state(self, layer: Layer) -> dict[str, Any]: ...
    def gradient(self, layer: Layer) -> Tensor: ...
    def gradient_scale(self) -> float: ...
    def dense_state_dict(self) -> dict[str, Tensor]: ...
    def restart(self) -> None: ...


@runtime_checkable
class LooksAtData(Protocol):
    """A method that chooses its mask from data before training: `sp.score(batches, loss_fn)`."""

    def score(self, sp: Any, batches: Iterable[Any], loss_fn: Callable[..., Tensor] | None) -> None: ...


@runtime_checkable
class TrainsInRounds(Protocol):
    """A method that trains more than once: `sp.next_round(optimizer)` gives False when all rounds are done."""

    def next_round(self, sp: Any) -> bool: ...


@runtime_checkable
class ReachesTarget(Protocol):
    """A method that reaches its final zeros during the run: `sp.at_target`. Models from before are denser, so often better."""

    def at_target(self, sp: Any) -> bool: ...


@runtime_checkable
class ReadsOlderStates(Protocol):
    """A method whose defaults have changed: itself and the fields of a saved one, both with the defaults of that version."""

    def as_saved(self, saved: Mapping[str, Any]) -> tuple[Method, Mapping[str, Any]]: ...


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base of all methods: frozen dataclasses. What changes over time lives in the memory and the parts of the Sparsifier."""

    about: ClassVar[About]
    facts: ClassVar[Traits] = Traits()  # traits that do not depend on the fields

    # Methods that offer these make them fields.
    dense_first = cast("bool | None", False)
    dense_last = False

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""

    @property
    def traits(self) -> Traits:
        is_learned = self.about.budget == "learned"
        ends = (bool(self.dense_first), self.dense_last)
        return replace(self.facts, dense_ends=ends, guarded=self.facts.guarded and is_learned)

    def check(self, sp: Run) -> None:
        """Refuse a run that this method cannot do; called before anything is attached."""

    def parts(self, sp: Run) -> dict[str, Stateful]:
        """State machines for one run, kept in `sp.parts` and saved with its state under these names."""
        return {}

    def parametrization(self, layer: Layer, sp: Run) -> SparseParametrization:
        """What the forward pass sees of a weight, and which gradient comes back."""
        return Masked(layer.stored)

    def start(self, sp: Run) -> None:
        """Initial thresholds or masks, from the weights as they are now; called again after load_dense."""

    def gate(self, sp: Run) -> float:
        """What pruned weights receive of their gradient at the coming step."""
        return 0.0

    def annealed(self, sp: Run) -> float:
        """alpha of the present epoch, for methods that anneal."""
        return 0.0

    def before_step(self, sp: Run) -> bool:
        """After backward, before the optimizer's step. True: this call took the place of the step."""
        return False

    def after_step(self, sp: Run) -> None:
        """After the optimizer's step; sp.step counts it already."""

    def end_epoch(self, sp: Run, loss: float | None) -> None:
        """At the end of epoch sp.epoch, before the epoch is counted."""

    def penalty(self, sp: Run) -> Tensor | float:
        """The regulariser that the user adds to the loss."""
        return 0.0

    def passes(self, density: Tensor, sp: Run) -> tuple[Tensor, Tensor, Tensor]:
        """Densities of the forward, input-gradient and weight-gradient passes of the present step, one value per layer."""
        floors = [layer.parametrization.gradient_floor() for layer in sp.layers]
        return density, density, density.maximum(torch.tensor(floors, dtype=density.dtype, device=density.device))

    def notes(self, sp: Run) -> list[str]:
        """Lines that the report adds for this method."""
        return []


def plain_fields(method: Method) -> dict[str, Any]:
    """The config as plain values, for checkpoints and reports."""
    return {field.name: _plain(getattr(method, field.name)) for field in dataclasses.fields(method)}


def _plain(value: Any) -> Any:
    if hasattr(value, "plain"):
        return value.plain()
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def part(layer: Layer, kind: type[Part]) -> Part:
    """The layer's parametrization, which is of this kind."""
    parametrization = layer.parametrization
    assert isinstance(parametrization, kind)
    return parametrization


def layer_parts(sp: Run, kind: type[Part]) -> list[tuple[Layer, Part]]:
    """Every layer with its parametrization, which is of this kind."""
    return [(layer, part(layer, kind)) for layer in sp.layers]


def dead_layers(sp: Run) -> list[str]:
    """Names of the layers that have lost all their weights."""
    return [layer.name for layer, density in zip(sp.layers, sp.densities(), strict=True) if density == 0]


def first_and_last(names: Sequence[str], first: bool, last: bool) -> list[str]:
    """The layers at the ends of the network that are to stay dense."""
    ends = [names[0]] * first + [names[-1]] * last
    return ends if len(set(names)) > len(set(ends)) else []


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def require_rows(value: int) -> None:
    whole_number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    require(whole_number, f"rows_per_pattern = {value}; it is how many output channels share their zeros: 1, 2, 4, ...")


def require_sparsity(name: str, value: float) -> None:
    require(0 <= value < 1, f"{name} = {value}; it is the fraction of zeros: 0 <= {name} < 1")
