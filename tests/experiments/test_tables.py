"""The layout of tables, and the comparison's rows in it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from autosparse.common.tables import Table
from autosparse.experiments import compare as comparing
from autosparse.experiments import tables
from autosparse.experiments.grid import grid, parse_variation
from autosparse.experiments.runner import Outcome

from .parts import result, small

RECIPE = small()


def outcomes(**failed: str) -> tuple[list[comparing.Row], dict[str, Outcome]]:
    rows = grid(RECIPE, ["autosparse", "dst"], [0.9], [parse_variation("method.schedule=cosine,linear")], 2, lambda _: 13)
    found = {}
    for cell in comparing.cells_of(rows):
        dense = cell.name.startswith("dense")
        found[cell.name] = Outcome("done", result=result(0.98 if dense else 0.96, 0.0 if dense else 0.9))
    for name, message in failed.items():
        found[name.replace("_", "-")] = Outcome("failed", message)
    return rows, found


def test_markdown_escapes_what_would_break_a_row() -> None:
    text = Table(("a", "b"), (("1|2", "x\ny"),), title="T", notes=("note",)).markdown()
    assert text.splitlines() == ["# T", "", "| a | b |", "| --- | --- |", r"| 1\|2 | x y |", "", "- note"]


def test_numbers_are_shown_with_their_deviation() -> None:
    assert tables.shown(98.586, 2, 0.1249) == "98.59 ± 0.12"
    assert tables.shown(0.2071, 3) == "0.207"
    assert tables.shown(None, 2, None) == ""


def test_csv_has_every_column_of_every_row() -> None:
    rows = [{"a": 1, "b": None}, {"a": 2, "c": "x,y"}]
    read = list(csv.DictReader(io.StringIO(tables.comma_separated(rows))))
    assert read == [{"a": "1", "b": "", "c": ""}, {"a": "2", "b": "", "c": "x,y"}]


def test_the_comparison_has_the_papers_columns() -> None:
    rows, found = outcomes()
    table = comparing.table_of(rows, found, RECIPE)
    assert table.headings == (
        *("method", "asked", "schedule"),
        *("Base", "Top1(S)", "Drop %", "S %", "Train F", "Test F", "seconds"),
    )
    assert table.rows[0] == ("dense", "", "", "98.00 ± 0.00", "", "", "", "", "", "4.0")
    assert table.rows[1] == (
        *("autosparse", "90 %", "cosine"),
        *("98.00 ± 0.00", "96.00 ± 0.00", "2.04", "90.00", "0.500", "0.200", "4.0"),
    )
    assert table.rows[3][:3] == ("dst", "", "")
    assert any(note.startswith("dst: learn") for note in table.notes)


def test_a_failing_run_says_why_and_leaves_the_others() -> None:
    rows, found = outcomes(dst_seed0="the loss is nan")
    table = comparing.table_of(rows, found, RECIPE)
    assert table.headings[-1] == "message"
    assert table.rows[3][-1] == "FAILED: the loss is nan"
    assert table.rows[3][4] == "96.00"  # of the one that is left, so without a deviation
    assert table.rows[1][-1] == ""


def test_the_files_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, found = outcomes()
    table = comparing.write_tables(rows, found, RECIPE, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.csv", "table.json", "table.md"]
    content = json.loads((tmp_path / "table.json").read_text())
    assert content["recipe"]["name"] == "small"
    assert content["rows"][1]["method"] == "autosparse"
    assert content["rows"][1]["method.schedule"] == "cosine"
    assert round(content["rows"][1]["drop"], 2) == 2.04
    assert (tmp_path / "table.md").read_text() == table.markdown()
    read = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert [row["method"] for row in read] == ["dense", "autosparse", "autosparse", "dst"]
    table.show()
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:4] == ["autosparse", "90", "%", "cosine"] for line in lines)
    assert sum("Train F" in line for line in lines[:4]) == 1  # the heading is on one line when piped
