"""The choices of a deployment in the order in which they are made: measured now, or remembered from a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from autosparse.serving.linear import PackedLinear
from autosparse.serving.native import NativeRegion
from autosparse.serving.operations import Variant
from autosparse.serving.quantized.calibration import ForgottenError
from autosparse.serving.quantized.operations import ByteVariant
from autosparse.serving.quantized.region import ByteRegion


@dataclass(frozen=True)
class RegionChoice:
    """How a region is computed: images at a time, and the variant of each convolution by the step's number."""

    layers: tuple[str, ...]
    images: int
    variants: dict[int, Variant]
    seconds: tuple[float, float]  # of the engine and of torch


@dataclass(frozen=True)
class ByteChoice:
    """The same for a region in int8 or bfloat16."""

    layers: tuple[str, ...]
    images: int
    variants: dict[int, ByteVariant]


@dataclass(frozen=True)
class LinearChoice:
    """How a linear layer is computed, by the number of tokens; in int8 also how wide the tiles of each way are."""

    layer: str
    ways: dict[int, str]
    tiles: dict[str, int] = field(default_factory=dict)


Choice = RegionChoice | ByteChoice | LinearChoice


class Choices:
    """Measures whatever is not remembered; `taken` is what the deployment uses."""

    def __init__(self, remembered: list[Choice] | None = None) -> None:
        self.taken: list[Choice] = []
        self._remembered = remembered

    def region(self, region: NativeRegion, inputs: list[Tensor]) -> tuple[float, float]:
        """Set up a region; returns the seconds of the engine and of torch."""
        names = tuple(region.layer_names())
        if self._remembered is None:
            seconds = region.measure(inputs)
        else:
            choice = self._next(names)
            if not isinstance(choice, RegionChoice) or not region.use(inputs, choice.images, choice.variants):
                raise ForgottenError(f"the choices of {names[0]} are not possible for it")
            seconds = choice.seconds
        self.taken.append(RegionChoice(names, region.images, region.variants, seconds))
        return seconds

    def byte_region(self, region: ByteRegion, inputs: list[Tensor], wins: Callable[[], bool]) -> bool:
        """Whether a region in int8 or bfloat16 is used: as remembered, or if it wins."""
        names = tuple(region.layer_names())
        if self._remembered is None:
            if not wins():
                return False
        else:
            choice = self._remembered[len(self.taken)] if len(self.taken) < len(self._remembered) else None
            if not isinstance(choice, ByteChoice):
                return False
            if choice.layers != names or not region.use(inputs, choice.images, choice.variants):
                raise ForgottenError(f"the choices of {names[0]} are not possible for it")
        self.taken.append(ByteChoice(names, region.images, region.variants))
        return True

    def linear(self, layer: PackedLinear, tokens: list[int], hot: bool) -> None:
        """Set up a linear layer for these numbers of tokens."""
        if self._remembered is None:
            for count in tokens:
                layer.measure(count, hot)
        else:
            choice = self._next(layer.name)
            if not isinstance(choice, LinearChoice) or not layer.use(choice.ways, choice.tiles):
                raise ForgottenError(f"the choices of {layer.name} are not possible for it")
        self.taken.append(LinearChoice(layer.name, layer.measured, dict(layer.tiles)))

    def finish(self) -> None:
        """Everything that was remembered has been used."""
        if self._remembered is not None and len(self._remembered) != len(self.taken):
            raise ForgottenError("it has fewer layers than are remembered")

    def _next(self, name: Any) -> Choice:
        assert self._remembered is not None
        if len(self.taken) == len(self._remembered):
            raise ForgottenError(f"nothing is remembered of {name}")
        choice = self._remembered[len(self.taken)]
        if name != (choice.layer if isinstance(choice, LinearChoice) else choice.layers):
            raise ForgottenError(f"nothing is remembered of {name}")
        return choice
