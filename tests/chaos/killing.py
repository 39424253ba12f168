"""Commands that are killed at a chosen moment, the recipes they run, and what must be the same afterwards."""

from __future__ import annotations

import json
import math
import os
import random
import select
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

STARTUP = Path(__file__).with_name("startup")
KILLED = -9
SECONDS = 1800  # a command that takes longer hangs: the machine may have other work, too
PLAN = "plan"

SMALL = """
model: {name: small_conv, arguments: {classes: 10, in_channels: 1, width: 8}}
data: {source: digits, batch_size: 32, channels: 1, classes: 10, limit: 400, limit_test: 100}
schedule: {warmup_epochs: 1}
"""
LARGE = """
model: {name: small_conv, arguments: {classes: 10, in_channels: 1, width: 48}}
data: {source: digits, batch_size: 64, channels: 1, classes: 10, limit: 1000, limit_test: 100}
"""
RECIPES = {
    "target": f"""{SMALL}
method: {{name: autosparse, alpha: 0.75, target_sparsity: 0.6}}
optimizer: {{lr: 0.05, weight_decay: 1e-3}}
train: {{epochs: 3, label_smoothing: 0.1, clip: 1.0, accumulate: 2, threads: 1, save_minutes: 1.0e-6}}
""",
    "tuned": f"""{SMALL}
method: {{name: autosparse, autotune: {{epochs: 2}}}}
optimizer: {{lr: 0.05, weight_decay: 1e-3}}
train: {{epochs: 3, dense_beside: true, threads: 1, save_minutes: 1.0e-6}}
""",
    "adam": f"""{SMALL}
method: {{name: gmp, sparsity: 0.8}}
optimizer: {{name: adamw, lr: 0.005, weight_decay: 1e-3}}
train: {{epochs: 3, threads: 1, save_minutes: 1.0e-6}}
""",
    "sparse": f"""{SMALL}
method: {{name: autosparse, alpha: 0.75, target_sparsity: 0.8}}
optimizer: {{lr: 0.05, weight_decay: 1e-3}}
train: {{epochs: 3, compute: sparse, threads: 1, save_minutes: 1.0e-6}}
""",
    "sparse-rigl": f"""{SMALL}
method: {{name: rigl, sparsity: 0.8, update_every: 5}}
optimizer: {{lr: 0.05, weight_decay: 1e-3}}
train: {{epochs: 3, compute: sparse, threads: 1, save_minutes: 1.0e-6}}
""",
    # layers large enough that the planner measures them, as sparse from the start as at the end
    "planned": f"""{LARGE}
method: {{name: rigl, sparsity: 0.9, update_every: 5}}
optimizer: {{lr: 0.05, weight_decay: 1e-3}}
train: {{epochs: 4, compute: auto, threads: 1, save_minutes: 1.0e-6}}
""",
}


@dataclass(frozen=True)
class Kill:
    """The moment at which a process of the command dies."""

    who: str  # a word of its command line
    label: str
    occurrence: int
    delay: float
    rank: str = ""  # of torchrun

    @property
    def is_after_plan(self) -> bool:
        return self.label == PLAN


