"""Draws docs/figures/headline.svg, the chart of the first page, from docs/results/headline.json: python docs/make_headline.py.

The drawing follows the reader's colour scheme by itself. Figures that do not exist yet are left out.
"""

from __future__ import annotations

import json
import textwrap
from html import escape
from pathlib import Path
from typing import Any

from autosparse.report.palette import DENSE, RUNS

DOCS = Path(__file__).parent
SOURCE, TARGET = DOCS / "results" / "headline.json", DOCS / "figures" / "headline.svg"
# narrow enough that a phone leaves the letters three quarters of their size
WIDTH, LEFT, RIGHT = 460, 178, 132
ROW, BAR, HEAD, LINE, FOOT, GAP = 27, 18, 30, 17, 6, 12
LETTERS = 58  # of small ones in a line
STYLE = f"""
text {{ font: 15px system-ui, "Segoe UI", "Liberation Sans", sans-serif; fill: #30343c }}
.title {{ font-weight: 600; font-size: 16px }} .small {{ font-size: 13px; fill: #5b6472 }} .end {{ text-anchor: end }}
.ours {{ fill: {RUNS[0].light} }} .dense {{ fill: {DENSE.light} }} .ratio {{ font-weight: 600 }}
@media (prefers-color-scheme: dark) {{
  text {{ fill: #e8ebf0 }} .small {{ fill: #9ba5b4 }} .ours {{ fill: {RUNS[0].dark} }} .dense {{ fill: {DENSE.dark} }}
}}
"""


def known(panel: dict[str, Any]) -> list[dict[str, Any]]:
    """The bars whose figure exists."""
    return [bar for bar in panel["bars"] if bar["value"] is not None]


def comparable(panel: dict[str, Any]) -> bool:
    """Whether there is a dense figure, and one of ours beside it."""
    return {bool(bar.get("ours")) for bar in known(panel)} == {False, True}


def number(value: float) -> str:
    """Three digits, or all those before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def drawn_panel(panel: dict[str, Any], top: float) -> tuple[list[str], float]:
    """The marks of a panel, and where the next one begins."""
    bars = known(panel)
    longest, base = max(bar["value"] for bar in bars), bars[0]["value"]
    marks = [f'<text class="title" x="0" y="{top + 15:g}">{escape(panel["title"])}</text>']
    y = top + HEAD
    for bar in bars:
        width = (WIDTH - LEFT - RIGHT) * bar["value"] / longest
        middle = y + BAR / 2 + 5
        kind = "ours" if bar.get("ours") else "dense"
        marks.append(f'<text class="end" x="{LEFT - 10}" y="{middle:g}">{escape(bar["name"])}</text>')
        marks.append(f'<rect class="{kind}" x="{LEFT}" y="{y:g}" width="{width:.1f}" height="{BAR}" rx="3"/>')
        gain = bar.get("ratio", base / bar["value"])
        ratio = "" if bar is bars[0] or gain is None else f' <tspan class="ratio">{gain:.2f}x</tspan>'
        marks.append(f'<text x="{LEFT + width + 8:.1f}" y="{middle:g}">{number(bar["value"])} {panel["unit"]}{ratio}</text>')
        y += ROW
    for words in (panel["machine"], panel["command"]):
        for line in textwrap.wrap(words, LETTERS, break_on_hyphens=False, break_long_words=False):
            marks.append(f'<text class="small" x="0" y="{y + 12:g}">{escape(line)}</text>')
            y += LINE
    return marks, y + FOOT + GAP


def drawing(content: dict[str, Any]) -> str:
    """The whole chart as SVG."""
    marks: list[str] = []
    y = 0.0
    spoken = []
    for panel in content["panels"]:
        if comparable(panel):
            drawn, y = drawn_panel(panel, y)
            marks += drawn
            spoken.append(
                f"{panel['title']}: "
                + ", ".join(f"{bar['name']} {number(bar['value'])} {panel['unit']}" for bar in known(panel))
            )
    label = escape("; ".join(spoken), quote=True)
    size = f'viewBox="0 0 {WIDTH} {y - GAP:g}" width="{WIDTH}" height="{y - GAP:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *marks, "</svg>"]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(drawing(json.loads(SOURCE.read_text(encoding="utf-8"))), encoding="utf-8")
