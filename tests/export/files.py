"""Files of the sparse format made without the writer, right or wrong, with right checksums."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

Parts = dict[str, npt.NDArray[Any]]


def seal(contents: dict[str, Any]) -> str:
    """The table of contents as docs/format.md describes it."""
    body = json.dumps({key: value for key, value in contents.items() if key != "sha256"}, separators=(",", ":"))[:-1]
    return f'{body},"sha256":"{hashlib.sha256(body.encode()).hexdigest()}"}}'


def digest(*parts: npt.NDArray[Any]) -> str:
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


def write(path: Path, contents: dict[str, Any] | str, parts: Parts) -> Path:
    """A file with this table of contents; a dict gets its checksum here."""
    text = contents if isinstance(contents, str) else seal(contents)
    save_file(parts, path, metadata={"autosparse": text})
    return path


def resign(contents: dict[str, Any], parts: Parts) -> None:
    """Give every tensor the checksum of what is there, as a hostile writer would."""
    for name, entry in contents["tensors"].items():
        names = [name + end for end in (":blocks", ":mask", ":values")] if entry.get("stored") == "sparse" else [name]
        names += [name + ":scales"] * (name + ":scales" in parts)
        if all(part in parts for part in names):
            entry["sha256"] = digest(*(parts[part] for part in names))


def example() -> tuple[dict[str, Any], Parts]:
    """20 elements, the 1st and 18th of which are 5 and -2; the example of docs/format.md, and a dense vector beside."""
    parts: Parts = {
        "w:blocks": np.array([0x05], np.uint8),
        "w:mask": np.array([0x02, 0x04], np.uint8),
        "w:values": np.array([5.0, -2.0], np.float32),
        "b": np.array([1.0, 2.0, 3.0], np.float32),
    }
    entry = {"dtype": "F32", "values": "F32", "sha256": ""}
    tensors = {"w": {"stored": "sparse", "shape": [4, 5], **entry}, "b": {"stored": "dense", "shape": [3], **entry}}
    contents: dict[str, Any] = {"version": 1, "tensors": tensors, "tied": {"again": "w"}}
    resign(contents, parts)
    return contents, parts


def quantized_example() -> tuple[dict[str, Any], Parts]:
    """The int8 example of docs/format.md: 20 elements, 5 and -2 among zeros, with the scales 0.5, 1, 1, 2; one dense."""
    parts: Parts = {
        "w:blocks": np.array([0x05], np.uint8),
        "w:mask": np.array([0x02, 0x04], np.uint8),
        "w:values": np.array([10, -1], np.int8),
        "w:scales": np.array([0.5, 1, 1, 2], np.float32),
        "b": np.array([[127, -127], [1, 0]], np.int8),
        "b:scales": np.array([1, 0.25], np.float32),
    }
    entry = {"dtype": "F32", "values": "I8", "sha256": ""}
    tensors = {"w": {"stored": "sparse", "shape": [4, 5], **entry}, "b": {"stored": "dense", "shape": [2, 2], **entry}}
    contents: dict[str, Any] = {"version": 2, "tensors": tensors, "tied": {"again": "w"}}
    resign(contents, parts)
    return contents, parts


def contents_of(path: Path) -> dict[str, Any]:
    """The table of contents of a file, read by hand."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    contents: dict[str, Any] = json.loads(header["__metadata__"]["autosparse"])
    return contents


def parts_of(path: Path) -> Parts:
    return dict(load_file(path))
