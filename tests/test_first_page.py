"""The first page keeps its promises: its chart follows the figures, its table has commands, its links lead somewhere."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
import typer.main

from autosparse import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HEADLINE = runpy.run_path(str(ROOT / "docs" / "make_headline.py"))


def rows() -> list[list[str]]:
    """The cells of the table of results."""
    table = README.partition("| measured |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


def test_the_chart_is_drawn_from_the_figures() -> None:
    content = json.loads(HEADLINE["SOURCE"].read_text(encoding="utf-8"))
    assert HEADLINE["TARGET"].read_text(encoding="utf-8") == HEADLINE["drawing"](content)


def test_figures_that_do_not_exist_are_left_out() -> None:
    bars = [
        {"name": "dense", "value": 8.0},
        {"name": "dense int8", "value": None},
        {"name": "dense half", "value": 5.0, "ratio": None},
        {"name": "ours", "value": 2.0, "ours": True},
    ]
    panel = {"title": "a", "unit": "ms", "machine": "m", "command": "c", "bars": bars}
    empty = {**panel, "title": "nothing yet", "bars": [{"name": "x", "value": 1.0}, {"name": "y", "value": None, "ours": True}]}
    alone = {
        **panel,
        "title": "ours alone",
        "bars": [{"name": "x", "value": None}, {"name": "y", "value": 1234.5, "ours": True}],
    }
    drawn = HEADLINE["drawing"]({"panels": [panel, empty, alone]})
    assert drawn.count("<rect") == 3
    assert "4.00x" in drawn
    assert "1.60x" not in drawn
    assert "int8" not in drawn
    assert "nothing yet" not in drawn
    assert "ours alone" not in drawn


def test_all_panels_can_be_filled_in() -> None:
    content = json.loads(HEADLINE["SOURCE"].read_text(encoding="utf-8"))
    for panel in content["panels"]:
        for bar in panel["bars"]:
            bar["value"] = bar["value"] or 1234.5
    drawn = HEADLINE["drawing"](content)
    assert drawn.count("<rect") == sum(len(panel["bars"]) for panel in content["panels"]) == 15
    assert "1234 s" in drawn
    assert "e+" not in drawn


def test_no_words_of_the_chart_are_cut_off() -> None:
    content = json.loads(HEADLINE["SOURCE"].read_text(encoding="utf-8"))
    small = re.findall(r'class="small"[^>]*>([^<]*)<', HEADLINE["drawing"](content))
    # in the widest of the fonts a letter takes 10, a small one 7.8
    assert max(len(panel["title"]) for panel in content["panels"]) * 10 <= HEADLINE["WIDTH"]
    assert max(map(len, small)) * 7.8 <= HEADLINE["WIDTH"]
    for panel in content["panels"][:2]:
        assert f"{panel['machine']} {panel['command']}" in " ".join(small)


def test_six_rows_each_with_a_command_that_exists() -> None:
    assert len(rows()) == 6
    verbs = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    for row in rows():
        named = re.findall(r"`autosparse (\w+)", row[-1])
        assert named, row
        assert set(named) <= set(verbs), row


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_figure_is_one_that_was_measured(row: list[str]) -> None:
    pages = [ROOT / "docs" / name for name in ("results/README.md", "results/runs.md", "deployment.md", "kernels.md")]
    measured = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    for cell in row[1:3]:
        number = cell.split()[0]
        assert number in measured, f"{number} is in none of the tables"


def test_the_papers_of_the_project_have_no_broken_link() -> None:
    checker = runpy.run_path(str(ROOT / "docs" / "check_links.py"))
    assert checker["broken_in_papers"]() == []


def test_options_of_commands_stay_whole_on_the_site() -> None:
    marked = runpy.run_path(str(ROOT / "docs" / "navigation.py"))["on_page_content"]
    kept = '<span class="option">{}</span>'.format
    assert marked("<p>by <code>a --b c-d</code> or <code>-m</code></p>") == (
        f"<p>by <code>a {kept('--b')} c-d</code> or <code>{kept('-m')}</code></p>"
    )
    assert marked('<span class="go">a --b=1</span>') == f'<span class="go">a {kept("--b")}=1</span>'
    untouched = "<pre><span></span><code>a --b\n</code></pre> --c"
    assert marked(untouched) == untouched


def test_a_broken_link_of_the_site_is_found(tmp_path: Path) -> None:
    checker = runpy.run_path(str(ROOT / "docs" / "check_links.py"))
    (tmp_path / "b").mkdir()
    (tmp_path / "a.html").write_text('<a href="b/"></a><a href="b/#there"></a><a href="b/#gone"></a><img src="none.svg">')
    (tmp_path / "b" / "index.html").write_text(
        '<h2 id="there"></h2><a href="../a.html">a</a><a href="https://example.org">x</a>'
    )
    found = checker["broken_in_site"](tmp_path)
    assert found == ["a.html: b/#gone (there is no such place)", "a.html: none.svg"]
