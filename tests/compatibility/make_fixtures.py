"""Makes the stored files that the tests beside it read: run by 0.1.0 once, and never again.

    git checkout 864f567 -- src docs README.md examples   # in a clone: the last commit of 0.1.0 before the redesign
    python -m autosparse.kernels.build
    OMP_NUM_THREADS=1 PYTHONPATH=src python -m tests.compatibility.make_fixtures

The recipes under v0.1.0/recipes were written by hand; everything else there comes from here. What the fixtures are compared
with stays as it was made: if a test fails, the code has broken a promise, and these files are not what is to be changed.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

import autosparse
from autosparse.deployment import save_sparse

from . import surface
from .command import json_of, run_command
from .framework_runs import save_lightning_checkpoint, save_trainer_checkpoint
from .numerics import MACHINE, fingerprint
from .plain_loops import CASES, FIXTURES, REFERENCE, SAVED_AT, STATES, TOTAL, PlainRun, PlannedRun, Run, scattered

VERSION = "0.1.0"
ROOT = Path(__file__).parents[2]
DIGITS = [
    "model.arguments.width=2",
    "data.batch_size=32",
    "data.limit=512",
    "data.limit_test=128",
    "train.epochs=4",
    "train.compute=dense",
]
STEPS_OF_A_RUN, STOPPED_AT = 64, 39  # 16 steps an epoch: the 7th of the third
# TensorBoard's files bear the machine's name; of the checkpoints one is enough, since each is as large as all other files.
LEFT_OUT = {
    "finished": ("**/tensorboard", "dense/checkpoints", "checkpoints/previous.pt", "checkpoints/last.pt"),
    "stopped": ("**/tensorboard", "dense/checkpoints", "checkpoints/previous.pt", "checkpoints/best.pt"),
}


def make() -> None:
    if autosparse.__version__ != VERSION:
        raise SystemExit(f"these are the fixtures of {VERSION}: this is {autosparse.__version__}")
    torch.set_num_threads(1)
    make_reference()
    make_states()
    make_planned_state()
    make_runs()
    make_files()
    make_recipes()
    make_surface()
    save_lightning_checkpoint(FIXTURES / "lightning")
    save_trainer_checkpoint(FIXTURES / "trainer")
    about = {"autosparse": VERSION, "torch": torch.__version__, "python": sys.version.split()[0]}
    write_json(MACHINE, {**about, **fingerprint()})


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def save(content: Any, path: Path) -> None:
    """What torch.save writes, compressed: most of it is zeros between its parts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(content, buffer)
    path.write_bytes(gzip.compress(buffer.getvalue(), mtime=0))


# -------------------------------------------------------------------------------------------------------- plain loops


def make_reference() -> None:
    """The losses of a dense run for auto-tuning."""
    recorder = autosparse.ReferenceRecorder(REFERENCE, {"lr": 0.1, "batch_size": 8}, overwrite=True)
    for loss in (1.05, 0.85, 0.7, 0.6):
        recorder.record(loss)


def make_states() -> None:
    for name, case in CASES.items():
        torch.manual_seed(0)
        run = PlainRun(case)
        run.score()
        save_with_expectation(run, STATES / f"{name}.pt.gz")


def save_with_expectation(run: Run, path: Path) -> None:
    """The state inside an epoch, and what the run goes on to."""
    run.train(SAVED_AT)
    state, compute = copy.deepcopy(run.state()), run.sp.report().compute
    expected = {"losses": run.train(TOTAL), "figures": run.figures(), "weights": run.weights()}
    save({"version": VERSION, "state": state, "compute": compute, "expected": expected}, path)


def make_planned_state() -> None:
    """A convolution that runs on the sparse kernels, by times that were made up: measured ones differ every time."""
    with made_up_times():
        torch.manual_seed(0)
        save_with_expectation(PlannedRun(), FIXTURES / "planned.pt.gz")


@contextmanager
def made_up_times() -> Iterator[None]:
    """Sparse passes take 2.5 times the dense one's seconds times the density."""
    from autosparse.kernels import timing
    from autosparse.kernels.planner import Sample, Times, Workload

    def measure(workload: Workload, densities: Sequence[float]) -> Times:
        samples = [Sample(round(each * workload.weights), *[2.5 * each] * 3, 0.0) for each in densities]
        return Times(1.0, 1.0, 1.0, 0.0, tuple(samples))

    with patch.object(timing, "measure", measure):
        yield


# --------------------------------------------------------------------------------------------------------------- runs


