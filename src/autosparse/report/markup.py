"""Charts as HTML: the drawing of `figures` as SVG, a legend of buttons, and the values for hovering."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from autosparse.report import figures
from autosparse.report.charts import Chart, LineChart, RowChart
from autosparse.report.palette import Colour

MANY_KEYS = 8  # a legend with more entries scrolls
SIDES = ("left", "top", "width", "height")
Key = tuple[str, Colour, str]  # name, colour and the shape of its sign


def chart_html(chart: Chart, wide: bool = False) -> str:
    """A figure with caption, legend, drawing and the values for hovering."""
    drawing, area = figures.svg(chart, wide)
    place = ";".join(f"{side}:{100 * share:.3f}%" for side, share in zip(SIDES, area.box, strict=True))
    kind, keys, signs, values = _parts(chart)
    limits = {"x": area.x, "y": area.y, "log": area.log}
    return (
        f'<figure class="card chart{" wide" if wide else ""}" data-kind="{kind}" data-key="{escape(chart.key)}">'
        f"<figcaption><h3>{escape(chart.title)}</h3><p>{escape(chart.note)}</p></figcaption>{_legend(keys, signs)}"
        f'<div class="drawing">{drawing}<div class="area" style="{place}"></div></div>'
        f"{_data({**limits, **values, 'c': [colour.css for _, colour, _ in keys]})}</figure>"
    )


def _parts(chart: Chart) -> tuple[str, list[Key], list[tuple[str, str]], dict[str, object]]:
    """Kind, legend entries, further signs and hover values of a chart."""
    if isinstance(chart, LineChart):
        keys = [(line.name, line.colour, "dash" if line.dashed else "line") for line in chart.lines]
        series = [{"n": line.name, "x": list(line.xs), "y": [_brief(value) for value in line.ys]} for line in chart.lines]
        return "lines", keys, [], {"xl": chart.x_label, "u": chart.unit, "s": series}
    if isinstance(chart, RowChart):
        shape = "bar" if len(chart.marks) == 1 else "dot"
        keys = [(mark.name, mark.colour, shape) for mark in chart.marks]
        rows = [{"n": row.name, "v": [_brief(value) for value in row.values], "b": _brief(row.behind)} for row in chart.rows]
        values: dict[str, object] = {
            "m": [mark.name for mark in chart.marks],
            "u": chart.unit,
            "bn": chart.behind_name,
            "r": rows,
        }
        return "rows", keys, [("behind", chart.behind_name), ("guide", chart.guide_name)], values
    groups = {point.group: point.colour for point in chart.points}
    shapes = {point.group: point.shape for point in chart.points}
    points = [[point.name, list(groups).index(point.group), _brief(point.x), _brief(point.y)] for point in chart.points]
    signs = [("level", chart.guide_name)] if chart.guide is not None else []
    values = {"xl": chart.x_label, "yl": chart.y_label, "u": chart.unit, "p": points}
    return "points", [(name, colour, shapes[name]) for name, colour in groups.items()], signs, values


def _legend(keys: Sequence[Key], signs: Sequence[tuple[str, str]]) -> str:
    """Buttons that hide and show a series where there are several; signs that only explain."""
    entries = [
        f'<button type="button" class="key" data-series="{place}" aria-pressed="true">'
        f"{_sign(shape, colour)}{escape(name)}</button>"
        for place, (name, colour, shape) in enumerate(keys)
    ]
    if len(keys) == 1:
        name, colour, shape = keys[0]
        entries = [f'<span class="sign">{_sign(shape, colour)}{escape(name)}</span>'] if signs else []
    entries += [f'<span class="sign"><i class="{sign}"></i>{escape(name)}</span>' for sign, name in signs if name]
    many = " many" if len(keys) > MANY_KEYS else ""
    return f'<div class="legend{many}">{"".join(entries)}</div>' if entries else ""


def _sign(shape: str, colour: Colour) -> str:
    return f'<i class="{shape}" style="--c:{colour.css}"></i>'


def _data(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    # a layer called </script> must stay text
    return f'<script type="application/json">{text.replace("<", chr(92) + "u003c")}</script>'


def _brief(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
