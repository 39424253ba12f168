"""ONNX with QuantizeLinear and DequantizeLinear nodes: int8 weights per channel, activations in unsigned 8 bits."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.common.files import refuse_existing, whole_file
from autosparse.export.onnx import save_onnx, session_outputs

FLOAT, PREPARED = "float.onnx", "prepared.onnx"


def save_onnx_int8(
    model: nn.Module,
    path: str | os.PathLike[str],
    inputs: Sequence[Tensor],
    calibration: Iterable[Sequence[Tensor]],
    *,
    names: Sequence[str] = ("input",),
    dynamic: Sequence[Mapping[int, str]] | None = None,
    force: bool = False,
) -> float:
    """Write an int8 ONNX model whose ranges come from `calibration` batches, each a tuple of inputs.

    `inputs`, `names` and `dynamic` are those of `save_onnx`. Returns how far onnxruntime's outputs for `inputs` are from
    torch's in float32: the root mean square of the difference over that of the outputs.
    """
    target = Path(path)
    refuse_existing(target, force)
    batches = [tuple(batch) for batch in calibration]
    _check(batches, inputs)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / FLOAT
        save_onnx(model, plain, inputs, names=names, dynamic=dynamic)
        with whole_file(target, force) as unfinished:
            quantize_file(plain, unfinished, names, batches)
            return _distance(model, unfinished, names, inputs)


def quantize_file(source: Path, target: Path, names: Sequence[str], batches: Sequence[Sequence[Tensor]]) -> None:
    """The int8 version of a float ONNX file, by onnxruntime's own static quantization: norms folded, per channel."""
    quantization = import_module("onnxruntime.quantization")
    prepare = import_module("onnxruntime.quantization.shape_inference").quant_pre_process
    with tempfile.TemporaryDirectory() as folder, _quiet():
        prepared = Path(folder) / PREPARED
        prepare(os.fspath(source), os.fspath(prepared), skip_symbolic_shape=True)
        quantization.quantize_static(
            os.fspath(prepared),
            os.fspath(target),
            _reader(quantization, names, batches),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            nodes_to_exclude=_products_of_activations(prepared),
            calibrate_method=quantization.CalibrationMethod.MinMax,
            # symmetric weights: zeros stay zeros
            extra_options={"WeightSymmetric": True, "ActivationSymmetric": False},
        )


def _products_of_activations(path: Path) -> list[str]:
    """MatMul nodes without a constant: attention's products, which lose more in eight bits than they gain."""
    graph = import_module("onnx").load(os.fspath(path)).graph
    constants = {tensor.name for tensor in graph.initializer}
    return [node.name for node in graph.node if node.op_type == "MatMul" and not constants & set(node.input)]


def _reader(quantization: Any, names: Sequence[str], batches: Sequence[Sequence[Tensor]]) -> Any:
    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = iter(batches)

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self.rest, None)
            return None if batch is None else {name: each.numpy() for name, each in zip(names, batch, strict=True)}

    return Reader()


def _check(batches: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
    if not any(len(batch) and batch[0].numel() for batch in batches):
        raise ValueError(
            "int8 needs calibration batches to find the ranges of activations: give one at least that is not empty"
        )
    for batch in batches:
        if len(batch) != len(inputs):
            raise ValueError(f"a calibration batch has {len(batch)} tensors, but the model takes {len(inputs)}")
        for given, example in zip(batch, inputs, strict=True):
            if given.dtype != example.dtype or given.dim() != example.dim():
                raise ValueError(
                    f"a calibration tensor is {given.dtype} with {given.dim()} sides, the model's input is {example.dtype} "
                    f"with {example.dim()}"
                )
            if given.is_floating_point() and not bool(given.isfinite().all()):
                raise ValueError("the calibration batches hold NaN or infinite values")


def _distance(model: nn.Module, path: Path, names: Sequence[str], inputs: Sequence[Tensor]) -> float:
    output = session_outputs(path, names, inputs)
    with torch.no_grad():
        expected = model(*inputs)
    distance = float((output - expected).square().mean().sqrt() / expected.square().mean().sqrt().clamp_min(1e-12))
    if output.shape != expected.shape or not distance < 1:
        raise RuntimeError(f"int8 outputs have nothing to do with torch's (difference {distance:.0%}): nothing was written")
    return distance


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the quantizer's remarks through the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
