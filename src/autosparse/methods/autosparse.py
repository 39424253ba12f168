"""AutoSparse: learned thresholds with Gradient Annealing (sections 3 and 4 of the paper), and STR, its alpha = 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from autosparse.common.warnings import warn
from autosparse.functional import THRESHOLD_FUNCTIONS
from autosparse.layer import Layer
from autosparse.methods import steering
from autosparse.methods.annealing import DEFAULT_ALPHA, GradientAnnealing
from autosparse.methods.autotune import AlphaTuner, AutoTune, TargetController
from autosparse.methods.families.base import About, Method, Stateful, dense_like, require
from autosparse.parametrizations import SoftThreshold

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier

DEFAULT_START_SPARSITY = 0.3
MISS = 0.005  # distance from a target that is worth a warning


@dataclass(frozen=True, kw_only=True)
class LearnedThreshold(Method):
    """What AutoSparse and STR share: a soft threshold g(s) that the loss and its decay move, or a target steers."""

    shardable: ClassVar[bool] = True
    prune_more: ClassVar[str] = (
        "start sparser (start_sparsity=0.3), raise the threshold decay (autosparse.threshold_decay(total=8, lrs=...)), "
        "or set target_sparsity"
    )

    s_init: float | None = None
    start_sparsity: float | None = None
    g: str = "sigmoid"
    threshold: str = "layer"
    target_sparsity: float | None = None
    target_ramp: float = 0.7

    def __post_init__(self) -> None:
        require(self.g in THRESHOLD_FUNCTIONS, f"g = {self.g!r}; allowed: {', '.join(THRESHOLD_FUNCTIONS)}")
        allowed = ("layer", "channel", "shared")
        require(self.threshold in allowed, f"threshold = {self.threshold!r}; allowed: {', '.join(allowed)}")
        both = self.s_init is not None and self.start_sparsity is not None
        require(not both, "give s_init or start_sparsity, not both: each sets where the thresholds start")
        require(self.s_init is None or math.isfinite(self.s_init), f"s_init = {self.s_init}; it must be a finite number")
        if self.s_init is not None and self.target_sparsity is not None and self.g != "identity":
            require(self.s_init < 0, f"s_init = {self.s_init}; with a target_sparsity it must be below 0")
        require(
            self.start_sparsity is None or 0 <= self.start_sparsity < 1,
            f"start_sparsity = {self.start_sparsity}; allowed: 0 <= start_sparsity < 1",
        )
        require(
            self.target_sparsity is None or 0 < self.target_sparsity < 1,
            f"target_sparsity = {self.target_sparsity}; allowed: between 0 and 1, 0.9 means 90 % zeros",
        )
        # d g/d s does not shrink with the threshold, so the loss throws it below 0 faster than a factor can raise it
        unsteerable = self.g == "identity" and self.threshold != "shared" and self.target_sparsity is not None
        require(
            not unsteerable,
            "target_sparsity cannot steer a learned threshold with g = identity: "
            "use g='sigmoid' or 'exp', or threshold='shared'",
        )
        require(0 < self.target_ramp <= 1, f"target_ramp = {self.target_ramp}; allowed: 0 < target_ramp <= 1")

    def check(self, run: Sparsifier) -> None:
        floor = run.guard.config.floor if run.guard else 0.0
        require(
            self.target_sparsity is None or self.target_sparsity <= 1 - floor,
            f"target_sparsity = {self.target_sparsity} cannot be met while every layer keeps a density of {floor}: "
            f"pass density_floor below {1 - (self.target_sparsity or 0):.4g} to sparsify",
        )

    def parts(self, run: Sparsifier) -> dict[str, Stateful]:
        if self.target_sparsity is None:
            return {}
        return {"controller": TargetController(self.target_sparsity, self.target_ramp, run.total_steps)}

    def parametrization(self, layer: Layer, run: Sparsifier) -> SoftThreshold:
        shape: tuple[int, ...] = (1,)
        if self.threshold == "channel":
            shape = tuple(size if dim == layer.channel_dim else 1 for dim, size in enumerate(layer.shape))
        return SoftThreshold(layer.stored, shape, self.g, self.threshold != "shared", self._backward_sparsity())

    def start(self, run: Sparsifier) -> None:
        layers = steering.threshold_layers(run.layers)
        sparsity = DEFAULT_START_SPARSITY if self.start_sparsity is None else self.start_sparsity
        if self.s_init is not None:
            for _, soft in layers:
                soft.threshold.data.fill_(self.s_init)
            self._warn_dead(run)
        elif self.threshold == "shared":
            steering.start_together(layers, sparsity, run.generator)
        else:
            for layer, soft in layers:
                soft.start_at(layer.weight(), sparsity)
        steering.refresh_reach(layers)
        controller = _controller(run)
        if controller:
            controller.start(run.sparsity())

    def _warn_dead(self, run: Sparsifier) -> None:
        dead = [layer.name for layer, density in zip(run.layers, run.densities(), strict=True) if density == 0]
        if dead:
            warn(
                f"s_init = {self.s_init} prunes every weight of {', '.join(dead[:5])}{' ...' if len(dead) > 5 else ''} "
                "at the start; "
                "such layers never recover by themselves. Use start_sparsity, or a lower s_init."
            )

    def _warn_if_missed(self, run: Sparsifier) -> None:
        assert self.target_sparsity is not None
        reached = run.sparsity()
        if abs(reached - self.target_sparsity) > MISS:
            warn(
                f"target_sparsity = {self.target_sparsity}, reached {reached:.4f}: the loss pushed the thresholds back faster "
                "than the controller may raise them. Let the learning rate fall to 0 at the end, lower it, or train longer."
            )

    def _backward_sparsity(self) -> float:
        return 0.0

    def after_step(self, run: Sparsifier) -> None:
        layers, controller = steering.threshold_layers(run.layers), _controller(run)
        if controller and controller.due(run.step):
            steering.steer(layers, controller, run.step, run.held_floor, run.generator)
            if run.step == run.total_steps:
                self._warn_if_missed(run)
        if self._backward_sparsity():
            steering.refresh_reach(layers)

    def learned_decay(self, weight_decay: float | None) -> float | None:
        return 0.0 if self.target_sparsity is not None else weight_decay

    def needs_decay(self) -> bool:
        return self.g != "identity" and self.threshold != "shared" and self.target_sparsity is None

    def notes(self, run: Sparsifier) -> list[str]:
        controller = _controller(run)
        if not controller or not controller.history:
            return []
        step, wanted, reached, factor = controller.history[-1]
        return [
            f"target {self.target_sparsity:.1%}: at step {step} of {run.total_steps} wanted {wanted:.2%}, "
            f"reached {reached:.2%} (factor on s {factor:.4f})"
        ]


def _controller(run: Sparsifier) -> TargetController | None:
    part = run.parts.get("controller")
    assert part is None or isinstance(part, TargetController)
    return part


def _tuner(run: Sparsifier) -> AlphaTuner | None:
    part = run.parts.get("tuner")
    assert part is None or isinstance(part, AlphaTuner)
    return part


@dataclass(frozen=True, kw_only=True)
class AutoSparse(LearnedThreshold):
    """Learned thresholds with Gradient Annealing: pruned weights receive alpha * G, and alpha decays over training."""

    about: ClassVar[About] = About(
        name="autosparse",
        year=2023,
        family="learned during training",
        budget="learned",
        pruned_gradient="alpha * G, alpha annealed to 0",
        train_flops="2 f_S + f_D while alpha > 0, 3 f_S after",
        reference="Kundu et al., AutoSparse: Towards Automated Sparse Training of Deep Neural Networks, arXiv 2304.06941",
        doc="One learned threshold a layer; gradients of pruned weights are scaled by an annealed alpha.",
    )

    alpha: float | None = None
    schedule: str = "sigmoid-cosine"
    beta: float = 1.0
    zero_epoch: int | None = None
    horizon: int | None = None
    backward_sparsity: float = 0.0
    dense_grad_every: int = 1
    autotune: AutoTune | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.autotune is None:
            object.__setattr__(self, "alpha", DEFAULT_ALPHA if self.alpha is None else self.alpha)
        else:
            require(self.alpha is None, "alpha comes from autotune: give AutoTune(start=...) instead of alpha")
            require(
                self.target_sparsity is None,
                "target_sparsity and autotune both decide how sparse the run becomes: choose one",
            )
        self.annealing()
        require(
            0 <= self.backward_sparsity < 1,
            f"backward_sparsity = {self.backward_sparsity}; allowed: 0 <= backward_sparsity < 1",
        )
        require(self.dense_grad_every >= 1, f"dense_grad_every = {self.dense_grad_every}; it must be at least 1")

    def fields(self) -> dict[str, Any]:
        """The config as plain values; reference losses instead of where they were read from."""
        fields = super().fields()
        if self.autotune is not None:
            fields["autotune"]["reference"] = list(self.autotune.losses())
        return fields

    def annealing(self) -> GradientAnnealing:
        alpha = self.autotune.start if self.autotune else self.alpha
        assert alpha is not None
        return GradientAnnealing(
            alpha=alpha, schedule=self.schedule, beta=self.beta, zero_epoch=self.zero_epoch, horizon=self.horizon
        )

    def check(self, run: Sparsifier) -> None:
        super().check(run)
        self.annealing().check(run.epochs)
        if self.autotune is not None:
            require(
                self.autotune.epochs < (self.horizon or run.epochs),
                f"autotune takes {self.autotune.epochs} epochs of a run of {self.horizon or run.epochs}: "
                "train longer, or lower AutoTune(epochs=...)",
            )
            for difference in self.autotune.settings_difference():
                warn(f"the reference losses were made with other settings: {difference}")

    def parts(self, run: Sparsifier) -> dict[str, Stateful]:
        return super().parts(run) if self.autotune is None else {"tuner": AlphaTuner(self.autotune)}

    def start(self, run: Sparsifier) -> None:
        super().start(run)
        if self.autotune is not None and not run.ledger.dense_steps:  # start comes again after load_dense
            run.ledger.add_dense_steps(self.autotune.epochs * run.steps_per_epoch)

    def _backward_sparsity(self) -> float:
        return self.backward_sparsity

    def annealed(self, run: Sparsifier) -> float:
        annealing = self.annealing()
        tuner = _tuner(run)
        if tuner and not annealing.is_zero(run.epoch):
            return tuner.alpha_at(run.epoch, annealing.decay, self.horizon or run.epochs)
        return annealing.at(run.epoch, run.epochs)

    def gate(self, run: Sparsifier) -> float:
        return run.alpha if run.step % self.dense_grad_every == 0 else 0.0

    def gate_is_rare(self) -> bool:
        return self.dense_grad_every > 1

    def end_epoch(self, run: Sparsifier, loss: float | None) -> None:
        tuner = _tuner(run)
        if tuner and not tuner.tuned:
            if loss is None:
                raise ValueError(
                    f"auto-tuning needs the mean training loss of each of the first {tuner.config.epochs} epochs: "
                    "sp.end_epoch(loss=...)"
                )
            tuner.observe(run.epoch, loss)

    def passes(self, density: Tensor, run: Sparsifier) -> tuple[Tensor, Tensor, Tensor]:
        if self.gate(run) == 0:
            return density, density, density
        if not self.backward_sparsity:
            return density, density, dense_like(density)
        return density, density, torch.clamp(density, min=1 - self.backward_sparsity)

    def notes(self, run: Sparsifier) -> list[str]:
        lines, tuner = [f"alpha {run.alpha:.4f}"], _tuner(run)
        if tuner and tuner.history:
            epoch, loss, reference, alpha = tuner.history[-1]
            lines.append(f"auto-tune: epoch {epoch} loss {loss:.4f}, reference {reference:.4f}, alpha set to {alpha:.4f}")
        return lines + super().notes(run)


@dataclass(frozen=True, kw_only=True)
class STR(LearnedThreshold):
    """Soft threshold weight reparametrisation: AutoSparse with alpha = 0."""

    about: ClassVar[About] = About(
        name="str",
        year=2020,
        family="learned during training",
        budget="learned",
        pruned_gradient="none",
        train_flops="3 f_S",
        reference="Kusupati et al., Soft Threshold Weight Reparameterization for Learnable Sparsity, ICML 2020",
        doc="One learned threshold a layer; pruned weights receive no gradient.",
    )
