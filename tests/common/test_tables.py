"""One table, three ways to show it."""

from __future__ import annotations

import re

import pytest

from autosparse.common.tables import Table

TABLE = Table(["layer", "weights", "share"], [["fc", 1234, 0.5], ["conv|1", 10, 0.25]], totals=["total", 1244, ""])


def test_text_aligns_numbers_to_the_right_and_rules_off_the_totals() -> None:
    assert TABLE.text().splitlines() == [
        "layer   weights   share",
        "-----------------------",
        "fc        1,234  0.5000",
        "conv|1       10  0.2500",
        "-----------------------",
        "total     1,244",
    ]


def test_markdown_escapes_bars_and_carries_title_and_notes() -> None:
    text = Table(["a"], [["x|y"], ["two\nlines"]], title="T", notes=["n"]).markdown()
    assert text == "# T\n\n| a |\n| --- |\n| x\\|y |\n| two lines |\n\n- n\n"


def test_numbers_written_as_text_are_right_aligned_except_names_of_rows() -> None:
    table = Table(["layer", "a"], [["0", "1.0 %"], ["10", "10.0 %"], ["2", "-"]])
    assert table.text().splitlines()[2:] == ["0       1.0 %", "10     10.0 %", "2           -"]


def test_show_prints_whole_cells_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 100
    Table(["a"], [[long]]).show()
    assert long.strip() in capsys.readouterr().out


def test_show_folds_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "30")
    Table(["a", "b"], [["word " * 20, 3]], totals=["", 3], title="T", notes=["a note"]).show()
    out = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert max(map(len, out.splitlines())) <= 30
    assert "T" in out
    assert "a note" in out


def test_an_empty_table_has_its_headings() -> None:
    assert Table(["a", "b"], []).text() == "a  b\n----"
