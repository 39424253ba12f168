"""A run's folder: what is in it and how it is written, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT, VERSION = "autosparse run", 1


def write_text(path: Path, text: str) -> None:
    """Replace a file at once: a reader, or a full disk, never leaves half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=1, allow_nan=False, default=_plain) + "\n")


def as_read(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content as `read_json` would give it back."""
    same: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False, default=_plain))
    return same


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return content


class Folder:
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

    @property
    def exists(self) -> bool:
        return self.path.exists() and any(self.path.iterdir())

    @property
    def stillborn(self) -> bool:
        """Whether a run failed here before it saved anything: a mistake in the recipe does not cost the folder's name."""
        failed = self.info.exists() and read_json(self.info).get("status") == "failed"
        return failed and not any(self.path.rglob("checkpoints"))

    @property
    def done(self) -> bool:
        return self.result.exists()

    def update_info(self, **changes: Any) -> None:
        known = read_json(self.info) if self.info.exists() else {"format": FORMAT, "version": VERSION}
        write_json(self.info, {**known, **changes})

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """Append the line of an epoch."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False, default=_plain) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        if not self.metrics.exists():
            return []
        lines = []
        for text in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                break  # the line that was being written when the run was killed
        return lines

    def forget_after(self, epoch: int) -> None:
        """Drop the lines of epochs that a resumed run does again."""
        kept = [line for line in self.read_metrics() if line["epoch"] <= epoch]
        if self.metrics.exists():
            write_text(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} does not go into JSON")
