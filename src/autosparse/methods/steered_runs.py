"""A run of learned thresholds that is steered to a goal: its controller, its moves, its last step and what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autosparse.common.warnings import warn
from autosparse.methods.families.base import Run, layer_parts
from autosparse.methods.goals import LossGoal
from autosparse.methods.loss_budget import LossController, reference_losses
from autosparse.methods.target import TargetController
from autosparse.methods.target_steering import sparsity_in, steer, zero_smallest
from autosparse.parametrizations import SoftThreshold

if TYPE_CHECKING:
    from autosparse.methods.autosparse import LearnedThreshold

SPARSEST = 0.99  # that a loss budget may ask for
LESS = "Lower the learning rate, or clip gradients."
ROUNDS = 20  # of removing what a file still has too much


def controller_of(method: LearnedThreshold, sp: Run) -> TargetController:
    """The part that says when thresholds move and how far; under a goal in other units it learns the sparsity later."""
    goal = method.goal
    assert goal is not None
    if isinstance(goal, LossGoal):
        sparsest = min(SPARSEST, 1 - sp.density_floor)
        return LossController(goal.asked, reference_losses(method.reference), sp.epochs, sp.steps_per_epoch, sparsest)
    given = goal.asked if goal.field == "target_sparsity" else 0.5
    return TargetController(given, method.target_ramp, sp.total_steps)


def start_steering(method: LearnedThreshold, sp: Run) -> None:
    """Tell the controller where the run starts, once the units are known: MACs come with the first forward pass."""
    goal, controller = method.goal, sp.parts.get("controller")
    if goal is None or controller is None or not goal.is_known(sp):
        return
    controller.start(sparsity_in(layer_parts(sp, SoftThreshold), goal.units(sp)))
    if isinstance(goal, LossGoal) and not sp.ledger.dense_steps:  # start comes again after load_dense
        sp.ledger.add_dense_steps(len(controller.losses) * sp.steps_per_epoch)


def steer_run(method: LearnedThreshold, sp: Run) -> None:
    """Move the thresholds after a step, if it is time."""
    controller = sp.parts.get("controller")
    if controller is None or (controller.start_sparsity is not None and not controller.due(sp.step)):
        return  # at most steps, so before anything else
    goal = method.goal
    assert goal is not None
    if controller.start_sparsity is None:
        goal.learn(sp)
        if goal.is_known(sp):
            goal.check(sp)
            start_steering(method, sp)
    if not controller.due(sp.step):
        return
    if goal.field not in ("target_sparsity", "max_loss_increase"):
        sparsity = min(max(goal.sparsity(sp), 0.0), 1 - sp.density_floor)
        controller.aim(sparsity, goal.miss(sparsity))
    layers = layer_parts(sp, SoftThreshold)
    zeroed = steer(layers, controller, sp.step, sp.held_floor, sp.generator, goal.units(sp))
    if sp.step == sp.total_steps:
        for _ in range(ROUNDS):
            excess = goal.excess(sp)
            if not excess or not zero_smallest(layers, excess, sp.held_floor):
                break
    if zeroed:
        sp.memory["zeroed"] = sp.memory.get("zeroed", 0) + zeroed
    if sp.step == sp.total_steps:
        _warn_if_missed(method, sp, sp.memory.get("zeroed", 0))


def observe_loss(method: LearnedThreshold, sp: Run, loss: float | None) -> None:
    """At the end of an epoch: let a loss budget see what the sparsity has cost."""
    controller = sp.parts.get("controller")
    if not isinstance(controller, LossController):
        return
    if loss is None and sp.epoch < len(controller.losses):
        raise ValueError("max_loss_increase needs the mean training loss of every epoch: sp.end_epoch(loss=...)")
    controller.observe(sp.epoch, 0.0 if loss is None else loss, sp.step)


def _warn_if_missed(method: LearnedThreshold, sp: Run, zeroed: int) -> None:
    goal = method.goal
    assert goal is not None
    if isinstance(goal, LossGoal):
        return
    asked, reached = getattr(method, goal.field), goal.reached(sp)
    number = goal.text(reached) if goal.field in ("target_size", "target_latency") else f"{reached:.4f}"
    if not goal.is_met(sp) or (goal.field == "target_sparsity" and reached > asked + goal.miss(asked)):
        warn(
            f"{goal.field} = {asked}, reached {number}: too few weights are left that thresholds or the density floor allow "
            f"to prune. {LESS}"
        )
    elif zeroed:
        warn(
            f"{goal.field} = {asked} was reached by setting {zeroed} weights to zero, since they had grown beyond every "
            f"threshold. {LESS}"
        )


def steering_notes(method: LearnedThreshold, sp: Run) -> list[str]:
    """Where the run stands, for the report."""
    goal, controller = method.goal, sp.parts.get("controller")
    if goal is None or controller is None or not controller.history:
        return []
    step, planned, reached, factor = controller.history[-1]
    moved = f"at step {step} of {sp.total_steps} wanted {planned:.2%}, reached {reached:.2%} (factor on s {factor:.4f})"
    if isinstance(controller, LossController):
        if not controller.seen:
            return [f"loss budget {goal.asked:.2%}: {moved}"]
        epoch, _, _, density = controller.seen[-1]
        within = "within" if (controller.increase or 0.0) <= goal.asked else "beyond"
        return [
            f"loss {controller.increase:+.2%} of the dense run's in epoch {epoch + 1} of {sp.epochs}, at {1 - density:.2%} "
            f"zeros: {within} the budget of {goal.asked:.2%}; sparsity found {reached:.2%}"
        ]
    if goal.field == "target_sparsity":
        return [f"target {goal.asked:.1%}: {moved}"]
    return [f"{goal.field} {goal.text(goal.asked)}: {goal.text(goal.reached(sp))} now; {moved}"]
