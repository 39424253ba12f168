"""Charts as HTML: stretched SVG for the marks, text for the labels: they fit any width and print without scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from autosparse.report.charts import Chart, Line, LineChart, PointChart, RowChart
from autosparse.report.palette import Colour
from autosparse.report.scale import Scale, around

SIZE = 1000  # of the stretched drawing; its units are not pixels
ROW = 22  # pixels a layer
# With more curves than this the hover text names the nearest one only.
MOST_KEYS = 8


def chart_html(chart: Chart, wide: bool = False) -> str:
    """A figure with caption, legend, drawing and the values for hovering."""
    if isinstance(chart, LineChart):
        legend, body, kind = _line_legend(chart), _line_body(chart), "lines"
    elif isinstance(chart, RowChart):
        legend, body, kind = _row_legend(chart), _row_body(chart), "rows"
    else:
        legend, body, kind = _point_legend(chart), _point_body(chart), "points"
    size = " wide" if wide else ""
    caption = f"<figcaption><h3>{escape(chart.title)}</h3><p>{escape(chart.note)}</p></figcaption>"
    return (
        f'<figure class="card chart{size}" data-kind="{kind}" data-key="{escape(chart.key)}">{caption}{legend}{body}</figure>'
    )


def short(value: float) -> str:
    """A number for an axis: 0.05, 20, 15k, 2.5e-5."""
    if abs(value) >= 10_000:
        return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1000:g}k"
    return f"{value:.4g}".replace("e-0", "e-")


def _paint(colour: Colour) -> str:
    return f"--l:{colour.light};--d:{colour.dark}"


def _data(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    # a layer called </script> must stay text
    return f'<script type="application/json">{text.replace("<", chr(92) + "u003c")}</script>'


def _keys(entries: Sequence[tuple[str, Colour, str]]) -> str:
    """Buttons that hide and show a series; each entry is a name, a colour and the shape of its sign."""
    if len(entries) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" class="key" data-series="{place}" aria-pressed="true">'
        f'<i class="{shape}" style="{_paint(colour)}"></i>{escape(name)}</button>'
        for place, (name, colour, shape) in enumerate(entries)
    )
    many = " many" if len(entries) > MOST_KEYS else ""
    return f'<div class="legend{many}">{buttons}</div>'


def _frame(x: Scale, y: Scale, x_unit: str, y_unit: str, x_label: str, y_label: str, drawing: str, values: object) -> str:
    """Axes around a drawing; y grows upwards."""
    x_ticks, y_ticks = x.ticks(6), y.ticks(5)
    grid = "".join(f'<path class="grid" d="M0 {_up(y, tick)}H{SIZE}"/>' for tick in y_ticks)
    tall = "".join(f'<span style="bottom:{100 * y.place(tick):.2f}%">{short(tick)}</span>' for tick in y_ticks)
    flat = "".join(f'<span style="left:{100 * x.place(tick):.2f}%">{short(tick)}</span>' for tick in x_ticks)
    y_title = f"{y_label} ({y_unit})" if y_unit else y_label
    x_title = f"{x_label} ({x_unit})" if x_unit else x_label
    spoken = escape(f"{y_title} over {x_title}")
    svg = f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img" aria-label="{spoken}">'
    return (
        f'<div class="y-title">{escape(y_title)}</div><div class="plot"><div class="y">{tall}</div>'
        f'<div class="area">{svg}{grid}{drawing}</svg></div><div class="x">{flat}</div></div>'
        f'<div class="x-title">{escape(x_title)}</div>{_data(values)}'
    )


def _up(scale: Scale, value: float) -> int:
    return round(SIZE * (1 - scale.place(value)))


def _line_legend(chart: LineChart) -> str:
    return _keys([(line.name, line.colour, "dash" if line.dashed else "line") for line in chart.lines])


def _line_body(chart: LineChart) -> str:
    values = [value for line in chart.lines for value in line.ys if value is not None]
    y = chart.scale(values)
    xs = [value for line in chart.lines for value in line.xs]
    first, last = min(xs, default=0.0), max([*xs, *([] if chart.last_x is None else [chart.last_x])], default=1.0)
    x = Scale(first, last, whole=True) if last > first else Scale(first - 0.5, first + 0.5, whole=True)
    thin = " thin" if len(chart.lines) > MOST_KEYS else ""
    drawing = "".join(
        f'<path class="curve{thin}{" dashed" if line.dashed else ""}" data-series="{place}" style="{_paint(line.colour)}" '
        f'd="{_path(line, x, y)}"/>'
        for place, line in enumerate(chart.lines)
    )
    series = [{"n": line.name, "x": list(line.xs), "y": [_brief(value) for value in line.ys]} for line in chart.lines]
    data = {"x": [x.low, x.high], "y": [y.low, y.high], "log": y.log, "xl": chart.x_label, "u": chart.unit, "s": series}
    return _frame(x, y, "", chart.unit, chart.x_label, chart.y_label, drawing, data)


def _brief(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _path(line: Line, x: Scale, y: Scale) -> str:
    """Straight pieces between neighbours; a lone point is a stroke without length, which round ends make a dot."""
    parts, pen_down = [], False
    for place, (across, value) in enumerate(zip(line.xs, line.ys, strict=True)):
        if value is None:
            pen_down = False
            continue
        position = f"{round(SIZE * x.place(across))} {_up(y, value)}"
        after = line.ys[place + 1] if place + 1 < len(line.ys) else None
        parts.append(f"L{position}" if pen_down else f"M{position}" + ("h0" if after is None else ""))
        pen_down = True
    return "".join(parts)


def _row_legend(chart: RowChart) -> str:
    shape = "bar" if len(chart.marks) == 1 else "dot"
    keys = _keys([(mark.name, mark.colour, shape) for mark in chart.marks])
    signs = "".join(
        f'<span class="sign"><i class="{sign}"></i>{escape(name)}</span>'
        for sign, name in (("behind", chart.behind_name), ("guide", chart.guide_name))
        if name
    )
    if not keys and chart.marks:
        mark = chart.marks[0]
        signs = f'<span class="sign"><i class="bar" style="{_paint(mark.colour)}"></i>{escape(mark.name)}</span>{signs}'
    return f'{keys}<div class="legend">{signs}</div>' if signs else keys


def _row_body(chart: RowChart) -> str:
    known = [value for row in chart.rows for value in (*row.values, row.behind) if value is not None]
    x = around(known, 0.0, chart.high or max(known, default=1.0) * 1.02)
    height = ROW * len(chart.rows)
    parts = [f'<path class="grid" d="M{round(SIZE * x.place(tick))} 0V{height}"/>' for tick in x.ticks(5)]
    for place, row in enumerate(chart.rows):
        middle = ROW * place + ROW / 2
        if row.behind is not None:
            parts.append(f'<path class="pale" d="M0 {middle:g}H{SIZE * x.place(row.behind):.1f}"/>')
        for number, (mark, value) in enumerate(zip(chart.marks, row.values, strict=True)):
            if value is not None:
                along = f"{SIZE * x.place(value):.1f}"
                path = f"M0 {middle:g}H{along}" if len(chart.marks) == 1 else f"M{along} {middle:g}h0"
                shape = "bar" if len(chart.marks) == 1 else "dot"
                parts.append(f'<path class="{shape}" data-series="{number}" style="{_paint(mark.colour)}" d="{path}"/>')
    for number, mark in enumerate(chart.marks):
        if mark.guide is not None:
            ink = "" if len(chart.marks) == 1 else f' style="{_paint(mark.colour)}"'
            parts.append(f'<path class="guide" data-series="{number}"{ink} d="M{SIZE * x.place(mark.guide):.1f} 0V{height}"/>')
    names = "".join(f'<span title="{escape(row.name)}">{escape(row.name)}</span>' for row in chart.rows)
    texts = "".join(f"<span>{escape(row.text)}</span>" for row in chart.rows)
    flat = "".join(f'<span style="left:{100 * x.place(tick):.2f}%">{short(tick)}</span>' for tick in x.ticks(5))
    title = f"{chart.x_label} ({chart.unit})" if chart.unit else chart.x_label
    rows = [{"n": row.name, "v": [_brief(value) for value in row.values], "b": _brief(row.behind)} for row in chart.rows]
    data = {"m": [mark.name for mark in chart.marks], "u": chart.unit, "bn": chart.behind_name, "r": rows, "h": ROW}
    return (
        f'<div class="rows" style="--h:{height}px"><div class="names">{names}</div><div class="area">'
        f'<svg viewBox="0 0 {SIZE} {height}" preserveAspectRatio="none" role="img" aria-label="{escape(title)} of every layer">'
        f'{"".join(parts)}</svg></div><div class="values">{texts}</div><div class="x">{flat}</div></div>'
        f'<div class="x-title">{escape(title)}</div>{_data(data)}'
    )


def _point_legend(chart: PointChart) -> str:
    groups = {point.group: point.colour for point in chart.points}
    keys = _keys([(name, colour, "dot") for name, colour in groups.items()])
    if chart.guide is None:
        return keys
    return f'{keys}<div class="legend"><span class="sign"><i class="level"></i>{escape(chart.guide_name)}</span></div>'


def _point_body(chart: PointChart) -> str:
    x = around([point.x for point in chart.points])
    y = around([point.y for point in chart.points] + ([] if chart.guide is None else [chart.guide]))
    groups = list(dict.fromkeys(point.group for point in chart.points))
    best = sorted((point.x, point.y) for point in chart.points if point.best)
    joined = "L".join(f"{round(SIZE * x.place(a))} {_up(y, b)}" for a, b in best)
    drawing = "" if chart.guide is None else f'<path class="guide" d="M0 {_up(y, chart.guide)}H{SIZE}"/>'
    drawing += f'<path class="frontier" d="M{joined}"/>' if len(best) > 1 else ""
    for point in chart.points:
        place = f"M{round(SIZE * x.place(point.x))} {_up(y, point.y)}h0"
        drawing += (
            f'<path class="dot large" data-series="{groups.index(point.group)}" style="{_paint(point.colour)}" d="{place}"/>'
        )
    points = [[point.name, groups.index(point.group), _brief(point.x), _brief(point.y)] for point in chart.points]
    data = {"x": [x.low, x.high], "y": [y.low, y.high], "xl": chart.x_label, "yl": chart.y_label, "p": points, "u": chart.unit}
    return _frame(x, y, chart.unit, chart.unit, chart.x_label, chart.y_label, drawing, data)
