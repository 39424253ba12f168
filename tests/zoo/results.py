"""The results file: one record per cell, written after each of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from autosparse.common.files import whole_file

from .plan import CellName

ROOT = Path(__file__).parents[2]


class Results:
    """Records by cell."""

    def __init__(self, path: Path) -> None:
        self.path = path
        records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        self.records: dict[tuple[str, str], dict[str, Any]] = {(each["member"], each["variant"]): each for each in records}

    def is_finished(self, cell: CellName, code: str | None) -> bool:
        """Whether it was green, with these sources of autosparse or, if none are named, with any."""
        record = self.records.get((cell.member, cell.variant))
        return record is not None and record["green"] and code in (None, record["code"])

    def put(self, record: dict[str, Any]) -> None:
        """Replace the cell's record; what failed in its first run is kept."""
        cell = record["member"], record["variant"]
        before = self.records.get(cell, record)
        self.records[cell] = {**record, "first": before.get("first", before["failures"])}
        with whole_file(self.path) as unfinished:
            unfinished.write_text(json.dumps(list(self.records.values()), indent=1) + "\n", encoding="utf-8")


def code_fingerprint() -> str:
    """Of everything that is compiled or imported from src."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "autosparse").rglob("*")):
        if path.suffix in (".py", ".h", ".cpp"):
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]
