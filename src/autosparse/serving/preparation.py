"""What one attempt to deploy a model works with, and what it learns."""

from __future__ import annotations

from dataclasses import dataclass, field

from autosparse.kernels.library import Engine
from autosparse.serving.choices import Choices
from autosparse.serving.quantized.calibration import Calibration, Quantization


@dataclass
class Preparation:
    """The engine and its threads; whether all weights stay in the caches; choices; why layers stay in torch, by name."""

    engine: Engine | None
    threads: int
    hot: bool
    choices: Choices
    reasons: dict[str, str] = field(default_factory=dict)
    quantization: Quantization | None = None  # for int8 and bfloat16
    calibration: Calibration = field(default_factory=Calibration)
