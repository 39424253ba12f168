"""Sparsifier: attaches a method to a model; owns time, state and the way back to a plain model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from autosparse.common.tensors import is_sharded, precise, random_stream, whole
from autosparse.compute.compute import Compute, LayerPlan
from autosparse.compute.small_layers import SmallLayers
from autosparse.cost import Ledger, Profile, Recorder, profile
from autosparse.layer import Layer
from autosparse.methods.families.base import LooksAtData, Method, ReachesTarget, Stateful, TrainsInRounds, first_and_last
from autosparse.quantization import fake
from autosparse.sparsifier import plain
from autosparse.sparsifier.averages import finalize_copy
from autosparse.sparsifier.epochs import finite_loss, warn_if_dense, warn_if_uneven
from autosparse.sparsifier.exchange import Exchange, exchange_through
from autosparse.sparsifier.first_step import FirstStep
from autosparse.sparsifier.guard import Event, Guard, GuardState, named_if_broken, refuse_broken, watch
from autosparse.sparsifier.optimizers import Binding, build_groups, check_optimizers, find_groups, unwrap, warn_without_decay
from autosparse.sparsifier.replanning import is_open, plan_again
from autosparse.sparsifier.report import Report, RunCost, epoch_record, make_report, save_page
from autosparse.sparsifier.selection import Patterns, refuse_wrapped, select
from autosparse.sparsifier.small_steps import gather_small_layers, passes_of_step
from autosparse.sparsifier.speed import Speed, StepClock, announce, speed_of
from autosparse.sparsifier.state import Restart, load_state, save_state, share_state, start_again_if_loaded
from autosparse.structure import Shrinkage
from autosparse.structure.shrinking import shrink_for


def sparsify(
    model: nn.Module,
    method: Method,
    *,
    epochs: int,
    steps_per_epoch: int,
    include: Patterns = None,
    exclude: Patterns = None,
    example_input: Any = None,
    seed: int = 0,
    density_floor: float = 0.01,
    guard: str | None = "hold",
    guard_every: int | None = None,
    convention: str = "paper",
    baseline_epochs: int | None = None,
) -> Sparsifier:
    """Attach a method to a model, in place; the model stays the user's own class."""
    if not isinstance(method, Method):
        raise TypeError(f"sparsify takes a method such as AutoSparse(alpha=0.75), got {method!r}")
    refuse_wrapped(model)
    limits = None if guard is None else Guard(policy=guard, floor=density_floor, every=guard_every)  # type: ignore[arg-type]
    layers = select(model, include, exclude)
    costs = None if example_input is None else profile(model, example_input)
    dense = first_and_last(_order(layers, costs), *method.traits.dense_ends)
    layers = [layer for layer in layers if layer.name not in dense]
    given = (costs, seed, limits, convention, baseline_epochs, example_input)
    return Sparsifier(model, method, layers, epochs, steps_per_epoch, *given)


def _order(layers: Sequence[Layer], costs: Profile | None) -> list[str]:
    """Names in the order in which the data reaches the layers if that is known, else in the order of the model."""
    names = [layer.name for layer in layers]
    return names if costs is None else costs.order(names) or names


