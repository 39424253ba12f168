"""A run's folder: what it holds, how a run writes it, and how everybody else reads it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autosparse.common.files import is_unfinished, plain_value, read_json, read_text, sync, write_json, write_text
from autosparse.common.warnings import warn
from autosparse.recipes.loading import load_recipe, read_recipe
from autosparse.recipes.method_block import DENSE
from autosparse.recipes.recipe import Recipe
from autosparse.recipes.yaml_text import read_block
from autosparse.training import lock
from autosparse.training.intact import Note, fault, notes_of
from autosparse.training.metrics_file import LISTS, read_metrics, undamaged_metrics

FORMAT, VERSION = "autosparse run", 1
STATUSES = {
    "running": "is still being trained, or was killed",
    "stopped": "was stopped",
    "failed": "failed",
    "done": "is not complete",
}


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.info = path / "run.json"
        self.metrics = path / "metrics.jsonl"
        self.result = path / "result.json"
        self.model = path / "model.safetensors"
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"
        self.reference = path / "reference.json"
        self.tokenizer = path / "tokenizer.json"
        self.times = path / "times.json"  # of layers, as the planner has measured them

    @property
    def exists(self) -> bool:
        """Whether anything is here but what a run leaves that was killed before it wrote its first file."""
        if not self.path.exists():
            return False
        return any(entry.name != lock.NAME and not is_unfinished(entry) for entry in self.path.iterdir())

    @property
    def stillborn(self) -> bool:
        """Whether a run failed here before it saved anything: a mistake in the recipe does not cost the folder's name."""
        return self.read_info().get("status") == "failed" and not self.has_checkpoints

    @property
    def has_checkpoints(self) -> bool:
        """Whether anything was saved, be it of a run inside this one."""
        return any(self.path.rglob("checkpoints/last*"))

    @property
    def done(self) -> bool:
        return self.result.exists()

    @property
    def files(self) -> list[Path]:
        """What a finished run leaves for its readers; a tokenizer where it translates."""
        paths = [self.recipe, self.info, self.result, self.model, self.metrics]
        return [*paths, self.tokenizer] if self.tokenizer.exists() or self.tokenizer.name in self._notes() else paths

    def faults(self, *paths: Path) -> list[str]:
        """What is wrong with these files, of all by default."""
        notes = self._notes()
        faults = (fault(path, notes.get(path.name)) for path in paths or self.files)
        return [words for words in faults if words]

    def _notes(self) -> dict[str, Note]:
        notes = self.read_info().get("files")
        return notes if isinstance(notes, dict) else {}

    def check_finished(self) -> None:
        """Refuse anything but the folder of a finished run; the error says what to do."""
        path = self.path
        if not path.is_dir():
            raise ValueError(f"there is no run in {path}; give the folder of one, such as runs/digits")
        if not self.exists:
            raise ValueError(f"{path} is empty: train a model first with `autosparse train --out {path}`")
        if not self.recipe.is_file() or not self.info.is_file():
            raise ValueError(f"{path} is not the folder of a run: it has no {self.recipe.name} and {self.info.name}")
        status = read_json(self.info).get("status")
        if status != "done" or not self.model.is_file():
            raise ValueError(
                f"the run in {path} {STATUSES.get(str(status), 'is not complete')}: let it finish, or go on with "
                f"`autosparse train --resume --out {path}`"
            )
        self.check_model()

    def check_model(self) -> None:
        """Refuse weights that are not those that the run wrote."""
        needed = [path for path in (self.model, self.tokenizer) if path in self.files]
        if faults := self.faults(*needed):
            raise ValueError(
                f"{self.path}: {'; '.join(faults)}; `autosparse train --resume --out {self.path}` writes it again from the "
                "last checkpoint"
            )

    def load_recipe(self, changes: Sequence[str] = ()) -> Recipe:
        """The recipe that the run began with; if its file is damaged, the copy in the last checkpoint."""
        if not self.recipe.is_file():
            raise ValueError(f"{self.path} is not the folder of a run: it has no {self.recipe.name}")
        faults = self.faults(self.recipe)
        if not faults:
            return load_recipe(self.recipe, changes, of_run=True)
        from autosparse.training.checkpoints import saved_recipe  # needs torch, which readers of intact runs can do without

        text = saved_recipe(self.checkpoints)
        if text is None:
            raise ValueError(
                f"{self.path}: {faults[0]}, and there is no checkpoint with a copy: start again with another --out"
            )
        warn(f"{self.path}: {faults[0]}; the recipe is taken from the last checkpoint")
        return read_recipe(text, f"the recipe in {self.checkpoints}", changes)

    def read_result(self) -> dict[str, Any]:
        """The figures of a finished run."""
        if not self.done:
            raise ValueError(f"{self.path} holds no finished run (there is no {self.result.name}); let it finish first")
        return read_json(self.result)

    def read_info(self) -> dict[str, Any]:
        """run.json; nothing where it is missing or damaged."""
        try:
            return read_json(self.info)
        except (OSError, ValueError):
            return {}

    def update_info(self, **changes: Any) -> None:
        before = self.read_info() or {"format": FORMAT, "version": VERSION}
        write_json(self.info, {**before, **changes})

    def close(self) -> None:
        """Say that the run is done, and note what it has written; one that was killed just before is told at its resume."""
        if self.read_info().get("status") != "done":
            noted = [path for path in self.files if path not in (self.info, self.result)]  # results grow with `eval`
            self.update_info(status="done", message="", files=notes_of(noted))

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """Append the line of an epoch, and wait until it is on the disk."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False, default=plain_value) + "\n")
        sync(self.metrics)

    def read_metrics(self) -> list[dict[str, Any]]:
        """One dictionary per epoch."""
        return read_metrics(self.metrics)[0]

    def forget_after(self, epoch: int) -> None:
        """Drop the lines of epochs that a resumed run trains again; lines that were lost or damaged are told."""
        lines = [line for line in undamaged_metrics(self.metrics) if line["epoch"] <= epoch]
        if len(lines) < epoch:
            warn(f"{self.metrics} has lost the figures of {epoch - len(lines)} of {epoch} epochs; the run goes on without them")
        if self.metrics.exists():
            write_text(self.metrics, "".join(json.dumps(line) + "\n" for line in lines))


@dataclass(frozen=True)
class Run:
    """A run as plain values: its recipe, run.json, one dictionary per epoch, and the result once it is done."""

    folder: Path
    recipe: dict[str, Any]
    info: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any] | None
    dense: Run | None = None
    reference: Run | None = None
    notes: tuple[str, ...] = field(default=())

    @classmethod
    def read(cls, path: Path | str) -> Run:
        """Read a run and the dense and reference runs inside it; a damaged or foreign folder is an error."""
        folder = RunFolder(Path(path))
        info = _read_info(folder)
        result = _read_result(folder.result) if folder.done else None
        if info["status"] == "done" and result is None:
            raise ValueError(
                f"{path} says that it is done but has no {folder.result.name}; train it again, or restore the file"
            )
        parts = [name for name in ("dense", "reference") if RunFolder(folder.path / name).info.is_file()]
        inner = {name: cls.read(folder.path / name) for name in parts}
        metrics, is_cut = read_metrics(folder.metrics)
        notes: tuple[str, ...] = (f"the last line of {folder.metrics.name} is incomplete and was left out",) if is_cut else ()
        lost = (number((result or {}).get("epochs")) or 0) - len(metrics)
        if lost > 0:
            notes += (f"{folder.metrics.name} has lost the figures of {lost:g} epochs",)
        return cls(folder.path, _read_recipe(folder.recipe), info, metrics, result, **inner, notes=notes)

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
        epochs = block(self.recipe, "train").get("epochs")
        return epochs if isinstance(epochs, int) else None

    @property
    def layers(self) -> list[dict[str, Any]]:
        """The sparsified layers as the result describes them; empty before that."""
        return list((self.result or {}).get("layers") or [])

    @property
    def layer_names(self) -> list[str]:
        """Names in the order of `densities`; numbers where a run has not written them yet."""
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


def block(recipe: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A block of a recipe; empty when it is absent or of another kind."""
    value = recipe.get(name)
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float | None:
    """A finite number, or None: diverged runs hold nan."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _read_info(folder: RunFolder) -> dict[str, Any]:
    path, file = folder.path, folder.info
    if not path.exists():
        raise FileNotFoundError(f"there is no run at {path}; give the folder that `autosparse train` wrote")
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is a file; give the folder of a run, which holds {file.name}")
    if not file.is_file():
        raise FileNotFoundError(f"{path} is not a run: it has no {file.name}; give a folder that `autosparse train` wrote")
    info = read_json(file)
    if info.get("format") != FORMAT:
        raise ValueError(f"{file} has format {info.get('format')!r}, not {FORMAT!r}: it is not a run of autosparse")
    if info.get("version") != VERSION:
        raise ValueError(f"{path} is a run of version {info.get('version')!r}; this autosparse reads version {VERSION}")
    if info.get("status") not in list(STATUSES):  # a list, since what a damaged file holds may have no hash
        raise ValueError(f"{file}: status {info.get('status')!r}; allowed: {', '.join(STATUSES)}")
    _list_in(info, "layers", file)
    return info


def _read_recipe(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path.parent} is a damaged run: {path.name} is missing")
    return read_block(read_text(path), f"{path} is damaged")


def _read_result(path: Path) -> dict[str, Any]:
    result = read_json(path)
    for place, layer in enumerate(_list_in(result, "layers", path)):
        fields = layer if isinstance(layer, dict) else {}
        missing = [key for key in ("weights", "zeros", "sparsity") if number(fields.get(key)) is None]
        missing += [] if "name" in fields else ["name"]
        if missing:
            raise ValueError(f"{path} is damaged: layers[{place}] lacks {', '.join(missing)}")
    macs = result.get("macs") or {}
    if not isinstance(macs, dict) or any(number(value) is None for value in macs.values()):
        raise ValueError(f"{path} is damaged: macs must be an object with a number for every layer")
    gain = result.get("gain") or {}
    if gain and (not isinstance(gain, dict) or any(not number(gain.get(key)) for key in ("seconds", "dense_seconds", "ratio"))):
        raise ValueError(f"{path} is damaged: gain must have seconds, dense_seconds and their ratio")
    for place, entry in enumerate(_list_in(result, "controller", path)):
        if not isinstance(entry, list) or len(entry) != 4 or any(number(value) is None for value in entry):
            raise ValueError(f"{path} is damaged: controller[{place}] must be [step, target, reached, factor]")
    return result


def _list_in(content: Mapping[str, Any], key: str, path: Path) -> list[Any]:
    value = content.get(key) or []
    if not isinstance(value, list):
        raise ValueError(f"{path} is damaged: {key} must be a list")
    return value
