"""AutoSparse: learned thresholds with Gradient Annealing (sections 3 and 4 of the paper), and STR, its alpha = 0."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from autosparse.common.precisions import precision_name
from autosparse.common.warnings import warn
from autosparse.common.words import few
from autosparse.functional import THRESHOLD_FUNCTIONS
from autosparse.layer import Layer
from autosparse.methods.annealing import GradientAnnealing
from autosparse.methods.autotune import AlphaTuner, AutoTune
from autosparse.methods.families.base import (
    About,
    Method,
    Run,
    Stateful,
    Traits,
    dead_layers,
    layer_parts,
    require,
    require_rows,
)
from autosparse.methods.families.learned_mask import per_channel
from autosparse.methods.goals import SparsityGoal, goal_of
from autosparse.methods.latency import Latency
from autosparse.methods.loss_budget import reference_losses
from autosparse.methods.presets import EPOCH, NEVER, RAMP, STEP, preset_of, zero_moment
from autosparse.methods.registry import register
from autosparse.methods.steered_runs import controller_of, observe_loss, start_steering, steer_run, steering_notes
from autosparse.methods.target_steering import refresh_reach, start_together
from autosparse.parametrizations import SoftThreshold

DEFAULT_START_SPARSITY = 0.3
UNLEARNED = ("shared", "sigma")  # one threshold for all layers, in units of each layer's spread under "sigma"
MOVES = 1000  # values that alpha takes over a run, at most: a longer run sets its gates every few steps


@dataclass(frozen=True, kw_only=True)
class LearnedThreshold(Method):
    """What AutoSparse and STR share: a soft threshold g(s) that the loss and its decay move, or a target steers."""

    facts = Traits(
        shardable=True,
        start_gently="To keep what it has learned, start with start_sparsity=0.",
        prune_more="start sparser (start_sparsity=0.3), raise the threshold decay "
        "(autosparse.threshold_decay(total=8, lrs=...)), or set target_sparsity",
    )

    s_init: float | None = None
    start_sparsity: float | None = None
    g: str = "sigmoid"
    threshold: str = "layer"
    target_sparsity: float | None = None
    target_ramp: float = 0.7
    target_flops: float | None = None
    target_size: str | int | None = None
    target_latency: float | None = None
    precision: str = "float32"
    max_loss_increase: float | None = None
    reference: Sequence[float] | str | None = None
    rows_per_pattern: int = 1

    def __post_init__(self) -> None:
        require(self.g in THRESHOLD_FUNCTIONS, f"g = {self.g!r}; allowed: {', '.join(THRESHOLD_FUNCTIONS)}")
        allowed = ("layer", "channel", *UNLEARNED)
        require(self.threshold in allowed, f"threshold = {self.threshold!r}; allowed: {', '.join(allowed)}")
        require(
            self.threshold != "sigma" or self.g == "identity",
            f"threshold = 'sigma' keeps the ratios between layers, which g = {self.g!r} would change: use g='identity'",
        )
        both = self.s_init is not None and self.start_sparsity is not None
        require(not both, "give s_init or start_sparsity, not both: each sets where the thresholds start")
        require(self.s_init is None or math.isfinite(self.s_init), f"s_init = {self.s_init}; it must be a finite number")
        object.__setattr__(self, "precision", precision_name(self.precision, "precision", ("float32", "bfloat16", "int8")))
        require(
            self.precision == "float32" or self.target_latency is not None or self.target_size is not None,
            f"precision = {self.precision!r} is that of the served model or of its file: set target_latency or target_size too",
        )
        goal = self.goal
        if self.s_init is not None and goal is not None and self.g != "identity":
            require(self.s_init < 0, f"s_init = {self.s_init}; with a {goal.field} it must be below 0")
        require(
            self.start_sparsity is None or 0 <= self.start_sparsity < 1,
            f"start_sparsity = {self.start_sparsity}; allowed: 0 <= start_sparsity < 1",
        )
        require_rows(self.rows_per_pattern)
        require(
            self.rows_per_pattern == 1 or self.threshold != "channel",
            "rows_per_pattern lets output channels share their zeros: threshold='channel' gives each its own; choose one",
        )
        # d g/d s does not shrink with the threshold, so the loss throws it below 0 faster than a factor can raise it
        unsteerable = self.g == "identity" and self.threshold not in UNLEARNED and goal is not None
        require(
            not unsteerable,
            f"{goal.field if goal else ''} cannot steer a learned threshold with g = identity: "
            "use g='sigmoid' or 'exp', or threshold='shared'",
        )
        require(
            self.reference is None or self.max_loss_increase is not None,
            "reference holds the losses that max_loss_increase compares with: set it too",
        )
        if self.reference is not None:
            object.__setattr__(self, "reference", reference_losses(self.reference))
        require(0 < self.target_ramp <= 1, f"target_ramp = {self.target_ramp}; allowed: 0 < target_ramp <= 1")

    @property
    def goal(self) -> SparsityGoal | None:
        """What the run is steered to; None where decay and loss alone move the thresholds."""
        return goal_of(vars(self))

    @property
    def traits(self) -> Traits:
        rises_by_decay = self.g != "identity" and self.threshold not in UNLEARNED and self.goal is None
        decay = None if self.goal is None else 0.0
        return replace(super().traits, needs_decay=rises_by_decay, learned_decay=decay)

    def check(self, sp: Run) -> None:
        if self.goal is not None:
            self.goal.check(sp)
        if self.max_loss_increase is not None:
            reference_losses(self.reference)

    def parts(self, sp: Run) -> dict[str, Stateful]:
        if self.goal is None:
            return {}
        measured: dict[str, Stateful] = {} if self.target_latency is None else {"latency": Latency()}
        return {"controller": controller_of(self, sp), **measured}

    def parametrization(self, layer: Layer, sp: Run) -> SoftThreshold:
        shape = per_channel(layer) if self.threshold == "channel" else (1,)
        soft = SoftThreshold(layer.stored, shape, self.g, self.threshold not in UNLEARNED, self._backward_sparsity())
        soft.rows, soft.channel_dim = self.rows_per_pattern, layer.channel_dim
        return soft

    def start(self, sp: Run) -> None:
        layers = layer_parts(sp, SoftThreshold)
        sparsity = DEFAULT_START_SPARSITY if self.start_sparsity is None else self.start_sparsity
        if self.s_init is not None:
            for _, soft in layers:
                soft.threshold.data.fill_(self.s_init)
            self._warn_dead(sp)
        elif self.threshold in UNLEARNED:
            start_together(layers, sparsity, sp.generator, in_spreads=self.threshold == "sigma")
        else:
            for layer, soft in layers:
                soft.start_at(layer.weight(), sparsity)
        refresh_reach(layers)
        start_steering(self, sp)

    def _warn_dead(self, sp: Run) -> None:
        dead = dead_layers(sp)
        if dead:
            warn(
                f"s_init = {self.s_init} prunes every weight of {few(dead)} at the start; such layers never "
                "recover by themselves. Use start_sparsity, or a lower s_init."
            )

    def _backward_sparsity(self) -> float:
        return 0.0

    def after_step(self, sp: Run) -> None:
        steer_run(self, sp)
        if self._backward_sparsity() and self.gate(sp):  # nobody reads the backward set of a step whose gate is closed
            refresh_reach(layer_parts(sp, SoftThreshold))

    def end_epoch(self, sp: Run, loss: float | None) -> None:
        observe_loss(self, sp, loss)

    def at_target(self, sp: Run) -> bool:
        return self.goal is None or self.goal.is_met(sp)

    def notes(self, sp: Run) -> list[str]:
        return steering_notes(self, sp)


@register
class AutoSparse(LearnedThreshold):
    """One learned threshold per layer; gradients of pruned weights are scaled by an annealed alpha.

    Learned thresholds with Gradient Annealing: pruned weights receive alpha * G, and alpha decays over training.
    """

    about = About(
        name="autosparse",
        year=2023,
        family="learned budgets",
        pruned_gradient="alpha * G, alpha annealed",
        train_flops="2 f_S + f_D while alpha > 0, 3 f_S after",
        reference="Kundu et al., AutoSparse: Towards Automated Sparse Training of Deep Neural Networks, arXiv 2304.06941",
    )

    alpha: float | None = None
    schedule: str = "sigmoid-cosine"
    beta: float = 1.0
    zero_epoch: int | float | str | None = None
    horizon: int | float | str | None = None
    backward_sparsity: float = 0.0
    dense_grad_every: int = 1
    shape: float = 1.0
    rescale: bool = False
    autotune: AutoTune | None = None
    preset: str | None = None
    alpha_per: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.autotune is not None:
            require(self.alpha is None, "alpha comes from autotune: give AutoTune(start=...) instead of alpha")
            require(self.alpha_per != STEP, "autotune moves alpha per epoch: leave alpha_per out")
            require(
                self.goal is None,
                f"{self.goal.field if self.goal else ''} and autotune both decide how sparse the run becomes: choose one",
            )
        self._fill_in()
        self.annealing()
        require(self.alpha_per in (STEP, EPOCH), f"alpha_per = {self.alpha_per!r}; allowed: {STEP}, {EPOCH}")
        require(
            0 <= self.backward_sparsity < 1,
            f"backward_sparsity = {self.backward_sparsity}; allowed: 0 <= backward_sparsity < 1",
        )
        require(self.dense_grad_every >= 1, f"dense_grad_every = {self.dense_grad_every}; it must be at least 1")
        require(self.shape >= 1, f"shape = {self.shape}; allowed: from 1 (soft) to infinity (hard)")

    def _fill_in(self) -> None:
        """Give the fields that were left out the values of the preset."""
        preset = preset_of(self.preset)
        alpha = self.usual_alpha() if self.preset is None else preset.alpha
        ramp = self.target_ramp if self.goal is not None else None
        values = {
            "alpha": None if self.autotune else alpha,
            "zero_epoch": zero_moment(preset, ramp, self.schedule == "constant"),
            "alpha_per": EPOCH if self.autotune else preset.alpha_per,
        }
        defaults = {field.name: field.default for field in fields(self)}  # of a class with values of its own, such as ST3
        for name, value in values.items():
            if getattr(self, name) is None or (self.preset is not None and getattr(self, name) == defaults[name]):
                object.__setattr__(self, name, value)

    def usual_alpha(self) -> float:
        """alpha at the start, where neither it nor a preset is given."""
        return preset_of(None).alpha

    def as_saved(self, saved: Mapping[str, Any]) -> tuple[Method, Mapping[str, Any]]:
        if "alpha_per" in saved:
            return self, saved
        # a state of 0.1: no zero_epoch was never, and alpha moved per epoch
        zero = NEVER if saved.get("zero_epoch") is None else saved["zero_epoch"]
        left_out = self.zero_epoch == replace(self, zero_epoch=None).zero_epoch
        method = replace(self, alpha_per=EPOCH, zero_epoch=zero if left_out else self.zero_epoch)
        return method, {**saved, "alpha_per": EPOCH, "zero_epoch": zero}

    @property
    def traits(self) -> Traits:
        return replace(super().traits, gate_is_rare=self.dense_grad_every > 1)

    def annealing(self) -> GradientAnnealing:
        return self._annealing

    @cached_property  # asked for at every step, and this object never changes
    def _annealing(self) -> GradientAnnealing:
        alpha = self.autotune.start if self.autotune else self.alpha
        assert alpha is not None
        return GradientAnnealing(
            alpha=alpha,
            schedule=self.schedule,
            beta=self.beta,
            zero_epoch=None if self.zero_epoch == NEVER else self._moment("zero_epoch", self.zero_epoch),
            horizon=self._moment("horizon", self.horizon),
        )

    def _moment(self, name: str, value: int | float | str | None) -> int | float | None:
        """Epochs or a part of the run; "ramp" is the end of the target's ramp, None where that is the end of the run."""
        if not isinstance(value, str):
            return value
        words = repr(RAMP) if name == "horizon" else f"{RAMP!r} or {NEVER!r}"
        require(value == RAMP, f"{name} = {value!r}; allowed: whole epochs, a part of the run between 0 and 1, or {words}")
        require(self.goal is not None, f"{name} = {RAMP!r} is the end of a target's ramp: set target_sparsity")
        return None if self.target_ramp == 1 else self.target_ramp

    def check(self, sp: Run) -> None:
        super().check(sp)
        self.annealing().check(sp.epochs)
        if self.autotune is not None:
            last = self.annealing().last_epoch(sp.epochs)
            require(
                self.autotune.epochs < last,
                f"autotune takes {self.autotune.epochs} epochs of a run of {last}: train longer, or lower AutoTune(epochs=...)",
            )
            for difference in self.autotune.settings_difference():
                warn(f"the reference losses were made with other settings: {difference}")

    def parts(self, sp: Run) -> dict[str, Stateful]:
        return super().parts(sp) if self.autotune is None else {"tuner": AlphaTuner(self.autotune)}

    def start(self, sp: Run) -> None:
        super().start(sp)
        if self.autotune is not None and not sp.ledger.dense_steps:  # start comes again after load_dense
            sp.ledger.add_dense_steps(self.autotune.epochs * sp.steps_per_epoch)

    def _backward_sparsity(self) -> float:
        return self.backward_sparsity

    def parametrization(self, layer: Layer, sp: Run) -> SoftThreshold:
        soft = super().parametrization(layer, sp)
        soft.power, soft.rescale_dim = self.shape, layer.channel_dim if self.rescale else None
        return soft

    def annealed(self, sp: Run) -> float:
        annealing, tuner = self.annealing(), sp.parts.get("tuner")
        if tuner and not annealing.is_zero(sp.epoch, sp.epochs):
            return float(tuner.alpha_at(sp.epoch, annealing.decay, annealing.last_epoch(sp.epochs)))
        return annealing.at(self._now(sp), sp.epochs)

    def _now(self, sp: Run) -> int | float:
        """Epochs done; with the part of the present one where alpha moves per step."""
        if self.alpha_per == EPOCH:
            return sp.epoch
        pace = max(1, sp.total_steps // MOVES)
        by_steps = sp.step // pace * pace / sp.steps_per_epoch
        return float(min(max(by_steps, sp.epoch), sp.epoch + 1))  # epochs may be longer or shorter than was told

    def gate(self, sp: Run) -> float:
        return sp.alpha if sp.step % self.dense_grad_every == 0 else 0.0

    def end_epoch(self, sp: Run, loss: float | None) -> None:
        super().end_epoch(sp, loss)
        tuner = sp.parts.get("tuner")
        if tuner and not tuner.tuned:
            if loss is None:
                raise ValueError(
                    f"auto-tuning needs the mean training loss of each of the first {tuner.config.epochs} epochs: "
                    "sp.end_epoch(loss=...)"
                )
            tuner.observe(sp.epoch, loss)

    def notes(self, sp: Run) -> list[str]:
        lines, tuner = [f"alpha {sp.alpha:.4f}"], sp.parts.get("tuner")
        if tuner and tuner.history:
            epoch, loss, reference, alpha = tuner.history[-1]
            lines.append(f"auto-tune: epoch {epoch} loss {loss:.4f}, reference {reference:.4f}, alpha set to {alpha:.4f}")
        return lines + super().notes(sp)


@register
class STR(LearnedThreshold):
    """One learned threshold per layer; pruned weights receive no gradient.

    Soft threshold weight reparametrisation: AutoSparse with alpha = 0.
    """

    about = About(
        name="str",
        year=2020,
        family="learned budgets",
        pruned_gradient="none",
        train_flops="3 f_S",
        reference="Kusupati et al., Soft Threshold Weight Reparameterization for Learnable Sparsity, ICML 2020",
    )
