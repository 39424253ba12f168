"""The whole page: one file of HTML with its style, script and data inside."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from autosparse import __version__
from autosparse.methods import METHODS
from autosparse.report import comparison, curves, sections
from autosparse.report.charts import Chart, LineChart, PointChart, labels
from autosparse.report.markup import chart_html
from autosparse.report.runs import Run

MOST_DETAILED = 12  # runs whose own charts are part of a common page
GENERATOR = '<meta name="generator" content="autosparse report">'


def is_ours(page: Path) -> bool:
    """Whether a file is a report that was written here, and may be replaced."""
    return GENERATOR in page.read_text("utf-8", errors="replace")[:1000]


def charts_of(runs: Sequence[Run]) -> list[Chart]:
    """The charts for which these runs have values, in the page's order."""
    charts: list[Chart] = [comparison.frontier(runs)] if len(runs) > 1 else []
    over_clocks = (curves.accuracy_over_seconds, curves.accuracy_over_processor_time)
    over_time = (curves.accuracy, *over_clocks, curves.loss, curves.sparsity, curves.alpha)
    charts += [chart_of(runs) for chart_of in (*over_time, curves.train_cost, curves.test_cost)]
    charts += _single_run_curves(runs[0]) if len(runs) == 1 else []
    charts += [comparison.layer_sparsity(runs), comparison.layer_flops(runs)]
    return [chart for chart in charts if not _empty(chart)]


def build_page(runs: Sequence[Run], images: Sequence[str] = ()) -> str:
    """The HTML of a report; `images` are files in the same folder to link to."""
    body = _page_of_one(runs[0]) if len(runs) == 1 else _page_of_several(runs)
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"
    style, script = (resources.files("autosparse.report").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    # nothing is ever fetched, and no script but ours runs, whatever text a recipe holds
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    links = ", ".join(f'<a href="{escape(name)}">{escape(name.removesuffix(".png"))}</a>' for name in images)
    figures = f"<p>The figures as PNG files: {links}.</p>" if images else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{GENERATOR}'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)} | autosparse report</title><style>{style}</style></head>\n<body><main>{body}</main>\n"
        f"<footer>{figures}<p>Made by autosparse {escape(__version__)}. Train F and Test F are counted from "
        f"multiply-accumulates; they are not times.</p></footer>\n<script>{script}</script></body></html>\n"
    )


def _page_of_one(run: Run) -> str:
    header = _header(run.name, f"{sections.badge(run)} {_method_words(run)}", str(run.recipe.get("description") or ""))
    return header + sections.banner(run) + sections.tiles(run) + _details(run, charts_of([run]))


def _page_of_several(runs: Sequence[Run]) -> str:
    names = labels(runs)
    methods = ", ".join(dict.fromkeys(run.method for run in runs))
    header = _header(f"{len(runs)} runs compared", escape(methods), "")
    warnings = "".join(sections.banner(run, name) for run, name in zip(runs, names, strict=True))
    table = sections.comparison_table(comparison.compare_runs(runs))
    note = "Base: dense accuracy in percent. Top1(S): accuracy of the sparse net. Drop: loss of accuracy relative to Base. "
    note += "S: zeros. Train F, Test F: fractions of the dense FLOPs."
    note += " Accuracy is that of tokens." if all(run.translates for run in runs) else ""
    charts = charts_of(runs)
    plane = "".join(chart_html(chart, True) for chart in charts if isinstance(chart, PointChart))
    parts = [_section("Comparison", f'<div class="card wide">{table}<p class="note">{note}</p></div>{plane}')]
    lines = "".join(chart_html(chart) for chart in charts if isinstance(chart, LineChart))
    parts.append(_section("Over time", lines))
    parts.append(_section("Layers", "".join(chart_html(chart, True) for chart in charts if chart.key.startswith("layer-"))))
    if len(runs) > MOST_DETAILED:
        parts.append('<p class="note">Every run has a page of its own: <code>autosparse report FOLDER/RUN</code>.</p>')
    for run, name in zip(runs, names, strict=True) if len(runs) <= MOST_DETAILED else ():
        charts = [chart for chart in [curves.loss([run]), *_single_run_curves(run)] if not _empty(chart)]
        body = f'<p class="sub">{sections.badge(run)} {_method_words(run)}</p>{sections.tiles(run)}{_details(run, charts)}'
        parts.append(f'<details class="run"><summary>{escape(name)}</summary>{body}</details>')
    return header + warnings + "".join(parts)


def _details(run: Run, charts: Sequence[Chart]) -> str:
    groups = {
        "Training": ("accuracy", "accuracy-over-seconds", "accuracy-over-processor-seconds", "loss", "learning-rate"),
        "Sparsity over time": ("sparsity", "alpha", "layer-sparsity-over-time", "thresholds"),
        "Cost and control": ("train-flops", "test-flops", "controller"),
        "Layers": ("layer-sparsity", "layer-flops"),
    }
    of_group = {title: "".join(chart_html(chart) for chart in charts if chart.key in keys) for title, keys in groups.items()}
    parts = [_section(title, body) for title, body in of_group.items()]
    text = sections.events(run) + sections.layer_table(run) + sections.recipe(run) + sections.origin(run)
    return "".join(parts) + _section("Details", text)


def _single_run_curves(run: Run) -> list[Chart]:
    """Charts that make sense for one run at a time."""
    return [curves.layer_sparsity(run), curves.thresholds(run), curves.controller(run), curves.learning_rate([run])]


def _empty(chart: Chart) -> bool:
    if isinstance(chart, LineChart):
        return not chart.lines
    if isinstance(chart, PointChart):
        return not chart.points
    return not chart.marks or not chart.rows


def _method_words(run: Run) -> str:
    """The method and the settings that differ from its defaults: a run's folder holds every field."""
    given = run.recipe.get("method")
    fields, defaults = given if isinstance(given, dict) else {}, _defaults(run.method)
    settings = {key: value for key, value in fields.items() if key != "name" and (key, value) not in defaults.items()}
    shown = yaml.safe_dump(settings, sort_keys=False, default_flow_style=True, width=10_000).strip()[1:-1]
    return f"<b>{escape(run.method)}</b>" + (f" <span>{escape(shown)}</span>" if shown else "")


def _defaults(method: str) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(METHODS[method])} if method in METHODS else {}


def _header(title: str, under: str, description: str) -> str:
    words = f"<p>{escape(description)}</p>" if description else ""
    return f'<header><p class="brand">autosparse report</p><h1>{escape(title)}</h1><p class="sub">{under}</p>{words}</header>'


def _section(title: str, body: str) -> str:
    if not body:
        return ""
    return f'<section><h2>{escape(title)}</h2><div class="grid-of-cards">{body}</div></section>'
