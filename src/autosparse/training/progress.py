"""What a person sees of a run: a live bar on a terminal, a line per minute elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autosparse.common.words import duration

LINE_SECONDS = 60.0


@dataclass(frozen=True)
class Moment:
    """The figures to show."""

    epoch: int
    epochs: int
    step: int
    loss: float
    accuracy: float | None = None
    alpha: float | None = None
    sparsity: float | None = None

    def text(self) -> str:
        known = self._known("accuracy {:.2%}", "sparsity {:.2%}", "alpha {:.3f}")
        return "  ".join([f"epoch {self.epoch}/{self.epochs}", f"loss {self.loss:.4f}", *known])

    def short(self) -> str:
        """The same for a terminal of 80 columns."""
        known = self._known("acc {:.1%}", "zeros {:.1%}", "alpha {:.2f}")
        return " ".join([f"{self.epoch}/{self.epochs} loss {self.loss:.3f}", *known])

    def _known(self, *forms: str) -> list[str]:
        values = zip(forms, (self.accuracy, self.sparsity, self.alpha), strict=True)
        return [form.format(value) for form, value in values if value is not None]


class Progress:
    """Says nothing: for ranks other than the first, and --quiet."""

    def start(self, title: str, total: int, done: int) -> None: ...
    def update(self, moment: Moment) -> None: ...
    def stop(self) -> None: ...


class Lines(Progress):
    """A line per minute, for logs."""

    def start(self, title: str, total: int, done: int) -> None:
        self._title, self._total, self._first = title, total, done
        self._began, self._printed = time.monotonic(), time.monotonic()

    def update(self, moment: Moment) -> None:
        now = time.monotonic()
        if now - self._printed >= LINE_SECONDS:
            self._printed = now
            left = (now - self._began) * (self._total - moment.step) / max(1, moment.step - self._first)
            print(f"{self._title}  {moment.text()}  {duration(left)} left", flush=True)


class Bar(Progress):
    """A live bar with loss, accuracy, alpha, sparsity and the time left."""

    def start(self, title: str, total: int, done: int) -> None:
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichBar

        columns: tuple[Any, ...] = (
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=8),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[moment]}"),
        )
        self._bar = RichBar(*columns, refresh_per_second=4)
        self._bar.start()
        self._task = self._bar.add_task(title, total=total, completed=done, moment="")

    def update(self, moment: Moment) -> None:
        self._bar.update(self._task, completed=moment.step, moment=moment.short())

    def stop(self) -> None:
        self._bar.stop()


class Unbreakable(Progress):
    """Another progress until its output fails: that must not end the run."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    def start(self, title: str, total: int, done: int) -> None:
        self._try(lambda: self._shown.start(title, total, done))

    def update(self, moment: Moment) -> None:
        self._try(lambda: self._shown.update(moment))

    def stop(self) -> None:
        self._try(self._shown.stop)

    def _try(self, show: Callable[[], None]) -> None:
        try:
            show()
        except (OSError, ValueError):  # the latter from a stream that was closed
            self._shown = Progress()


def choose_progress(quiet: bool) -> Progress:
    """What fits where the output goes."""
    if quiet or sys.stdout is None:  # its descriptor may have been closed before Python began
        return Progress()
    return Unbreakable(Bar() if sys.stdout.isatty() else Lines())
