"""`autosparse paper`: every item from runs, made here by a stand-in for training."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from autosparse import cli
from autosparse.experiments import runner
from autosparse.experiments.paper.making import ITEMS

PRETENDER = Path(__file__).parents[1] / "experiments" / "pretender.py"


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["paper", *arguments])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(recipe_file: Path, run: Path, resume: bool) -> list[str]:
        return [sys.executable, str(PRETENDER), str(recipe_file), str(run), *["--resume"] * resume]

    monkeypatch.setattr(runner, "train_command", command)


def test_the_list_names_every_item(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--list", "--out", str(tmp_path / "new")) == 0
    lines = capsys.readouterr().out.splitlines()
    for item in ITEMS:
        assert sum(line.split()[:1] == [item] for line in lines) == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("pretend")
def test_figures_say_their_scale_and_share_their_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = [item for item in ITEMS if item.startswith("fig")]
    assert call(*figures, "--out", str(tmp_path)) == 0
    shown = capsys.readouterr().out.split()
    for item in figures:
        assert (tmp_path / f"{item}.png").read_bytes().startswith(b"\x89PNG")
        assert str(tmp_path / f"{item}.png") in shown
        assert (tmp_path / f"{item}.svg").stat().st_size > 5_000
    made = sorted(path.name for path in (tmp_path / "runs").iterdir() if path.name.endswith("seed0"))
    # 3 of fig1a with fig4 and one of fig2, 6 of fig1b, 2 of fig2, 4 of fig3, 2 of fig5 with fig6, with its 2 dense ones
    assert len(made) == 3 + 6 + 2 + 4 + 2 + 2
    assert call("fig4", "--out", str(tmp_path)) == 0
    assert capsys.readouterr().err.count("done before") == 2


@pytest.mark.usefixtures("pretend")
def test_a_table_has_the_papers_numbers_beside_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("table2", "--out", str(tmp_path)) == 0
    assert "Table 2" in capsys.readouterr().out
    text = (tmp_path / "table2.md").read_text()
    assert "cpu scale: digits, small_conv" in text
    rows = list(csv.DictReader((tmp_path / "table2.csv").read_text().splitlines()))
    assert [row["method"] for row in rows] == ["AutoSparse", "TopKAST"]
    assert float(rows[0]["paper_accuracy"]) == 75.02
    assert float(rows[0]["accuracy"]) == 90.0
    assert rows[0]["runs"] == "3"
    content = json.loads((tmp_path / "table2.json").read_text())
    assert content["scale"] == "cpu"
    assert content["rows"][1]["paper_test_fraction"] == 0.22


@pytest.mark.usefixtures("pretend")
def test_a_row_has_as_many_runs_as_seeds_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("table2", "--seeds", "1", "--out", str(tmp_path)) == 0
    rows = list(csv.DictReader((tmp_path / "table2.csv").read_text().splitlines()))
    assert {row["runs"] for row in rows} == {"1"}
    assert "1 seed" in (tmp_path / "table2.md").read_text()
    assert sorted(path.name[-5:] for path in (tmp_path / "runs").glob("*-seed?")) == ["seed0"] * 3
    capsys.readouterr()
    assert call("table2", "--seeds", "0", "--out", str(tmp_path)) == 2
    assert "--seeds 0; at least one is needed" in capsys.readouterr().err


@pytest.mark.usefixtures("pretend")
def test_without_its_data_a_table_says_what_to_get_and_the_others_are_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("table4", "fig4", "--out", "made") == 1
    told = capsys.readouterr()
    assert "table4 is left out: there is no data/multi30k-en-de" in told.err
    assert "--set data.path=DIR" in told.err
    assert (tmp_path / "made" / "fig4.png").exists()
    assert not (tmp_path / "made" / "table4.md").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("table6",), "the paper has no 'table6'; did you mean 'table5'"),
        (("fig4", "--scale", "huge"), "--scale huge; allowed: cpu, full"),
        (("fig4", "--jobs", "1000"), "the cores of this machine"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments, "--out", str(tmp_path / "new")) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert len(told.err.splitlines()) == 1
