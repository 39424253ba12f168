"""Cells in processes of their own: a crash or a hang is the result of one cell, and each has one thread.

They are forks of a process that has imported what all of them need, but computed nothing.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

from .cell import run_and_write
from .plan import CellName

IMPORTED = ("torch._dynamo", "torch.export", "torch.onnx._internal.exporter._core", "onnxscript", "onnxruntime", "autosparse")
PATIENCE = 1200  # seconds until a cell is taken to hang, on a machine that may be busy


class Job(NamedTuple):
    cell: CellName
    process: Any
    folder: tempfile.TemporaryDirectory[str]
    begin: float

    @property
    def log(self) -> Path:
        return Path(self.folder.name) / "log"


def run_cells(cells: Sequence[CellName], jobs: int, report: Callable[[CellName, dict[str, Any]], None]) -> None:
    """Run all cells, so many at a time, and report each record as it comes."""
    for name in IMPORTED:
        import_module(name)
    waiting, running = list(cells), list[Job]()
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(_start(waiting.pop(0)))
        connection.wait([job.process.sentinel for job in running], timeout=5)
        for job in [job for job in running if not job.process.is_alive() or time.monotonic() - job.begin > PATIENCE]:
            running.remove(job)
            report(job.cell, _finish(job))


def _start(cell: CellName) -> Job:
    folder = tempfile.TemporaryDirectory()
    process = multiprocessing.get_context("fork").Process(target=_work, args=(cell, folder.name))
    process.start()
    return Job(cell, process, folder, time.monotonic())


def _work(cell: CellName, folder: str) -> None:
    log = os.open(Path(folder) / "log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    run_and_write(*cell, str(Path(folder) / "result.json"))
    sys.stdout.flush()
    os._exit(0)  # what libraries do at exit belongs to the parent


def _finish(job: Job) -> dict[str, Any]:
    hangs = job.process.is_alive()
    if hangs:
        job.process.kill()
    job.process.join()
    result = Path(job.folder.name) / "result.json"
    with job.folder:
        if result.exists():
            record: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
            return record
        why = f"took more than {PATIENCE} s" if hangs else f"ended with {job.process.exitcode}: {_end_of(job.log)}"
        return {**job.cell._asdict(), "green": False, "failures": {"runs": why}}


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-600:] if log.exists() else "without a word"
