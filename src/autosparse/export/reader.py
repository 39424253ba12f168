"""Reads the sparse file; everything is checked before memory is taken, and nothing in the file is ever executed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast, overload

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from autosparse.export.format import KEY, Entry, Layout, check_bits, check_integers, decode, digest, mask_bytes, read_layout
from autosparse.export.states import refuse_sparsified

Model = TypeVar("Model", bound=nn.Module)


@overload
def load_sparse(path: str | os.PathLike[str], model: None = None) -> dict[str, Tensor]: ...
@overload
def load_sparse(path: str | os.PathLike[str], model: Model) -> Model: ...
def load_sparse(path: str | os.PathLike[str], model: Model | None = None) -> dict[str, Tensor] | Model:
    """The plain state_dict of a file that `save_sparse` wrote, or `model` filled with it.

    A file that is damaged, altered or made to do harm is refused with a ValueError before any memory is taken for it.
    """
    file = SparseFile(path)
    if model is None:
        return file.state()
    refuse_sparsified(model)
    file.check_fits(model)
    model.load_state_dict(file.state())
    return model


class SparseFile:
    """An opened file whose table of contents agrees with what is there."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no file {self.path}")
        try:
            self._file = cast(Any, safe_open(self.path, framework="pt"))
            metadata = self._file.metadata() or {}
        except (SafetensorError, OSError, ValueError) as error:
            raise self._damaged(f"it is not a whole safetensors file ({error})") from None
        if KEY not in metadata:
            raise self._damaged("it is ordinary safetensors, which safetensors.torch.load_file reads")
        try:
            self.layout: Layout = read_layout(metadata[KEY])
            self._check_parts()
        except ValueError as error:
            raise self._damaged(str(error)) from None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, tied names too."""
        shapes = {name: entry.shape for name, entry in self.layout.tensors.items()}
        return shapes | {name: shapes[target] for name, target in self.layout.tied.items()}

    def state(self) -> dict[str, Tensor]:
        """All tensors; a tied one is one tensor under its names."""
        try:
            parts = {name: self._checked(name, entry) for name, entry in self.layout.tensors.items()}
        except (ValueError, SafetensorError) as error:
            raise self._damaged(str(error)) from None
        tensors = {name: decode(entry, parts[name]) for name, entry in self.layout.tensors.items()}
        return tensors | {name: tensors[target] for name, target in self.layout.tied.items()}

    def check_fits(self, model: nn.Module) -> None:
        """Before anything is loaded: the names and shapes are the model's."""
        problems = differences(self.shapes, model.state_dict())
        if problems:
            raise ValueError(f"{self.path} does not fit this model: {'; '.join(problems[:5])}")

    def _check_parts(self) -> None:
        """The parts that the table of contents implies, and no others, with their dtypes and sizes."""
        expected = [part for name, entry in self.layout.tensors.items() for part in entry.parts(name)]
        if len(expected) != len(set(expected)) or set(expected) != set(self._file.keys()):
            raise ValueError("its tensors are not those of its table of contents")
        for name, entry in self.layout.tensors.items():
            stored = [(part.get_dtype(), part.get_shape()) for part in map(self._file.get_slice, entry.parts(name))]
            fits_scales = not entry.quantized or stored.pop() == ("F32", [entry.shape[0]])
            if entry.stored == "dense":
                fits = stored == [(entry.values, list(entry.shape))]
            else:
                (blocks, mask, values), full = stored, mask_bytes(entry.count)
                fits = blocks == ("U8", [mask_bytes(full)]) and mask[0] == "U8" and values[0] == entry.values
                fits = fits and len(mask[1]) == len(values[1]) == 1 and mask[1][0] <= full and values[1][0] <= entry.count
            if not (fits and fits_scales):
                raise ValueError(f"the parts of {name} do not have the sizes and dtypes that its shape {entry.shape} asks for")

    def _checked(self, name: str, entry: Entry) -> list[Tensor]:
        """The parts of a tensor as they lie in the file, which agree with their checksum and with each other."""
        parts: dict[str, Tensor] = {part: self._file.get_tensor(part) for part in entry.parts(name)}
        if digest(parts) != entry.sha256:
            raise ValueError(f"{name} was altered or damaged (checksum)")
        if entry.stored == "sparse":
            blocks, mask, values = list(parts.values())[:3]
            check_bits(name, blocks.numpy(), mask.numpy(), len(values), entry.count)
        if entry.quantized:
            *_, integers, scales = parts.values()
            check_integers(name, entry, integers, scales)
        return list(parts.values())

    def _damaged(self, why: str) -> ValueError:
        return ValueError(f"{self.path} is refused: {why}")


def differences(shapes: Mapping[str, tuple[int, ...]], state: Mapping[str, Any]) -> list[str]:
    """What keeps tensors of these shapes from being loaded as `state`."""
    missing, extra = sorted(state.keys() - shapes.keys()), sorted(shapes.keys() - state.keys())
    wrong = [
        f"{name} is {shapes[name]} in the file and {tuple(value.shape)} in the model"
        for name, value in state.items()
        if name in shapes and isinstance(value, Tensor) and tuple(value.shape) != shapes[name]
    ]
    lacking = [f"the file lacks {', '.join(missing[:5])}"] * bool(missing)
    return lacking + [f"the model has no {', '.join(extra[:5])}"] * bool(extra) + wrong