class Nursery:
    """A process that forks others; nursery.py."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).with_name("nursery.py"))]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def run(
        self, arguments: Sequence[str], folder: Path, environment: dict[str, str], limits: dict[str, int]
    ) -> subprocess.CompletedProcess[str]:
        output = folder / f".output-{self.process.pid}"
        order = {"arguments": arguments, "folder": str(folder), "environment": environment, "limits": limits}
        order["output"] = str(output)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], SECONDS)[0]:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise TimeoutError(f"autosparse {' '.join(arguments)} hangs:\n{output.read_text()[-2000:]}")
        code = int(self.process.stdout.readline())
        return subprocess.CompletedProcess(list(arguments), code, "", output.read_text(errors="replace"))

    def close(self) -> None:
        self.process.communicate(timeout=SECONDS)


class Place:
    """A folder with all recipes, and commands run in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rounded = 0  # runs whose validation loss differs in its last bits
        self._orders = 0
        self._nursery: Nursery | None = None
        for name, text in RECIPES.items():
            (path / f"{name}.yaml").write_text(f"description: for chaos{text}")

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        if self._nursery is not None:
            self._nursery.close()

    def fork(
        self, *arguments: str, kill: Kill | None = None, is_marked: bool = False, **limits: int
    ) -> subprocess.CompletedProcess[str]:
        """`autosparse` in a process that does not have to import it; its output is all in `stderr`."""
        self._nursery = self._nursery or Nursery()
        watching = self._watching(kill, (arguments[0], "") if is_marked else None)
        return self._nursery.run(arguments, self.path, watching, limits)

    def run(
        self,
        *arguments: str,
        kill: Kill | None = None,
        marked: tuple[str, str] | None = None,
        launcher: tuple[str, ...] = (),
    ) -> subprocess.CompletedProcess[str]:
        """`autosparse` and the processes that it starts."""
        path = os.pathsep.join(filter(None, (str(STARTUP), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **self._watching(kill, marked)}
        command = [sys.executable, *launcher, "-m", "autosparse", *arguments]
        return subprocess.run(
            command, cwd=self.path, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )

    def _watching(self, kill: Kill | None, marked: tuple[str, str] | None) -> dict[str, str]:
        """The variables that sitecustomize.py reads; `marked` is the word and the rank of the process that writes marks."""
        variables = {}
        if kill is not None:
            self._orders += 1
            variables["CHAOS_KILL"] = json.dumps({**asdict(kill), "once": str(self.path / f"order-{self._orders}")})
        if marked is not None:
            variables |= {"CHAOS_MARKS": str(self.path / "marks"), "CHAOS_WHO": marked[0], "CHAOS_RANK": marked[1]}
        return variables

    def marks_of(self, *arguments: str) -> list[str]:
        """The moments of a command that nobody kills; it must succeed."""
        return self._marks(lambda: self.fork(*arguments, is_marked=True))

    def marks_below(self, *arguments: str, who: str, rank: str = "", launcher: tuple[str, ...] = ()) -> list[str]:
        """Those of one of the processes that a command starts, or of itself."""
        return self._marks(lambda: self.run(*arguments, marked=(who, rank), launcher=launcher))

    def _marks(self, run: Callable[[], subprocess.CompletedProcess[str]]) -> list[str]:
        marks = self.path / "marks"
        marks.unlink(missing_ok=True)
        done = run()
        assert done.returncode == 0, done.stderr
        return marks.read_text(encoding="utf-8").splitlines()

    def was_killed(self) -> bool:
        """Whether the last order was carried out: a command may end before its time."""
        return (self.path / f"order-{self._orders}").exists()

    def copy(self, source: str, target: str) -> None:
        shutil.copytree(self.path / source, self.path / target)

    def figures(self, run: str) -> dict[str, Any]:
        """What a run leaves that must not depend on kills: the lines of its epochs and its result, without times."""
        folder = self.path / run
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        result = json.loads((folder / "result.json").read_text())
        status = json.loads((folder / "run.json").read_text())["status"]
        return {"metrics": [untimed(line) for line in lines], "result": untimed(result), "status": status}

    def difference(self, reference: str, run: str) -> str | None:
        """Where a run that was killed differs from one that was not; None if it does not."""
        if not same_figures(ours := self.figures(reference), others := self.figures(run)):
            return f"metrics.jsonl, result.json or the status differ:\n{ours}\n{others}"
        self.rounded += ours != others
        left, right = (safetensors.torch.load_file(self.path / name / "model.safetensors") for name in (reference, run))
        if left.keys() != right.keys():
            return "the names of the weights differ"
        differing = [name for name in left if not torch.equal(left[name], right[name])]
        return f"the weights differ: {', '.join(differing)}" if differing else None


def same_figures(left: Any, right: Any, name: str = "") -> bool:
    """Exactly the same, but for the last bits of the loss on validation data, which training does not see."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_figures(left[key], right[key], key) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(same_figures(a, b) for a, b in zip(left, right, strict=True))
    if name == "validation_loss":
        return math.isclose(left, right, rel_tol=1e-6)
    return bool(left == right)


def untimed(figures: dict[str, Any]) -> dict[str, Any]:
    """Without times, and without the sentence that says how long the planner measured."""
    times = ("seconds", "processor_seconds", "compute", "speed", "gain", "step_ms", "dense_step_ms")
    return {name: value for name, value in figures.items() if name not in times}


def choose(
    chance: random.Random, marks: list[str], who: str, rank: str = "", label: str | None = None, processes: int = 1
) -> Kill:
    """A moment of those that an unbroken command went through; rare ones are as likely as frequent ones.

    Where several processes have written the marks, each of them has gone through a share of those with the same label.
    """
    counts = Counter(marks)
    label = chance.choice(sorted(counts)) if label is None else label
    longest = 1.0 if label == PLAN else 0.3
    delay = chance.choice([0.0, chance.uniform(0.0, longest)])
    return Kill(who, label, chance.randint(1, max(1, counts[label] // processes)), delay, rank)


def describe(kill: Kill, done: subprocess.CompletedProcess[str] | None, problem: str) -> str:
    """A failure, with what is needed to look at it again."""
    words = done.stderr[-8000:] if done is not None else ""
    return f"{problem}\nkilled: {kill}\n{words}"
