"""Run folders: one of hand-made numbers, and real ones that a short training wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Maker = Callable[..., Path]

LAYERS = [
    {"name": "a", "kind": "Conv2d", "weights": 100, "zeros": 60, "sparsity": 0.6, "threshold": 0.02, "macs": 1000},
    {"name": "b", "kind": "Linear", "weights": 300, "zeros": 270, "sparsity": 0.9, "threshold": 0.01, "macs": 500},
]
RESULT = {
    "accuracy": 0.75,
    "sparsity": 0.825,
    "train_fraction": 0.5,
    "test_fraction": 650 / 1700,
    "seconds": 12.0,
    "layers": LAYERS,
    "total_macs": 1700,
    "macs": {"stem": 200, "a": 1000, "b": 500},
    "notes": [],
    "events": ["step 3: layer 'b' keeps 0.5 % of its weights"],
    "controller": [[1, 0.3, 0.29, 1.1], [2, 0.825, 0.824, 1.0]],
}


def epoch_line(number: int, **changes: Any) -> dict[str, Any]:
    line = {
        "epoch": number,
        "step": 10 * number,
        "loss": 2.0 / number,
        "lr": 0.1,
        "alpha": 0.5 / number,
        "sparsity": 0.4 * number,
        "train_fraction": 0.25 * number,
        "test_fraction": 0.8 / number,
        "validation_loss": 2.2 / number,
        "accuracy": 0.35 * number,
        "seconds": 6.0 * number,
        "densities": [1 - 0.3 * number, 1 - 0.45 * number],
        "thresholds": [0.01 * number, 0.005 * number],
    }
    return {key: value for key, value in {**line, **changes}.items() if value is not ...}


@pytest.fixture
def make_run(tmp_path: Path) -> Maker:
    """Writes a run's folder below the test's own; keyword arguments change what is in it."""

    def make(
        folder: str = "run",
        *,
        name: str = "tiny",
        method: str = "autosparse",
        seed: int = 0,
        epochs: int = 2,
        status: str = "done",
        metrics: list[dict[str, Any]] | None = None,
        result: dict[str, Any] | None = None,
        recipe: dict[str, Any] | None = None,
        info: dict[str, Any] | None = None,
    ) -> Path:
        path = tmp_path / folder
        path.mkdir(parents=True)
        dense = {key: ... for key in ("alpha", "sparsity", "train_fraction", "test_fraction", "densities", "thresholds")}
        lines = [epoch_line(number + 1, **(dense if method == "dense" else {})) for number in range(epochs)]
        written = {
            "name": name,
            "description": "two layers",
            "data": {"kind": "images", "source": "digits"},
            "model": {"name": "tiny"},
            "method": {"name": method},
            "train": {"epochs": 2},
            **(recipe or {}),
        }
        facts = {
            "format": "autosparse run",
            "version": 1,
            "status": status,
            "message": "",
            "name": name,
            "method": method,
            "seed": seed,
            "versions": {"autosparse": "0.1.0", "torch": "2.13.0"},
            "machine": {"cpu": "a processor", "cores": 2},
            "world": 1,
            "command": ["autosparse", "train", name],
            "started": "2030-01-02T03:04:05",
            "data": {"training samples": 1347},
            **(info or {}),
        }
        (path / "recipe.yaml").write_text(yaml.safe_dump(written))
        (path / "run.json").write_text(json.dumps(facts))
        shown = lines if metrics is None else metrics
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in shown))
        if status == "done":
            whole = {"accuracy": 0.8, "seconds": 9.0, "loss": 1.0} if method == "dense" else RESULT
            (path / "result.json").write_text(json.dumps({**whole, **(result or {})}))
        return path

    return make


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Short real runs on the digits: AutoSparse with a target beside a dense run, and RigL, which has no thresholds."""
    from autosparse.recipes.loading import load_recipe
    from autosparse.training.run import train

    root = tmp_path_factory.mktemp("trained")
    common = ["train.epochs=3", "data.limit=256", "model.arguments.width=4"]
    changes = {
        "target": ["name=digits-target"],
        "rigl": ["name=digits-rigl", "method={name: rigl, sparsity: 0.8}", "train.dense_beside=false"],
    }
    for name, own in changes.items():
        train(load_recipe("digits", [*common, *own]), root / name, quiet=True)
    return {name: root / name for name in changes}
