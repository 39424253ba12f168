"""The learning rate as a function of time: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from autosparse.methods import Method
from autosparse.recipes.recipe import ScheduleBlock


def learning_rate(block: ScheduleBlock, peak: float, step: int, steps_per_epoch: int, epochs: int) -> float:
    """The rate of optimizer step `step`, counted from 0 as epochs are."""
    warmup = block.warmup_steps or round(block.warmup_epochs * steps_per_epoch)
    total, now = epochs * steps_per_epoch, step
    if block.by == "epoch":  # the same in whole epochs
        warmup, total, now = round(warmup / steps_per_epoch), epochs, step // steps_per_epoch
    if now < warmup:
        return peak * (now + 1) / warmup
    if block.name == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * (now - warmup) / max(1, total - warmup)))
    if block.name == "inverse-sqrt":
        return peak * math.sqrt(warmup / (now + 1)) if now >= warmup else peak
    if block.name == "steps":
        passed = sum(step // steps_per_epoch >= milestone for milestone in block.milestones)
        return peak * block.gamma**passed
    return peak


def retrain_share(block: ScheduleBlock, method: Method | None, step: int, round_steps: int) -> float:
    """The factor on the rate of `step`: below 1 in later rounds of a method that retrains at a lower rate."""
    if method is None or step < round_steps:
        return 1.0
    return method.traits.retrain_rate if block.retrain_rate is None else block.retrain_rate


def all_rates(block: ScheduleBlock, peak: float, steps_per_epoch: int, epochs: int) -> list[float]:
    """The rate of every step of a run."""
    return [learning_rate(block, peak, step, steps_per_epoch, epochs) for step in range(epochs * steps_per_epoch)]
