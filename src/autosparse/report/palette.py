"""Colours that colour-blind people can distinguish, each for light and for dark backgrounds."""

from __future__ import annotations

from typing import NamedTuple


class Colour(NamedTuple):
    """One colour on white and on black backgrounds."""

    light: str
    dark: str

    @property
    def css(self) -> str:
        """The one that fits the page's colour scheme."""
        return f"light-dark({self.light}, {self.dark})"


# Okabe and Ito's palette, its pale hues darkened for white and its dark ones lightened for black backgrounds.
RUNS = (
    Colour("#0072b2", "#5ab4f0"),
    Colour("#d55e00", "#ff8f4a"),
    Colour("#009e73", "#35cfa2"),
    Colour("#b0487f", "#e79ac4"),
    Colour("#c08400", "#f2bf4e"),
    Colour("#6a51a3", "#ab9cf2"),
    Colour("#3f8fa8", "#9adbe8"),
    Colour("#7a4a21", "#d3a27a"),
)
SHAPES = ("dot", "square", "triangle")
DENSE = Colour("#6f7785", "#a3abb9")

# From first to last layer; lightness changes steadily, so that the order survives printing in grey.
DEPTHS = (
    Colour("#3c1f74", "#8f80f5"),
    Colour("#2f659b", "#62a5ee"),
    Colour("#168a7c", "#41c9b4"),
    Colour("#6f9a25", "#a9d65a"),
    Colour("#d08a00", "#ffd268"),
)


def of_run(place: int) -> Colour:
    """The colour of the run at this position."""
    return RUNS[place % len(RUNS)]


def shape_of_run(place: int) -> str:
    """The shape of its mark: it changes where the colours begin again."""
    return SHAPES[place // len(RUNS) % len(SHAPES)]


def of_layer(place: int, count: int) -> Colour:
    """The colour of a layer by its depth."""
    position = place / max(1, count - 1) * (len(DEPTHS) - 1)
    low = min(int(position), len(DEPTHS) - 2)
    pairs = zip(DEPTHS[low], DEPTHS[low + 1], strict=True)
    return Colour(*(_between(first, second, position - low) for first, second in pairs))


def _between(first: str, second: str, share: float) -> str:
    channels = ((int(first[place : place + 2], 16), int(second[place : place + 2], 16)) for place in (1, 3, 5))
    return "#" + "".join(f"{round(low + (high - low) * share):02x}" for low, high in channels)
