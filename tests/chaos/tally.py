"""How often something was tried, how often it failed, and the table that `make chaos` prints at its end."""

from __future__ import annotations

import json
import os
import random
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

SEED, SCALE, TABLE = "CHAOS_SEED", "CHAOS_SCALE", "CHAOS_TABLE"


@dataclass
class Tally:
    """The trials of one part."""

    part: str
    trials: int = 0
    kills: int = 0
    on_kernels: int = 0  # kills of nets whose layers ran on the sparse kernels
    after_plan: int = 0  # kills within a second after a new plan
    failures: list[str] = field(default_factory=list)
    note: str = ""
    seconds: float = 0.0
    processor: float = 0.0  # seconds of it, which do not depend on what else the machine does

    def count(self, problem: str | None, times: int = 1) -> None:
        """Add trials, and one failure if there was a problem."""
        self.trials += times
        if problem is not None:
            self.failures.append(problem)


@contextmanager
def tally(part: str) -> Iterator[Tally]:
    """Count the trials of a part; it reaches the table however it ends, and fails if any trial has."""
    counted, began, busy = Tally(part), time.monotonic(), processor_seconds()
    try:
        yield counted
    except BaseException as error:
        counted.failures.append(f"{type(error).__name__}: {error}")
        raise
    finally:
        counted.seconds, counted.processor = time.monotonic() - began, processor_seconds() - busy
        if TABLE in os.environ:
            with Path(os.environ[TABLE]).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(counted)) + "\n")
    assert not counted.failures, f"{len(counted.failures)} of {counted.trials} failed:\n" + "\n\n".join(counted.failures)


def processor_seconds() -> float:
    """Of this process and of its children that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def seed() -> int:
    return int(os.environ.get(SEED, "0"))


def chance_of(part: str) -> random.Random:
    """The random choices of a part, which do not depend on which parts ran before."""
    return random.Random(f"{seed()} {part}")


def scaled(trials: int) -> int:
    """The number of trials in this run: CHAOS_SCALE=0.1 asks for a tenth."""
    return max(1, round(trials * float(os.environ.get(SCALE, "1"))))


def table(path: Path) -> list[str]:
    """The lines of the table, from what all workers have written."""
    rows = [Tally(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    rows.sort(key=lambda row: row.part)
    width = max((len(row.part) for row in rows), default=4)
    lines = [f"{'part':<{width}}  {'trials':>9}  {'failures':>8}  {'seconds':>7}  {'cpu':>5}  notes"]
    for row in rows:
        figures = f"{row.trials:>9,}  {len(row.failures):>8}  {row.seconds:>7.0f}  {row.processor:>5.0f}"
        lines.append(f"{row.part:<{width}}  {figures}  {row.note}".rstrip())
    kills, failed = sum(row.kills for row in rows), sum(len(row.failures) for row in rows if row.kills)
    lines += [
        f"kills: {kills}, of which {kills - failed} ended in the same weights; {sum(row.on_kernels for row in rows)} hit nets "
        f"on the sparse kernels, {sum(row.after_plan for row in rows)} of them within a second after a new plan",
        f"total: {sum(row.trials for row in rows):,} trials, {sum(len(row.failures) for row in rows)} failures, "
        f"{sum(row.processor for row in rows) / 60:.0f} minutes of processor time; repeat with {SEED}={seed()}",
    ]
    return lines
