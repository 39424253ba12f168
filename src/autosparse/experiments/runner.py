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

from autosparse.common.files import read_json, write_text
from autosparse.experiments.grid import Cell
from autosparse.recipes.loading import completed, differences, dump_recipe
from autosparse.recipes.recipe import Recipe
from autosparse.training.folder import RunFolder
from autosparse.training.lock import FolderLock
from autosparse.training.machine import cores
from autosparse.training.signals import HELD_STDIN

State = Literal["new", "unfinished", "done"]
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


def divide(jobs: int, runs: int, available: int) -> tuple[int, int]:
    """Processes at once, and the threads of each: together never more than the available cores."""
    if not 1 <= jobs <= available:
        raise ValueError(f"--jobs {jobs}; allowed: 1 to {available}, the cores of this machine")
    at_once = max(1, min(jobs, runs))
    return at_once, available // at_once


def usual_jobs(cells: Sequence[Cell]) -> int:
    """One run per core; one at a time where they would share an accelerator."""
    import torch

    on_cpu = not torch.accelerator.is_available() or all(cell.recipe.train.device == "cpu" for cell in cells)
    return cores() if on_cpu else 1


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
    jobs = usual_jobs(cells) if jobs is None else jobs
    divide(jobs, len(cells), cores())
    survey(cells, folder)  # like a wrong number of jobs, what is refused here leaves nothing behind
    with FolderLock(folder) as lock:
        lock.take()
        return _run_owned(cells, folder, jobs, listen)


def _run_owned(cells: Sequence[Cell], folder: Path, jobs: int, listen: Listener | None) -> dict[str, Outcome]:
    states = survey(cells, folder)
    waiting = [cell for cell in cells if states[cell.name] != "done"]
    at_once, threads = divide(jobs, len(waiting), cores())
    outcomes: dict[str, Outcome] = {}

    def settle(cell: Cell, outcome: Outcome) -> None:
        outcomes[cell.name] = outcome
        if listen:
            listen(cell, outcome)

    for cell in cells:
        if states[cell.name] == "done":
            settle(cell, Outcome("done", result=RunFolder(folder / cell.name).read_result(), skipped=True))
    running: dict[subprocess.Popen[bytes], Cell] = {}
    with _signals():
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    cell = waiting.pop(0)
                    running[_start(cell, folder, threads, states[cell.name])] = cell
                for process in [process for process in running if process.poll() is not None]:
                    cell = running.pop(process)
                    process.communicate()  # closes its stdin
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
    write_text(recipe_file, dump_recipe(completed(recipe)))
    log.parent.mkdir(parents=True, exist_ok=True)
    # a session of its own: Ctrl-C reaches us alone, and we ask the runs to save
    with log.open("ab") as output:
        return subprocess.Popen(
            train_command(recipe_file, run, state == "unfinished"),
            stdin=subprocess.PIPE,  # the system closes it when we die, even if we are killed
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": str(recipe.train.threads or threads), HELD_STDIN: "1"},
            start_new_session=True,
        )


def log_of(cell: Cell, folder: Path) -> Path:
    """Where a run's output goes."""
    return folder / "logs" / f"{cell.name}.log"


def _outcome(code: int, cell: Cell, folder: Path) -> Outcome:
    run = RunFolder(folder / cell.name)
    if code == 0 and run.done:
        return Outcome("done", result=run.read_result())
    message = message_of(run.path, log_of(cell, folder))
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
    for process in processes:
        process.communicate()


def state_of(folder: Path, recipe: Recipe) -> State:
    """Whether the run has to be started, resumed or skipped; a folder of another recipe is refused with the difference."""
    stored = stored_recipe(folder)
    if stored is None:
        if RunFolder(folder).exists:
            raise ValueError(f"{folder} exists but holds no recipe.yaml, so it is no run of ours; choose another --out")
        return "new"
    changes = differences(_essence(stored), _essence(recipe))
    if changes:
        raise ValueError(
            f"{folder} holds a run of another recipe ({'; '.join(changes)}); choose another --out, or remove that folder"
        )
    run = RunFolder(folder)
    # one that was killed before it could say that it is done is resumed, which says it
    is_done = run.done and run.read_info().get("status", "done") == "done" and not run.faults(run.result)
    return "done" if is_done else "unfinished"


def stored_recipe(folder: Path) -> Recipe | None:
    """The recipe that a folder's run began with; None where no run was begun."""
    run = RunFolder(folder)
    return run.load_recipe() if run.recipe.exists() else None


def _essence(recipe: Recipe) -> Recipe:
    """The recipe without what does not decide a run: names and words, and the threads, which follow from --jobs."""
    train = recipe.train.model_copy(update={"threads": None})
    return recipe.model_copy(update={"name": "", "description": "", "paper": None, "train": train})


def message_of(folder: Path, log: Path) -> str:
    """Why a run failed: what it wrote down, or the last line it printed."""
    try:
        noted = read_json(RunFolder(folder).info).get("message", "")
    except (OSError, ValueError):
        noted = ""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return str(errors[-1] if errors else noted or (lines[-1] if lines else "ended without a word"))