class Sparsifier:
    """A method at work on a model. Made by `sparsify`."""

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        layers: Sequence[Layer],
        epochs: int,
        steps_per_epoch: int,
        costs: Profile | None,
        seed: int,
        limits: Guard | None,
        convention: str,
        baseline_epochs: int | None,
        example_input: Any = None,
    ) -> None:
        counts = {"epochs": epochs, "steps_per_epoch": steps_per_epoch, "baseline_epochs": baseline_epochs}
        for name, value in counts.items():
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} = {value!r}; it must be a whole number of at least 1")
        self.model = model
        self.method = method
        self.example_input, self.shrinkage = example_input, cast("Shrinkage | None", None)  # the last: what finalize removed
        self.layers = list(layers)
        # Fixed for the run: a profile that comes with the first forward pass must not move the ends of the network.
        self.layer_order = _order(layers, costs)
        self.epochs = epochs
        self.steps_per_epoch = steps_per_epoch
        self.epoch = self.step = 0
        # What a method remembers between steps: plain values and tensors, saved with the state.
        self.memory: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self.listeners: list[Callable[[Sparsifier], None]] = []  # called at the end of every epoch, as trackers are
        self.generator = random_stream(seed, "masks")
        self.guard = GuardState(limits) if limits and method.traits.guarded else None
        baseline = None if baseline_epochs is None else baseline_epochs * steps_per_epoch
        self.ledger = Ledger([layer.name for layer in self.layers], convention=convention, baseline_steps=baseline)
        if costs:
            self.ledger.set_profile(costs)
        self._compute, self._together = Compute(), cast("SmallLayers | None", None)
        self._binding: Binding | None = None
        self._pending: Tensor | Sequence[Sequence[float]] | None = None
        self._steps_at_epoch_start, self._checked_first_step = 0, False
        self._fingerprint: plain.Fingerprint | None = None
        self._gates: tuple[float, frozenset[str]] | None = None
        self.announces_speed = True  # in a line after the first epoch
        self._clock = StepClock()
        self._speed: Speed | None = None  # in the last epoch
        method.check(self)
        self.parts: dict[str, Stateful] = method.parts(self)
        self._orders, self._plain_keys = plain.parameter_orders(self.layers), list(model.state_dict())
        self._loading = model.register_load_state_dict_post_hook(Restart(self))  # type: ignore[no-untyped-call]
        self.first_step = FirstStep(self)
        self._recorder = None if costs else Recorder(model, done=self.ledger.set_profile)
        for layer in self.layers:
            layer.attach(method.parametrization(layer, self))
        self._started = False
        self._refresh()
        self._compute.choose("auto", self.layers, model)
        self._start()

    @property
    def total_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def alpha(self) -> float:
        """What pruned weights receive of their gradient in this epoch."""
        return self._alpha

    def densities(self) -> list[float]:
        """The fraction of non-zeros of every layer, in the order of `layers`; one sync."""
        return self._density(self.counts()).tolist()

    def sparsity(self) -> float:
        """The fraction of zeros over all sparsified weights."""
        total = sum(layer.numel for layer in self.layers)
        return (total - int(self.counts().sum())) / total

    @property
    def at_target(self) -> bool:
        """Whether the run has its final sparsity, within half a point: compare models of this moment and later ones alone."""
        return not isinstance(self.method, ReachesTarget) or self.method.at_target(self)

    @property
    def cost(self) -> RunCost:
        """The FLOPs ledger: Train F and Test F."""
        return RunCost(self)

    def report(self) -> Report:
        """Per layer and overall: the only source of such numbers."""
        return make_report(self)

    save_report = save_page

    @property
    def density_floor(self) -> float:
        """The density below which the guard sees a layer as lost; 0 without a guard."""
        return self.guard.config.floor if self.guard else 0.0

    @property
    def held_floor(self) -> float:
        """The density that the guard holds every layer at; 0 where it holds none."""
        return self.density_floor if self.guard and self.guard.config.policy == "hold" else 0.0

    @property
    def events(self) -> list[Event]:
        """What the guard has seen."""
        return list(self.guard.events) if self.guard else []

    def compute(self, mode: str, fuse: bool = True) -> None:
        """How sparsified layers run: "auto" (the default): each pass as it measured faster; "dense"; or "sparse".

        `fuse` lets sparse convolutions take over the batch norms, ReLUs and residual sums around them.
        """
        self._require_attached()
        self._separate()
        self._compute.fuse = fuse
        self._compute.choose(mode, self.layers, self.model)

    def keep_times(self, path: str | PathLike[str]) -> None:
        """Write measured times to this file the moment they are taken, and plan from what it holds: resuming stays exact."""
        self._require_attached()
        self._compute.keep_times(path, self.layers, self.model)

    def layer_plans(self) -> list[LayerPlan]:
        """How every layer runs now, with the planner's times where it has measured."""
        return self._compute.plans(self.layers, self.densities())

    def speed(self, plans: Sequence[LayerPlan] | None = None) -> Speed | None:
        """Milliseconds per step in this epoch, or in the last one, and about those of dense training; None at the start."""
        if self._clock.seconds() is None:
            return self._speed
        return speed_of(self._clock, self.layers, self.layer_plans() if plans is None else plans)

    def __str__(self) -> str:
        return str(self.report())

    def thresholds(self) -> list[nn.Parameter]:
        """The method's learned tensors (thresholds, scores), as they are now."""
        return list(self._named_thresholds().values())

    def param_groups(
        self,
        groups: Iterable[Any] | None = None,
        weight_decay: float | None = None,
        threshold_decay: float | None = None,
        coupled_decay: bool = False,
    ) -> list[dict[str, Any]]:
        """Optimizer groups: the model's parameters (or the user's groups), and a group of the thresholds.

        weight_decay goes to every group that sets none; without it the optimizer's default holds. Thresholds take the same
        decay unless threshold_decay is given; under a target_sparsity they take none. Under Adam it is decoupled from the
        gradient, or with coupled_decay part of it, so that s moves by about the learning rate per step.
        """
        own_decay = self.method.traits.learned_decay if threshold_decay is None else threshold_decay
        decay = weight_decay if own_decay is None else own_decay
        return build_groups(self.model, self.thresholds(), groups, weight_decay, decay, coupled_decay)

    def bind(self, *optimizers: Any) -> None:
        """Listen to the optimizer's steps; several that step together are bound in one call. Under DDP every rank calls it."""
        self._require_attached()
        unwrapped = [unwrap(optimizer) for optimizer in optimizers]
        if not unwrapped:
            raise TypeError("bind needs the optimizer that trains the model")
        check_optimizers(unwrapped, self._named_thresholds())
        if not self.method.traits.shardable and any(is_sharded(layer.stored) for layer in self.layers):
            raise ValueError(f"{self.method.about.name} needs whole weights and cannot run under FSDP2: use DDP for it")
        if self._binding:
            self._binding.remove()
        self._separate()
        start_again_if_loaded(self)
        self._binding = Binding(unwrapped, named_if_broken(self, self._before_step), named_if_broken(self, self._after_step))
        self._start()
        share_state(self)
        self.first_step.agree()
        self._refresh()

    def gradient(self, layer: Layer) -> Tensor:
        """The gradient of a layer's stored weight, whole and unscaled."""
        gradient = layer.stored.grad
        if gradient is None:
            raise RuntimeError(f"{layer.name} has no gradient: the method needs one at this step")
        scale = self.gradient_scale()
        return whole(gradient) if scale == 1.0 else whole(gradient) / scale

    def gradient_scale(self) -> float:
        """What a GradScaler multiplied the gradients by, where they are not divided yet."""
        return self._binding.scale() if self._binding else 1.0

    def learned_groups(self) -> list[dict[str, Any]]:
        """The optimizers' groups that hold the method's learned tensors."""
        return find_groups(self.optimizers, self.thresholds())

    def optimizer_state(self, layer: Layer) -> dict[str, Any]:
        """The optimizer's state of a layer's stored weight."""
        return self._binding.state_of(layer.stored) if self._binding else {}

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that this Sparsifier listens to."""
        return list(self._binding.optimizers) if self._binding else []

    def restart(self) -> None:
        """Set time back to 0, for methods that train in rounds; costs go on adding up."""
        self.epoch = self.step = self._steps_at_epoch_start = 0
        self._refresh()

    def penalty(self) -> Tensor | float:
        """The method's regulariser, to be added to the loss; 0 for methods without one."""
        return self.method.penalty(self)

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, *, thresholds: bool = False
    ) -> Tensor:
        """torch's clip_grad_norm_ over the model's parameters, without the method's thresholds unless asked; gives the norm."""
        apart = set() if thresholds else {id(threshold) for threshold in self.thresholds()}
        clipped = [parameter for parameter in self.model.parameters() if id(parameter) not in apart]
        return nn.utils.clip_grad_norm_(clipped, max_norm, norm_type, error_if_nonfinite)

    def communication_hook(self, ddp: DistributedDataParallel, dtype: torch.dtype | None = None) -> Exchange:
        """Let ranks exchange only the gradients of weights that receive one; what has been sent is on the result.

        `dtype` torch.bfloat16 or torch.float16 rounds them on the way.
        """
        return exchange_through(ddp, self, dtype)

    def end_epoch(self, loss: float | Tensor | None = None) -> None:
        """Close an epoch: alpha, auto-tune, history. The loss is the epoch's mean training loss; auto-tune needs it."""
        self._require_attached()
        warn_if_uneven(self, self.step - self._steps_at_epoch_start)
        refuse_broken(self.layers, self.step)  # before the method prunes what is NaN
        value = None if loss is None else finite_loss(self, loss)
        self.method.end_epoch(self, value)
        self.epoch += 1
        self._steps_at_epoch_start = self.step
        self._refresh()
        self.history.append(epoch_record(self, value))
        warn_if_dense(self)
        self._speed = self.speed()
        if self.epoch == 1 and self.announces_speed:
            announce(self._speed)
        self._clock.restart()
        self._plan(lambda: self.history[-1]["densities"])
        self._fingerprint = plain.fingerprint(self.model, self.layers, self.step)
        for listen in list(self.listeners):
            listen(self)

    def score(self, batches: Iterable[Any], loss_fn: Callable[..., Tensor] | None = None) -> None:
        """Let a method that looks at data first choose its mask; loss_fn(model, batch) gives the loss of a batch."""
        if not isinstance(self.method, LooksAtData):
            name = self.method.about.name
            raise TypeError(f"{name} does not look at data before training: there is nothing to score")
        self.first_step.before_start()
        self.method.score(self, batches, loss_fn)
        self.first_step.after_start()
        self._refresh()

    def next_round(self, *optimizers: Any) -> bool:
        """Begin the next round of a method that trains in rounds; False when the last one is done."""
        if optimizers:
            self.bind(*optimizers)
        if not isinstance(self.method, TrainsInRounds):
            raise TypeError(f"{self.method.about.name} trains in one round")
        return self.method.next_round(self)

    def load_dense(self, state_dict: Mapping[str, Tensor]) -> None:
        """Load a plain checkpoint; before the first step it sets where thresholds and masks start."""
        self._require_attached()
        plain.load(self.model, self.layers, state_dict)
        if self.step == 0:
            self._started = False
            self._start()

    def dense_state_dict(self) -> dict[str, Tensor]:
        """The plain state with zeros baked in, at any time; training is not disturbed. Collective under FSDP2."""
        return plain.state(self.model, self.layers, self._plain_keys)

    def finalize(self, into: nn.Module | None = None, shrink: bool = False, example_input: Any = None) -> nn.Module:
        """Remove the parametrizations and bake the zeros in; the model is plain again, with the keys it had.

        `into` is a plain model that takes the weights instead: the way out of a sharded model, whose ranks gather them.
        `shrink` removes dead channels as `autosparse.shrink` does, for an example input given here or to sparsify.
        """
        self._require_attached()
        smaller = shrink_for(self.example_input if example_input is None else example_input) if shrink else None
        if self._fingerprint:
            self._fingerprint.warn_if_edited(self.model, self.layers, self.step)
        plain.harden(self.layers)
        if into is not None:
            into.load_state_dict(self.dense_state_dict())
            self.shrinkage = smaller(into) if smaller else None
            return into
        self._separate()
        self._compute.choose("dense", self.layers, self.model)
        fake.remove(self.model)
        plain.bake(self.layers, self._orders)
        if self._binding:
            self._binding.remove()
            self._binding = None
        if self._recorder:
            self._recorder.close()
        self.first_step.close()
        self._loading.remove()
        self.shrinkage = smaller(self.model) if smaller else None
        return self.model

    def finalize_average(self, averaged: nn.Module) -> nn.Module:
        """Make an averaged copy of the model plain: an AveragedModel, another wrapper with a `module`, or a deepcopy.

        Its weights are its own, of averaged weights and thresholds; they are 0 wherever this run's weights are.
        """
        return finalize_copy(averaged, self.layers, self._orders)

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact resume needs besides the model's and the optimizer's own state."""
        return save_state(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a run; a state of another method, other layers or another version is refused."""
        self._require_attached()
        self._separate()
        load_state(self, state)
        self._started = True
        self._refresh()

    def __getstate__(self) -> dict[str, Any]:
        # The hooks belong to the original's optimizer and its listeners to its run: a copy has others.
        return {**self.__dict__, "_binding": None, "_together": None, "listeners": [], "generator": self.generator.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        generator = torch.Generator()
        generator.set_state(state["generator"])
        self.__dict__.update(state, generator=generator)

    def _start(self) -> None:
        """Initial thresholds or masks; a model built on the meta device waits until it has weights."""
        if not self._started and not any(layer.stored.is_meta for layer in self.layers):
            self.first_step.before_start()
            self.method.start(self)
            self.first_step.after_start()
            self._started = True
            if self.guard:
                watch(self.layers, self.guard, self.step)
            self._set_gates()

    def _refresh(self) -> None:
        """Compute alpha and set all gates, whatever they hold: a model that was on the meta device holds garbage there."""
        self._alpha = self.method.annealed(self)
        self._gates = None
        if self._started:
            self._set_gates()

    def _set_gates(self) -> None:
        """Set every layer's gate if one has changed; layers whose weights escape receive nothing."""
        gates = self.method.gate(self), frozenset(self.guard.escaped if self.guard else ())
        if gates == self._gates:
            return
        self._gates, (gate, escaped) = gates, gates
        for layer in self.layers:
            layer.parametrization.open_gate(0.0 if layer.name in escaped else gate)

    def _separate(self) -> None:
        """Let every layer make its own effective weight, until the next step."""
        if self._together is not None:
            self._together.remove()
        self._together = None

    def _plan(self, densities: Callable[[], Sequence[float]]) -> bool:
        return self._compute.plan(self.layers, densities, self.model, self.method.traits.gate_is_rare)

    def _before_step(self) -> bool:
        if not self._checked_first_step:
            self._check_first_step()
        if self._together is not None:
            self._together.drop()
        self._pending = passes_of_step(self)
        return self.method.before_step(self)

    def _after_step(self) -> None:
        assert self._pending is not None
        self._clock.tick()
        self.ledger.add(self._pending)
        self.step += 1
        was_open = is_open(self)
        self._alpha = self.method.annealed(self)
        if self.guard and (self.step % self.guard.config.interval(self.total_steps) == 0 or self.step == self.total_steps):
            watch(self.layers, self.guard, self.step)
        self.method.after_step(self)
        self._set_gates()
        plan_again(self, was_open)
        if self._together is None:
            self._together = gather_small_layers(self)

    def _check_first_step(self) -> None:
        assert self._binding is not None
        self._refresh()
        self.first_step.finish()
        named = self._named_thresholds()
        check_optimizers(self._binding.optimizers, named)
        self._checked_first_step = True
        if self.method.traits.needs_decay and named:
            warn_without_decay(self._binding.optimizers, named.values())

    def counts(self) -> Tensor:
        """Active weights per layer, as one tensor on the model's device: no sync."""
        return torch.stack([layer.count_active() for layer in self.layers])

    def _density(self, counts: Tensor) -> Tensor:
        counts = precise(counts)
        return counts / torch.tensor([layer.numel for layer in self.layers], dtype=counts.dtype, device=counts.device)

    def _named_thresholds(self) -> dict[str, nn.Parameter]:
        return {
            f"{layer.name}: {name}": parameter
            for layer in self.layers
            for name, parameter in layer.parametrization.named_parameters()
        }

    def _require_attached(self) -> None:
        if not self.layers[0].attached:
            raise RuntimeError("this Sparsifier is finalized: the model is plain; sparsify it again to go on")
