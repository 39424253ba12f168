"""Presets of AutoSparse: what its fields are where they are left out. A field that is given wins."""

from __future__ import annotations

from dataclasses import dataclass

from autosparse.common.words import did_you_mean
from autosparse.methods.families.base import require

RAMP, NEVER = "ramp", "never"
STEP, EPOCH = "step", "epoch"
LATE = 0.9  # the part of a run after which alpha is 0 at the latest; in the paper epoch 90 of 100


@dataclass(frozen=True)
class Preset:
    """Values of the fields of AutoSparse that a preset decides."""

    alpha: float
    zero_epoch: int | float | str
    alpha_per: str


PRESETS = {
    "fast": Preset(alpha=0.0, zero_epoch=0, alpha_per=STEP),
    "balanced": Preset(alpha=0.75, zero_epoch=RAMP, alpha_per=STEP),
    "accurate": Preset(alpha=0.75, zero_epoch=LATE, alpha_per=STEP),
    "v0.1": Preset(alpha=0.75, zero_epoch=NEVER, alpha_per=EPOCH),
}
DEFAULT_PRESET = "balanced"


def preset_of(name: str | None) -> Preset:
    """The preset of this name; None is the default one."""
    name = DEFAULT_PRESET if name is None else name
    hint = did_you_mean(name, list(PRESETS), ".")
    require(name in PRESETS, f"preset = {name!r}; allowed: {', '.join(PRESETS)}{hint}")
    return PRESETS[name]


def zero_moment(preset: Preset, ramp: float | None, is_constant: bool) -> int | float | str:
    """When alpha becomes 0: a constant alpha that was asked for stays, and without a ramp that ends in time it is late."""
    if is_constant:
        return NEVER
    if preset.zero_epoch == RAMP and (ramp is None or ramp > LATE):
        return LATE
    return preset.zero_epoch
