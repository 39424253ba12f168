"""A run's folder, read and checked: what the loop wrote, as plain values."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from autosparse.training.folder import FORMAT, VERSION

STATUSES = ("running", "stopped", "failed", "done")
RUN_FILE, RECIPE_FILE, METRICS_FILE, RESULT_FILE = "run.json", "recipe.yaml", "metrics.jsonl", "result.json"
DENSE = "dense"  # the method of runs without sparsity
LISTS = ("densities", "thresholds")


@dataclass(frozen=True)
class Run:
    """One run: its recipe, run.json, one dictionary an epoch, and the result once it is done."""

    folder: Path
    recipe: dict[str, Any]
    info: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any] | None
    dense: Run | None = None
    reference: Run | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        return str(self.info.get("name") or self.recipe.get("name") or self.folder.name)

    @property
    def method(self) -> str:
        return str(self.info.get("method") or block(self.recipe, "method").get("name", "?"))

    @property
    def status(self) -> str:
        return str(self.info["status"])

    @property
    def finished(self) -> bool:
        return self.result is not None

    @property
    def is_dense(self) -> bool:
        return self.method == DENSE

    @property
    def translates(self) -> bool:
        return block(self.recipe, "data").get("kind") == "translation"

    @property
    def epochs(self) -> int | None:
        """Epochs that the recipe asks for."""
        planned = block(self.recipe, "train").get("epochs")
        return planned if isinstance(planned, int) else None

    @property
    def layers(self) -> list[dict[str, Any]]:
        """The sparsified layers as the result describes them; empty before that."""
        return list((self.result or {}).get("layers") or [])

    @property
    def layer_names(self) -> list[str]:
        """Names in the order of `densities`; numbers where a run has not told them yet."""
        names = [str(layer["name"]) for layer in self.layers] or [str(name) for name in self.info.get("layers") or []]
        count = max((len(entry[key]) for entry in self.metrics for key in LISTS if entry.get(key)), default=len(names))
        return names if len(names) == count else [f"layer {place + 1}" for place in range(count)]

    def last(self, key: str) -> float | None:
        """The result's value, or that of the last epoch which has one."""
        entries = [self.result] if self.result is not None and key in self.result else []
        return next((value for entry in entries + self.metrics[::-1] if (value := number(entry.get(key))) is not None), None)

    def curve(self, key: str) -> tuple[list[int], list[float | None]]:
        """Epochs, and the value of every epoch; None where there is none."""
        return [entry["epoch"] for entry in self.metrics], [number(entry.get(key)) for entry in self.metrics]


def block(recipe: dict[str, Any], name: str) -> dict[str, Any]:
    """A block of a recipe; empty when it is absent or of another kind."""
    found = recipe.get(name)
    return found if isinstance(found, dict) else {}


def number(value: Any) -> float | None:
    """A finite number, or None: diverged runs hold nan."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def read_run(folder: Path | str) -> Run:
    """Read a run's folder and the dense and reference runs inside it; a damaged or foreign folder is an error."""
    folder = Path(folder)
    if not folder.exists():
        raise FileNotFoundError(f"there is no run at {folder}; give the folder that `autosparse train` wrote")
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; give the folder of a run, which holds {RUN_FILE}")
    if not (folder / RUN_FILE).is_file():
        raise FileNotFoundError(f"{folder} is not a run: it has no {RUN_FILE}; give a folder that `autosparse train` wrote")
    info = _object(folder / RUN_FILE)
    if info.get("format") != FORMAT:
        raise ValueError(
            f"{folder / RUN_FILE} has format {info.get('format')!r}, not {FORMAT!r}: it is not a run of autosparse"
        )
    if info.get("version") != VERSION:
        raise ValueError(f"{folder} is a run of version {info.get('version')!r}; this autosparse reads version {VERSION}")
    if info.get("status") not in STATUSES:
        raise ValueError(f"{folder / RUN_FILE}: status {info.get('status')!r}; allowed: {', '.join(STATUSES)}")
    metrics, notes = _metrics(folder / METRICS_FILE)
    result = _result(folder / RESULT_FILE) if (folder / RESULT_FILE).exists() else None
    if info["status"] == "done" and result is None:
        raise ValueError(f"{folder} says that it is done but has no {RESULT_FILE}; train it again, or restore the file")
    inside = {name: read_run(folder / name) for name in ("dense", "reference") if (folder / name / RUN_FILE).is_file()}
    return Run(folder, _recipe(folder / RECIPE_FILE), info, metrics, result, **inside, notes=tuple(notes))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path.parent} is a damaged run: {path.name} is missing") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: it is not text ({error.reason} at byte {error.start})") from error


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: it holds {_kind(value)}, not an object")
    return value


def _recipe(path: Path) -> dict[str, Any]:
    try:
        value = yaml.safe_load(_text(path))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: it holds {_kind(value)}, not a recipe")
    return value


def _result(path: Path) -> dict[str, Any]:
    result = _object(path)
    for place, layer in enumerate(result.get("layers") or []):
        known = layer if isinstance(layer, dict) else {}
        missing = [key for key in ("weights", "zeros", "sparsity") if number(known.get(key)) is None]
        missing += [] if "name" in known else ["name"]
        if missing:
            raise ValueError(f"{path} is damaged: layers[{place}] lacks {', '.join(missing)}")
    macs = result.get("macs") or {}
    if not isinstance(macs, dict) or any(number(value) is None for value in macs.values()):
        raise ValueError(f"{path} is damaged: macs must be an object with a number for every layer")
    for place, entry in enumerate(result.get("controller") or []):
        if not isinstance(entry, list) or len(entry) != 4 or any(number(value) is None for value in entry):
            raise ValueError(f"{path} is damaged: controller[{place}] must be [step, wanted, reached, factor]")
    return result


def _metrics(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """One dictionary an epoch; a resumed run writes an epoch again, and the later line counts."""
    entries: dict[int, dict[str, Any]] = {}
    notes: list[str] = []
    # a run that is stopped before its first epoch ends has none
    lines = _text(path).splitlines(keepends=True) if path.exists() else []
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            if place == len(lines) and not line.endswith("\n"):
                notes.append(f"the last line of {path.name} is incomplete and was left out")
                continue
            raise ValueError(f"{path}, line {place} is damaged: {error.msg} at column {error.colno}") from error
        _check(entry, path, place)
        entries[entry["epoch"]] = entry
    return [entries[epoch] for epoch in sorted(entries)], notes


def _check(entry: Any, path: Path, place: int) -> None:
    where = f"{path}, line {place} is damaged"
    if not isinstance(entry, dict) or not isinstance(entry.get("epoch"), int):
        raise ValueError(f"{where}: it has no whole number `epoch`")
    for key, value in entry.items():
        if key in LISTS and value is not None:
            if not isinstance(value, list) or any(not isinstance(one, int | float | None) for one in value):
                raise ValueError(f"{where}: {key} must be a list of numbers")
        elif key not in LISTS and isinstance(value, str | list | dict) and key in ("loss", "accuracy", "sparsity", "alpha"):
            raise ValueError(f"{where}: {key} is {_kind(value)}, not a number")


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", type(None): "nothing"}.get(type(value), f"{value!r}")
