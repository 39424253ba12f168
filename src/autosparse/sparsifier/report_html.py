"""The report as a table for notebooks: inline styles alone, in the notebook's own colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from autosparse.common.tables import cell

if TYPE_CHECKING:
    from autosparse.sparsifier.report import Report

HEADINGS = ("layer", "kind", "weights", "zeros", "sparsity", "threshold", "MACs", "computed")
LEFT = ("layer", "kind", "computed")
BAR = "rgba(0,114,178,.25)"
CELL = "padding:.2em .6em"
LINE = "1px solid rgba(128,128,128,.35)"


def html(report: Report) -> str:
    """Title, a row per layer with a bar as long as its share of zeros, totals, notes."""
    head = "".join(f'<th style="{CELL};text-align:{_side(name)}">{name}</th>' for name in HEADINGS)
    body = "".join(_row(layer.cells(), layer.sparsity) for layer in report.layers)
    foot = _row(report.totals(), report.sparsity, f' style="border-top:{LINE};font-weight:bold"')
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.lines())
    return (
        f'<div style="overflow-x:auto"><p><b>{escape(report.title)}</b></p>'
        f'<table style="border-collapse:collapse"><thead><tr style="border-bottom:{LINE}">{head}</tr></thead>'
        f"<tbody>{body}{foot}</tbody></table>"
        f'<ul style="margin-top:.6em;list-style:none;padding-left:0;opacity:.8">{notes}</ul></div>'
    )


def _row(values: Sequence[object], sparsity: float, style: str = "") -> str:
    cells = []
    for name, value in zip(HEADINGS, values, strict=True):
        bar = f"background:linear-gradient(to right,{BAR} {100 * sparsity:.1f}%,transparent 0);" if name == "sparsity" else ""
        cells.append(f'<td style="{CELL};text-align:{_side(name)};{bar}white-space:nowrap">{escape(cell(value))}</td>')
    return f"<tr{style}>{''.join(cells)}</tr>"


def _side(name: str) -> str:
    return "left" if name in LEFT else "right"
