"""Sharded checkpoints of strangers: torch would execute what their pickles name; here they may name data alone."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

# What torch writes into `.metadata`, besides the dtypes: classes that hold values, and a layout by its name.
_METADATA = "torch.distributed.checkpoint.metadata"
_DATA = {
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "_MEM_FORMAT_ENCODING")),
    *((_METADATA, name) for name in ("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    *((module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")),
}


class PlainReader(FileSystemReader):
    """Reads `.metadata` without executing anything that it names."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        file = Path(str(self.path), ".metadata")
        metadata = _DataUnpickler(io.BytesIO(file.read_bytes())).load()
        storage = getattr(metadata, "storage_data", None)
        if not isinstance(metadata, Metadata) or not isinstance(storage, dict):
            raise ValueError(f"{file} does not describe a checkpoint")
        for stored in storage.values():
            if not isinstance(stored, _StorageInfo) or Path(str(stored.relative_path)).name != stored.relative_path:
                raise ValueError(f"{file} names a place outside the checkpoint")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class PlainPlanner(DefaultLoadPlanner):
    """Reads values that are not tensors, such as learning rates, with torch's own unpickler of plain values."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        try:
            content = torch.load(value, weights_only=True)
        except pickle.UnpicklingError:  # whose message advises to execute it
            message = f"{read_item.storage_index.fqn} holds more than plain values; nothing in it was executed"
            raise ValueError(message) from None
        plain = io.BytesIO()
        torch.save(content, plain)
        plain.seek(0)
        super().load_bytes(read_item, plain)


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) not in _DATA:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no data; nothing in it was executed")
        return super().find_class(module, name)
