"""`autosparse compare`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import autosparse
from autosparse import cli
from autosparse.cli.compare import method_names
from autosparse.experiments import runner
from autosparse.experiments.grid import grid
from autosparse.recipes.loading import load_recipe

PRETENDER = Path(__file__).parents[1] / "experiments" / "pretender.py"


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["compare", *arguments])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(recipe_file: Path, run: Path, resume: bool) -> list[str]:
        return [sys.executable, str(PRETENDER), str(recipe_file), str(run), *["--resume"] * resume]

    monkeypatch.setattr(runner, "train_command", command)


def test_two_real_runs_make_a_table_and_are_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--set", "train.epochs=1", "--set", "model.arguments.width=2", "--set", "data.limit=128"]
    arguments = ["digits", "--methods", "rigl", "--sparsity", "0.5", "--seeds", "1", *short, "--out", str(tmp_path)]
    assert call(*arguments) == 0
    first = capsys.readouterr()
    assert "rigl-0.5-seed0" in first.err
    row = next(line for line in first.out.splitlines() if line.split()[:1] == ["rigl"])
    assert "50.00" in row
    assert (tmp_path / "rigl-0.5-seed0" / "model.safetensors").exists()
    written = (tmp_path / "rigl-0.5-seed0" / "result.json").read_bytes()
    assert call(*arguments, "--json") == 0
    again = capsys.readouterr()
    assert again.err.count("done before") == 2
    assert (tmp_path / "rigl-0.5-seed0" / "result.json").read_bytes() == written
    content = json.loads(again.out)
    assert [line["method"] for line in content["rows"]] == ["dense", "rigl"]
    assert content == json.loads((tmp_path / "table.json").read_text())


def test_all_methods_can_be_compared_on_the_digits() -> None:
    names = method_names("all")
    assert names == [name for name in autosparse.list_methods() if name != "keep"]  # recipes start from dense networks
    rows = grid(load_recipe("digits"), names, [0.9], [], 1, lambda _: 22)
    assert [row.method for row in rows] == ["dense", *names]


@pytest.mark.usefixtures("pretend")
def test_a_failing_run_is_in_the_table_and_in_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["digits", "--seeds", "1", "--vary", "description=fine,fail", "--out", str(tmp_path)]
    assert call(*arguments) == 1
    assert "FAILED: the loss is nan" in capsys.readouterr().out
    assert "FAILED: the loss is nan" in (tmp_path / "table.md").read_text()
    assert call(*arguments) == 0  # the second attempt of the stand-in succeeds
    assert "FAILED" not in (tmp_path / "table.md").read_text()


@pytest.mark.usefixtures("pretend")
def test_a_changed_recipe_is_refused_with_the_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("digits", "--seeds", "1", "--out", str(tmp_path)) == 0
    assert call("digits", "--seeds", "1", "--out", str(tmp_path), "--set", "train.epochs=7") == 2
    assert "train.epochs: 30 -> 7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("digit",), "did you mean 'digits'"),
        (("digits", "--methods", "autosparse,riggl"), "did you mean 'rigl'"),
        (("digits", "--sparsity", "0.8;0.9"), "give fractions of zeros"),
        (("digits", "--jobs", "1000"), "the cores of this machine"),
        (("digits", "--set", "train.epoch=3"), "did you mean 'epochs'"),
        (("digits", "--vary", "train.epochs"), "not of the form"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments, "--out", str(tmp_path / "new")) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert len(told.err.splitlines()) == 1
    assert not (tmp_path / "new").exists()
