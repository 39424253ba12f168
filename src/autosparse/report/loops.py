"""The page of a run for which no recipe exists: a Sparsifier in anybody's loop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from autosparse.common.files import write_text
from autosparse.common.words import require
from autosparse.report.page import build_page, is_ours
from autosparse.report.runs import Run
from autosparse.sparsifier import Sparsifier
from autosparse.training import machine

Accuracy = float | Sequence[float] | None


def save_page(
    sp: Sparsifier, path: Path, *, title: str | None = None, accuracy: Accuracy = None, base_accuracy: float | None = None
) -> Path:
    """Write the page of the run as it stands now; an earlier page of ours is replaced, another file is refused."""
    if path.suffix != ".html":
        raise ValueError(f"{path}: give a file name that ends in .html")
    if path.exists() and not is_ours(path):
        raise FileExistsError(f"{path} exists and is not a report of ours; give another name")
    return write_text(path, build_page([run_of(sp, path, title, accuracy, base_accuracy)]))


def run_of(sp: Sparsifier, path: Path, title: str | None, accuracy: Accuracy, base_accuracy: float | None) -> Run:
    """What a run folder would say of this run."""
    report, name = sp.report(), title or type(sp.model).__name__
    method = {"name": report.method, **changed_fields(sp.method)}
    metrics = [dict(line) for line in report.history]
    for line, value in zip(reversed(metrics), reversed(_per_epoch(accuracy, len(metrics))), strict=False):
        line["accuracy"] = value
    result = {**report.to_dict(), "base_accuracy": base_accuracy, "epochs": report.epoch}
    if sp.cost.profile is not None:
        result["macs"] = {layer.name: layer.macs for layer in sp.cost.profile.layers}
    over = report.epoch >= report.epochs
    info = {
        "name": name,
        "method": report.method,
        "status": "done" if over else "running",
        "layers": [layer.name for layer in report.layers],
        "versions": machine.versions(),
        "machine": machine.machine(str(sp.layers[0].stored.device)),
    }
    recipe = {"name": name, "method": method, "train": {"epochs": report.epochs}}
    notes = () if over else (f"Epoch {report.epoch} of {report.epochs}: all figures show what is there now.",)
    return Run(path.resolve().parent, recipe, info, metrics, result, notes=notes)


def changed_fields(method: Any) -> dict[str, Any]:
    """The fields of a method that are not at their defaults, as plain values."""
    values, changed = json.loads(json.dumps(asdict(method), default=str)), {}
    for field in fields(method):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if getattr(method, field.name) != default:
            changed[field.name] = values[field.name]
    return changed


def _per_epoch(accuracy: Accuracy, epochs: int) -> list[float]:
    """The given accuracies, the last of which is that of the last epoch."""
    values = [] if accuracy is None else [float(accuracy)] if isinstance(accuracy, int | float) else [*map(float, accuracy)]
    require(all(0 <= value <= 1 for value in values), "accuracy", accuracy, "fractions, such as 0.93 for 93 %")
    require(len(values) <= max(1, epochs), "accuracy", f"{len(values)} values", f"one per epoch, of which there were {epochs}")
    return values
