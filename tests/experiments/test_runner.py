"""Runs in processes of their own: states, failures, interruption, the division of the cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autosparse.common.files import read_json, write_json
from autosparse.experiments import runner
from autosparse.experiments.grid import Cell
from autosparse.experiments.progress import Clock, line_of
from autosparse.experiments.runner import Interrupted, Outcome, divide, run_cells, with_threads
from autosparse.recipes.loading import dump_recipe
from autosparse.training.lock import FolderLock
from autosparse.training.machine import cores

from .parts import small

PRETENDER = str(Path(__file__).with_name("pretender.py"))
COMPARISON = """
import sys
from pathlib import Path
from autosparse.experiments import runner
from autosparse.experiments.grid import Cell
from autosparse.recipes.loading import load_recipe

pretender, recipe, folder = sys.argv[1:]
runner.train_command = lambda recipe_file, run, resume: [sys.executable, pretender, str(recipe_file), str(run)]
runner.run_cells([Cell("a", load_recipe(recipe))], Path(folder), jobs=1)
"""


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(recipe_file: Path, run: Path, resume: bool) -> list[str]:
        return [sys.executable, PRETENDER, str(recipe_file), str(run), *["--resume"] * resume]

    monkeypatch.setattr(runner, "train_command", command)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as in a terminal: a shell's background job, in which tests may run, ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def made(name: str, does: str = "", **changes: object) -> Cell:
    return Cell(name, small(**{"name": name, "description": does, "train": {"epochs": 3}, **changes}))


def wait_for(file: Path, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < until, f"{file} never came"
        time.sleep(0.02)


def test_cores_are_divided() -> None:
    assert divide(8, runs=10, available=8) == (8, 1)
    assert divide(2, runs=10, available=8) == (2, 4)
    assert divide(3, runs=10, available=8) == (3, 2)
    assert divide(8, runs=1, available=8) == (1, 8)
    assert divide(8, runs=0, available=8) == (1, 8)
    with pytest.raises(ValueError, match=r"--jobs 9; allowed: 1 to 8"):
        divide(9, runs=10, available=8)
    with pytest.raises(ValueError, match=r"--jobs 0"):
        divide(0, runs=10, available=8)


@given(st.integers(1, 64), st.integers(0, 100), st.integers(1, 64))
def test_threads_never_exceed_the_cores(jobs: int, runs: int, cores: int) -> None:
    at_once, threads = divide(min(jobs, cores), runs, cores)
    assert threads >= 1
    assert at_once * threads <= cores
    assert at_once <= max(1, runs)


def test_runs_on_an_accelerator_go_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu, anywhere = made("a", train={"epochs": 3, "device": "cpu"}), made("b")
    assert runner.usual_jobs([on_cpu, anywhere]) == (1 if torch.accelerator.is_available() else cores())
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert runner.usual_jobs([on_cpu, anywhere]) == 1
    assert runner.usual_jobs([on_cpu]) == cores()


def test_a_recipe_that_asks_for_fewer_threads_keeps_them() -> None:
    assert with_threads(small(train={"epochs": 3}), 4).train.threads == 4
    assert with_threads(small(train={"epochs": 3, "threads": 1}), 4).train.threads == 1
    assert with_threads(small(train={"epochs": 3, "threads": 8}), 4).train.threads == 4


@pytest.mark.usefixtures("pretend")
def test_one_failing_run_does_not_lose_the_others_and_is_tried_again(tmp_path: Path) -> None:
    heard: list[str] = []
    cells = [made("a"), made("b", "fail"), made("c")]
    outcomes = run_cells(cells, tmp_path, listen=lambda cell, outcome: heard.append(f"{cell.name} {outcome.status}"))
    assert {name: outcome.status for name, outcome in outcomes.items()} == {"a": "done", "b": "failed", "c": "done"}
    assert outcomes["b"].message == "the loss is nan"
    assert sorted(heard) == ["a done", "b failed", "c done"]
    before = (tmp_path / "a" / "begun").stat().st_mtime_ns
    again = run_cells(cells, tmp_path)
    assert again["a"].skipped
    assert (tmp_path / "a" / "begun").stat().st_mtime_ns == before
    assert again["b"].status == "done"
    assert again["b"].result is not None
    assert again["b"].result["resumed"]


@pytest.mark.usefixtures("pretend")
def test_a_run_killed_between_its_result_and_its_last_word_is_resumed(tmp_path: Path) -> None:
    run_cells([made("a")], tmp_path, jobs=1)
    write_json(tmp_path / "a" / "run.json", {"status": "running"})
    assert not run_cells([made("a")], tmp_path, jobs=1)["a"].skipped
    write_json(tmp_path / "a" / "run.json", {"status": "done"})
    assert run_cells([made("a")], tmp_path, jobs=1)["a"].skipped


@pytest.mark.usefixtures("pretend")
def test_threads_reach_the_run_both_ways(tmp_path: Path) -> None:
    run_cells([made("a")], tmp_path, jobs=1)
    assert (tmp_path / "a" / "begun").read_text() == str(cores())
    assert read_json(tmp_path / "a" / "result.json")["threads"] == cores()


@pytest.mark.usefixtures("pretend")
def test_a_begun_run_keeps_its_threads(tmp_path: Path) -> None:
    run_cells([made("a", "fail")], tmp_path, jobs=1)
    stored = tmp_path / "a" / "recipe.yaml"
    stored.write_text(stored.read_text().replace(f"threads: {cores()}", "threads: 7"))
    outcome = run_cells([made("a", "fail")], tmp_path, jobs=1)["a"]
    assert outcome.result is not None
    assert outcome.result["threads"] == 7


@pytest.mark.usefixtures("pretend")
def test_a_changed_recipe_is_refused_before_anything_runs(tmp_path: Path) -> None:
    run_cells([made("a")], tmp_path)
    changed = Cell("a", small(description="", train={"epochs": 4}))
    with pytest.raises(ValueError, match=r"another recipe \(train\.epochs: 3 -> 4\); choose another --out"):
        run_cells([made("b"), changed], tmp_path)
    assert not (tmp_path / "b").exists()


@pytest.mark.usefixtures("pretend")
def test_words_and_threads_do_not_make_another_run(tmp_path: Path) -> None:
    run_cells([made("a")], tmp_path)
    other = Cell("a", small(name="other", description="words", train={"epochs": 3, "threads": 1}))
    assert run_cells([other], tmp_path)["a"].skipped


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"no recipe\.yaml, so it is no run of ours"):
        run_cells([made("a")], tmp_path)


@pytest.mark.usefixtures("pretend")
def test_two_comparisons_in_one_folder_are_refused(tmp_path: Path) -> None:
    with FolderLock(tmp_path) as owner:
        owner.take()
        with pytest.raises(ValueError, match=f"is in use by process {os.getpid()} on"):
            run_cells([made("a")], tmp_path)
        assert not (tmp_path / "a").exists()
    assert run_cells([made("a")], tmp_path)["a"].status == "done"


@pytest.mark.usefixtures("pretend")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_runs_which_save_and_go_on_later(tmp_path: Path, kind: signal.Signals, ctrl_c: None) -> None:
    cells = [made("a", "wait"), made("b", "wait"), made("c")]

    def when_begun() -> None:
        wait_for(tmp_path / "a" / "begun")
        os.kill(os.getpid(), kind)

    watcher = threading.Thread(target=when_begun)
    watcher.start()
    with pytest.raises(Interrupted):
        run_cells(cells, tmp_path, jobs=1)
    watcher.join()
    assert (tmp_path / "a" / "saved").exists()
    assert not (tmp_path / "c").exists()
    # `b` was not begun with one job, so it would wait again
    outcome = run_cells([cells[0], cells[2]], tmp_path)
    assert outcome["a"].result is not None
    assert outcome["a"].result["resumed"]
    assert outcome["c"].status == "done"


@pytest.mark.usefixtures("pretend")
def test_the_runs_of_a_killed_comparison_save_and_end(tmp_path: Path) -> None:
    cell = made("a", "wait")
    recipe = tmp_path / "waiting.yaml"
    recipe.write_text(dump_recipe(cell.recipe))
    comparison = subprocess.Popen([sys.executable, "-c", COMPARISON, PRETENDER, str(recipe), str(tmp_path / "out")])
    wait_for(tmp_path / "out" / "a" / "begun")
    comparison.kill()
    comparison.wait()
    wait_for(tmp_path / "out" / "a" / "saved", seconds=20)  # it would have slept for a minute
    outcome = run_cells([cell], tmp_path / "out")["a"]
    assert outcome.result is not None
    assert outcome.result["resumed"]


def test_lines_tell_the_time_left() -> None:
    clock = Clock(4)
    clock.settle(skipped=True)
    assert clock.left() is None
    clock.settle(skipped=False)
    clock.began -= 10  # ten seconds for the one run that was made, two are left
    assert round(clock.left() or 0) == 20
    done = Outcome("done", result={"accuracy": 0.9871, "sparsity": 0.9, "seconds": 12.0})
    assert line_of(made("a"), done, clock) == "[2/4] a: 98.71 %, 90.0 % zeros, 12 s; about 20 s left"
    assert line_of(made("a"), Outcome("failed", "nan"), clock) == "[2/4] a: FAILED: nan"
    dense = Cell("d", small(method="dense", train={"epochs": 2}))
    skipped = Outcome("done", result={"accuracy": 0.5, "sparsity": 0.0, "seconds": 3.0}, skipped=True)
    assert line_of(dense, skipped, Clock(1)) == "[0/1] d: 50.00 %, done before"
