"""One line per finished run with the time left; a bar as well on a terminal. All on stderr, the table has stdout."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from autosparse.common.words import duration
from autosparse.experiments.grid import Cell
from autosparse.experiments.runner import Listener, Outcome
from autosparse.recipes.method_block import DENSE


class Clock:
    """Time left, from the runs trained so far; those that were finished before cost nothing and say nothing."""

    def __init__(self, total: int) -> None:
        self.total, self.settled, self.trained, self.began = total, 0, 0, time.monotonic()

    def settle(self, skipped: bool) -> None:
        self.settled += 1
        self.trained += not skipped

    def left(self) -> float | None:
        """Seconds, or None before the first run has ended."""
        if not self.trained:
            return None
        return (time.monotonic() - self.began) / self.trained * (self.total - self.settled)


def line_of(cell: Cell, outcome: Outcome, clock: Clock) -> str:
    """The line about a run that ended."""
    head = f"[{clock.settled}/{clock.total}] {cell.name}: "
    if outcome.status == "failed":
        return f"{head}FAILED: {outcome.message}"
    assert outcome.result is not None
    result = outcome.result
    facts = [f"{100 * result['accuracy']:.2f} %"]
    if cell.recipe.method["name"] != DENSE:
        facts.append(f"{100 * result['sparsity']:.1f} % zeros")
    facts.append("done before" if outcome.skipped else duration(result["seconds"]))
    left = clock.left()
    ending = f"; about {duration(left)} left" if left and clock.settled < clock.total else ""
    return head + ", ".join(facts) + ending


@contextlib.contextmanager
def progress(total: int) -> Iterator[Listener]:
    """A listener for `run_cells` that tells of every run."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    clock = Clock(total)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("runs", total=total)

        def listen(cell: Cell, outcome: Outcome) -> None:
            clock.settle(outcome.skipped)
            console.print(line_of(cell, outcome, clock), markup=False, style="red" if outcome.status == "failed" else None)
            bar.advance(task)

        yield listen