def make_runs() -> None:
    """One recipe twice: to its end, and stopped by SIGTERM in the middle of an epoch."""
    with inside(tempfile.mkdtemp()):
        train("finished")
        with stopping_at(STEPS_OF_A_RUN + STOPPED_AT):  # the dense run beside it comes first
            train("stopped", code=128 + signal.SIGTERM)
        shutil.copytree("finished", "scored")
        scores = json_of("eval", "scored")
        for name, patterns in LEFT_OUT.items():
            shutil.rmtree(FIXTURES / name, ignore_errors=True)
            shutil.copytree(name, FIXTURES / name)
            for pattern in patterns:
                for path in list((FIXTURES / name).glob(pattern)):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_json(FIXTURES / "finished-eval.json", scores)


def train(out: str, code: int = 0) -> None:
    changes = [part for change in DIGITS for part in ("--set", change)]
    run_command("train", "digits", "--quiet", "--no-report", "--out", out, *changes, code=code)


@contextmanager
def inside(folder: str) -> Iterator[None]:
    """Work in a folder, so that what is written down are relative paths."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        shutil.rmtree(folder)


@contextmanager
def stopping_at(step: int) -> Iterator[None]:
    """This process receives SIGTERM at the given training forward pass of a small_conv."""
    kind, passes = type(autosparse.models.small_conv()), 0

    def count(module: nn.Module, _: Any) -> None:
        nonlocal passes
        passes += isinstance(module, kind) and module.training and torch.is_grad_enabled()
        if passes == step and isinstance(module, kind):
            os.kill(os.getpid(), signal.SIGTERM)

    handle = register_module_forward_pre_hook(count)
    try:
        yield
    finally:
        handle.remove()


# -------------------------------------------------------------------------------------------------------------- files


def make_files() -> None:
    """The finished run in every format that is read by us, and a model with tied weights."""
    folder = FIXTURES / "files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    run = FIXTURES / "finished"
    for options in (["--out", "model.safetensors"], ["--dtype", "fp16", "--out", "half.safetensors"]):
        run_command("export", str(run), *options[:-1], str(folder / options[-1]))
    run_command("export", str(run), "--format", "torch", "--out", str(folder / "model.pt"))
    run_command("export", str(run), "--format", "hub", "--out", str(folder / "hub"))
    save_sparse(tied_net(), folder / "tied.safetensors", dtype="bf16")
    hub = autosparse.models.small_conv(width=2).eval()
    autosparse.load_sparse(folder / "model.safetensors", hub)
    with torch.no_grad():
        write_json(folder / "outputs.json", hub(scattered(3, 1, 8, 8, seed=0)).tolist())


def tied_net() -> nn.Module:
    """An embedding whose weight the last layer shares; numbers that bfloat16 holds exactly, most of them zero."""
    net = nn.Sequential(nn.Embedding(24, 16), nn.Linear(16, 24, bias=False))
    numbers = (scattered(24, 16, seed=1) * 32).round() / 32
    net[0].weight = net[1].weight = nn.Parameter(torch.where(scattered(24, 16, seed=2) > 0.6, numbers, 0.0))
    return net


# ------------------------------------------------------------------------------------------------- recipes and surface


def make_recipes() -> None:
    recipes = sorted((FIXTURES / "recipes").glob("*.yaml"))
    write_json(FIXTURES / "recipes/expected.json", {path.stem: json_of("recipes", str(path)) for path in recipes})


def make_surface() -> None:
    integrations = ("autosparse.integrations.transformers", "autosparse.integrations.lightning")
    deployment: Any = surface.resolve("autosparse.deployment")
    parts: dict[str, Callable[[], Any]] = {
        "all": lambda: sorted(autosparse.__all__),
        "deployment": lambda: sorted(deployment.__all__),
        "integrations": lambda: {module: surface.public_names(module) for module in integrations},
        "reference": lambda: surface.reference_entries(ROOT),
        "imports": lambda: surface.import_statements(ROOT),
        "used": lambda: surface.used_names(ROOT),
        "mentioned": lambda: surface.mentioned_names(ROOT),
        "signatures": lambda: surface.signatures(ROOT),
        "commands": surface.commands,
        "methods": lambda: list(autosparse.list_methods()),
        "models": lambda: list(autosparse.models.list_models()),
        "recipes": lambda: [each["name"] for each in json_of("recipes")],
        "recipe_keys": lambda: surface.recipe_keys(json.loads(run_command("recipes", "--schema"))),
    }
    write_json(FIXTURES / "surface.json", {"version": VERSION, **{name: part() for name, part in parts.items()}})


if __name__ == "__main__":
    make()
