"""Reading run folders, whole, unfinished, damaged and foreign."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autosparse.report import read_run

Maker = Callable[..., Path]


def test_a_whole_run(make_run: Maker) -> None:
    run = read_run(make_run())
    assert (run.name, run.method, run.status, run.finished, run.epochs) == ("tiny", "autosparse", "done", True, 2)
    assert run.layer_names == ["a", "b"]
    assert run.curve("accuracy") == ([1, 2], [0.35, 0.7])
    assert run.last("accuracy") == 0.75  # the result's, not that of the last epoch
    assert run.last("lr") == 0.1
    assert run.dense is None


def test_the_dense_and_the_reference_run_inside(make_run: Maker) -> None:
    folder = make_run()
    make_run("run/dense", method="dense", name="tiny")
    make_run("run/reference", method="dense", name="tiny", epochs=1)
    run = read_run(folder)
    assert run.dense is not None
    assert run.dense.is_dense
    assert run.dense.last("accuracy") == 0.8
    assert run.reference is not None
    assert len(run.reference.metrics) == 1


def test_an_unfinished_run_numbers_its_layers_until_they_are_told(make_run: Maker) -> None:
    run = read_run(make_run(status="running", epochs=1))
    assert not run.finished
    assert run.layer_names == ["layer 1", "layer 2"]
    assert run.last("accuracy") == 0.35
    told = read_run(make_run("told", status="running", info={"layers": ["first", "second"]}))
    assert told.layer_names == ["first", "second"]


def test_a_run_stopped_before_its_first_epoch_has_no_metrics(make_run: Maker) -> None:
    folder = make_run(status="stopped")
    (folder / "metrics.jsonl").unlink()
    assert read_run(folder).metrics == []


def test_an_incomplete_last_line_is_left_out_and_told(make_run: Maker) -> None:
    folder = make_run(status="running")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "lo')
    run = read_run(folder)
    assert [entry["epoch"] for entry in run.metrics] == [1, 2]
    assert "incomplete" in run.notes[0]


def test_an_epoch_that_was_written_twice_counts_once(make_run: Maker) -> None:
    lines = [{"epoch": 1, "loss": 3.0}, {"epoch": 2, "loss": 2.5}, {"epoch": 2, "loss": 2.0}]
    assert read_run(make_run(metrics=lines)).curve("loss") == ([1, 2], [3.0, 2.0])


def test_what_is_no_number_is_a_gap(make_run: Maker) -> None:
    run = read_run(make_run(status="failed", metrics=[{"epoch": 1, "loss": 3.0}, {"epoch": 2, "loss": float("nan")}]))
    assert run.curve("loss") == ([1, 2], [3.0, None])
    assert run.last("loss") == 3.0


def test_a_missing_folder_a_file_and_a_foreign_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no run at"):
        read_run(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"is not a run: it has no run\.json"):
        read_run(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file"):
        read_run(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.json", "{", r"run\.json is damaged"),
        ("run.json", "[1]", "holds a list, not an object"),
        ("run.json", json.dumps({"format": "other"}), "format 'other', not 'autosparse run'"),
        ("run.json", json.dumps({"format": "autosparse run", "version": 9}), "a run of version 9"),
        ("run.json", json.dumps({"format": "autosparse run", "version": 1, "status": "odd"}), "status 'odd'; allowed: running"),
        (
            "run.json",
            json.dumps({"format": "autosparse run", "version": 1, "status": "done", "layers": 3}),
            "layers must be a list",
        ),
        ("recipe.yaml", "a: [", r"recipe\.yaml is damaged"),
        ("recipe.yaml", "just text", "a recipe is a block of"),
        ("metrics.jsonl", '{"epoch": 1}\nrubbish\n{"epoch": 2}\n', "line 2 is damaged"),
        ("metrics.jsonl", '{"loss": 1}\n', "no whole number `epoch`"),
        ("metrics.jsonl", '{"epoch": 1, "loss": "low"}\n', "loss is a text, not a number"),
        ("metrics.jsonl", '{"epoch": 1, "densities": ["x"]}\n', "densities must be a list of numbers"),
        ("metrics.jsonl", b"\xff\xfe\x00", "is not text"),
        ("result.json", '{"layers": [{"name": "a"}]}', r"layers\[0\] lacks weights, zeros, sparsity"),
        ("result.json", '{"layers": 2.5}', "layers must be a list"),
        ("result.json", '{"controller": 2.5}', "controller must be a list"),
        ("result.json", '{"macs": {"a": "many"}}', "macs must be an object"),
        ("result.json", '{"controller": [[1, 2]]}', r"controller\[0\] must be"),
    ],
)
def test_a_damaged_file_is_named(make_run: Maker, name: str, content: str | bytes, message: str) -> None:
    folder = make_run()
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as raised:
        read_run(folder)
    assert str(folder) in str(raised.value)


@pytest.mark.parametrize("name", ["recipe.yaml", "result.json"])
def test_a_missing_file_is_named(make_run: Maker, name: str) -> None:
    folder = make_run()
    (folder / name).unlink()
    with pytest.raises((FileNotFoundError, ValueError), match=name):
        read_run(folder)
