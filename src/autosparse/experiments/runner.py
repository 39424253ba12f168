"""Runs cells in processes of their own, several at once, each through `autosparse train`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn

from autosparse.experiments.cells import Cell
from autosparse.experiments.states import State, message_of, state_of, stored_recipe
from autosparse.recipes.loading import dump_recipe
from autosparse.recipes.recipe import Recipe
from autosparse.training.folder import read_json, write_text

POLL = 0.05  # seconds between looks at the running processes
GRACE = 60.0  # seconds that stopped processes get to save


@dataclass(frozen=True)
class Outcome:
    """What became of a cell; `result` is result.json of a finished run."""

    status: Literal["done", "failed"]
    message: str = ""
    result: dict[str, Any] | None = None
    skipped: bool = False


class Interrupted(Exception):
    """Ctrl-C or SIGTERM came; the runs have saved and ended."""


Listener = Callable[[Cell, Outcome], None]


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def divide(jobs: int, runs: int, cores: int) -> tuple[int, int]:
    """Processes at once, and the threads of each: together never more than the cores."""
    if not 1 <= jobs <= cores:
        raise ValueError(f"--jobs {jobs}; allowed: 1 to {cores}, the cores of this machine")
    at_once = max(1, min(jobs, runs))
    return at_once, cores // at_once


def usual_jobs(cells: Sequence[Cell]) -> int:
    """One run a core; one at a time where they would share an accelerator."""
    import torch

    on_cpu = not torch.accelerator.is_available() or all(cell.recipe.train.device == "cpu" for cell in cells)
    return available_cores() if on_cpu else 1


def with_threads(recipe: Recipe, share: int) -> Recipe:
    """The recipe with its share of the threads; one that asks for fewer keeps them."""
    threads = min(recipe.train.threads or share, share)
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"threads": threads})})


def survey(cells: Sequence[Cell], folder: Path) -> dict[str, State]:
    """The state of every cell, before anything runs: a changed recipe stops the grid here."""
    return {cell.name: state_of(folder / cell.name, cell.recipe) for cell in cells}


def run_cells(
    cells: Sequence[Cell], folder: Path, jobs: int | None = None, listen: Listener | None = None
) -> dict[str, Outcome]:
    """Run what is not done yet; a failing run does not stop the others."""
    states = survey(cells, folder)
    waiting = [cell for cell in cells if states[cell.name] != "done"]
    at_once, threads = divide(usual_jobs(cells) if jobs is None else jobs, len(waiting), available_cores())
    outcomes: dict[str, Outcome] = {}

    def settle(cell: Cell, outcome: Outcome) -> None:
        outcomes[cell.name] = outcome
        if listen:
            listen(cell, outcome)

    for cell in cells:
        if states[cell.name] == "done":
            settle(cell, Outcome("done", result=read_json(folder / cell.name / "result.json"), skipped=True))
    running: dict[subprocess.Popen[bytes], Cell] = {}
    with _signals():
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    cell = waiting.pop(0)
                    running[_start(cell, folder, threads, states[cell.name])] = cell
                for process in [process for process in running if process.poll() is not None]:
                    cell = running.pop(process)
                    settle(cell, _outcome(process.returncode, cell, folder))
                time.sleep(POLL)
        except KeyboardInterrupt:
            raise Interrupted from None
        finally:
            _stop(list(running))
    return outcomes


def train_command(recipe_file: Path, run: Path, resume: bool) -> list[str]:
    """What a user would type for this run."""
    command = [sys.executable, "-m", "autosparse", "train", str(recipe_file), "--out", str(run), "--quiet", "--no-report"]
    return command + ["--resume"] * resume


def _start(cell: Cell, folder: Path, threads: int, state: State) -> subprocess.Popen[bytes]:
    run, recipe_file, log = folder / cell.name, folder / "recipes" / f"{cell.name}.yaml", log_of(cell, folder)
    # resuming with other threads could change the last bits, so a begun run keeps its own
    recipe = stored_recipe(run) or with_threads(cell.recipe, threads)
    write_text(recipe_file, dump_recipe(recipe))
    log.parent.mkdir(parents=True, exist_ok=True)
    # a session of its own: Ctrl-C reaches us alone, and we ask the runs to save
    with log.open("ab") as output:
        return subprocess.Popen(
            train_command(recipe_file, run, state == "unfinished"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": str(recipe.train.threads or threads)},
            start_new_session=True,
        )


def log_of(cell: Cell, folder: Path) -> Path:
    """Where a run's output goes."""
    return folder / "logs" / f"{cell.name}.log"


def _outcome(code: int, cell: Cell, folder: Path) -> Outcome:
    run = folder / cell.name
    if code == 0 and (run / "result.json").exists():
        return Outcome("done", result=read_json(run / "result.json"))
    message = message_of(run, log_of(cell, folder))
    return Outcome("failed", f"{message} (killed by signal {-code})" if code < 0 else message)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM means what Ctrl-C means: stop the runs, let them save."""

    def stop(_: int, __: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: the caller's signals stay as they are
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask every run to save and end; a second Ctrl-C, or GRACE without an answer, ends them at once."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + GRACE
    try:
        for process in processes:
            process.wait(max(0.0, until - time.monotonic()))
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        for process in processes:
            process.kill()
            process.wait()
