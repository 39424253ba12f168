"""ONNX through torch.onnx.export, compared with onnxruntime on real inputs before the file takes its name."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.common.files import refuse_existing, whole_file
from autosparse.export.states import refuse_sparsified

TOLERANCE = 1e-4  # of the largest output: other orders of summation, and nothing more
LARGEST = 2**31 - 2**20  # bytes: one protobuf holds no more


def save_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    inputs: Sequence[Tensor],
    *,
    names: Sequence[str] = ("input",),
    dynamic: Sequence[Mapping[int, str]] | None = None,
    force: bool = False,
) -> float:
    """Write a dense ONNX model whose batch may have any size; returns the largest difference from torch, relative.

    `inputs` are real ones, at least two per batch; `dynamic` names further sides that vary, input by input.
    """
    target = Path(path)
    for package in ("onnx", "onnxscript", "onnxruntime"):
        _need(package)
    refuse_existing(target, force)
    refuse_sparsified(model)
    if any(len(batch) < 2 for batch in inputs) or len(names) != len(inputs):
        raise ValueError(f"give a name and a batch of at least two samples for each of the {len(inputs)} inputs")
    if sum(tensor.nbytes for tensor in model.state_dict().values()) > LARGEST:
        raise ValueError("the model has more than 2 GB of weights, which one ONNX file cannot hold: use safetensors")
    sides = dynamic or [{0: "batch"}] * len(inputs)
    # other sizes than those that were traced: sides that look dynamic may have been fixed
    halves, ones = _cut(inputs, sides, 2), _cut(inputs, [{0: "batch"}] * len(inputs), len(inputs[0]))
    was_training = model.training
    model.eval()
    try:
        with whole_file(target, force) as unfinished:
            _export(model, unfinished, tuple(inputs), names, sides)
            return max(_compare(model, unfinished, names, batch) for batch in (inputs, halves, ones))
    finally:
        model.train(was_training)


def _cut(inputs: Sequence[Tensor], sides: Sequence[Mapping[int, str]], parts: int) -> list[Tensor]:
    """The first part of every named side."""
    cut = list(inputs)
    for number, named in enumerate(sides):
        for place in named:
            cut[number] = cut[number].narrow(place, 0, max(1, cut[number].shape[place] // parts))
    return [tensor.contiguous() for tensor in cut]


def _export(
    model: nn.Module, path: Path, inputs: tuple[Tensor, ...], names: Sequence[str], dynamic: Sequence[Mapping[int, str]]
) -> None:
    sides = {side: torch.export.Dim(side) for named in dynamic for side in named.values()}
    shapes = tuple({place: sides[side] for place, side in named.items()} for named in dynamic)
    program = onnx_program(model, inputs, dynamic_shapes=shapes, input_names=list(names), output_names=["output"])
    program.save(path, external_data=False)


def onnx_program(model: nn.Module, inputs: tuple[Tensor, ...], **options: Any) -> torch.onnx.ONNXProgram:
    """The model in ONNX, without torch's remarks on its exporter and on packages that this model does not need."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            program = torch.onnx.export(model, inputs, dynamo=True, external_data=False, verbose=False, **options)
    finally:
        exporter.setLevel(level)
    assert program is not None
    return program


def session_outputs(path: Path, names: Sequence[str], inputs: Sequence[Tensor]) -> Tensor:
    """What onnxruntime gives for these inputs."""
    runtime = _need("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = runtime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {name: batch.numpy() for name, batch in zip(names, inputs, strict=True)})
    return torch.from_numpy(result)


def _compare(model: nn.Module, path: Path, names: Sequence[str], inputs: Sequence[Tensor]) -> float:
    output = session_outputs(path, names, inputs)
    with torch.no_grad():
        expected = model(*inputs)
    if output.shape != expected.shape:
        raise RuntimeError(
            f"onnxruntime gives outputs of {tuple(output.shape)}, torch of {tuple(expected.shape)}: nothing was written"
        )
    difference = float((output - expected).abs().max() / expected.abs().max().clamp_min(1e-12))
    if not difference <= TOLERANCE:
        raise RuntimeError(f"onnxruntime's outputs differ from torch's by {difference:.1e} of the largest: nothing was written")
    return difference


def _need(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(f'ONNX export needs the package {package}: pip install "autosparse[onnx]"') from error
