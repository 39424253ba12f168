"""The dense engines that people serve with, each in its precisions; one that is missing is named and left out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.export.onnx import onnx_program
from autosparse.export.onnx_int8 import quantize_file

ORT, EAGER, COMPILED, OPENVINO = "onnxruntime", "torch eager", "torch.compile", "OpenVINO"
PRECISIONS = ("float32", "bfloat16", "int8")
Call = Callable[[], object]
Inputs = tuple[Tensor, ...]
# OpenVINO computes float32 models in bfloat16 where the processor is faster so, unless it is told not to
_HINTS: dict[str, dict[str, str]] = {
    "float32": {"INFERENCE_PRECISION_HINT": "f32"},
    "bfloat16": {"INFERENCE_PRECISION_HINT": "bf16"},
    "int8": {},
}


def title(engine: str, precision: str) -> str:
    """How an engine is called in tables; float32 goes without saying."""
    return engine if precision == "float32" else f"{engine} {precision}"


def onnx_session(model: nn.Module | Path, inputs: Inputs, threads: int, dynamic: Any = None) -> Any:
    """A session on the model in ONNX, or on such a file, with full graph optimisation."""
    runtime = import_module("onnxruntime")
    program = None if isinstance(model, Path) else onnx_program(model, inputs, dynamic_shapes=dynamic)
    source = str(model) if program is None else program.model_proto.SerializeToString()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    # its threads wait busily within a call, which is fastest, but not while it is the others' turn
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_session(session: Any, inputs: Inputs) -> Call:
    """A call of a session on these inputs."""
    feed = {slot.name: value.numpy() for slot, value in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feed)


def openvino_call(path: Path, inputs: Inputs, threads: int, precision: str) -> Call:
    """A call of OpenVINO on an ONNX file."""
    openvino = import_module("openvino")
    core = openvino.Core()
    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", **_HINTS[precision]}
    request = core.compile_model(core.read_model(str(path)), "CPU", options).create_infer_request()
    return partial(request.infer, {number: value.numpy() for number, value in enumerate(inputs)})


def torch_calls(model: nn.Module, inputs: Inputs, compiled: bool, precision: str, notes: list[str]) -> dict[str, Call]:
    """torch as it is and compiled, in the memory order in which its convolutions are fastest."""
    images = inputs[0].dim() == 4
    shaped = model.to(memory_format=torch.channels_last) if images else model  # type: ignore[call-overload]
    ordered = tuple(image.contiguous(memory_format=torch.channels_last) if images else image for image in inputs)

    def call(net: Callable[..., object]) -> Call:
        def run() -> object:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                return net(*ordered)

        return run if precision == "bfloat16" else lambda: net(*ordered)

    calls = {title(EAGER, precision): call(shaped)}
    if compiled:
        try:
            torch._dynamo.reset()
            fast = call(torch.compile(shaped))
            fast()
            calls[title(COMPILED, precision)] = fast
        except Exception as error:  # no C++ compiler, an operation that it cannot take
            notes.append(f"{title(COMPILED, precision)} failed: {short(error)}")
    return calls


def dense_contestants(
    model: nn.Module,
    inputs: Inputs,
    threads: int,
    compiled: bool,
    precisions: Sequence[str] = ("float32",),
    calibration: Sequence[Inputs] = (),
) -> tuple[dict[str, Call], list[str]]:
    """The dense baselines of these precisions that can run here, and notes on those that cannot."""
    calls: dict[str, Call] = {}
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:  # both engines have read a file when their session is made
        files = _Files(Path(folder), model, inputs, calibration or [inputs])
        for precision in precisions:
            if precision != "int8":
                calls |= torch_calls(model, inputs, compiled, precision, notes)
            makers: Mapping[str, Callable[[str], Call]] = {
                ORT: lambda precision: run_session(onnx_session(files.of(precision), inputs, threads), inputs),
                OPENVINO: lambda precision: openvino_call(files.of(precision), inputs, threads, precision),
            }
            for engine, make in makers.items():
                if engine == ORT and precision == "bfloat16":  # it computes no such models on a CPU
                    continue
                try:
                    calls[title(engine, precision)] = make(precision)
                except ImportError as error:
                    package = 'pip install "autosparse[bench]"'
                    notes.append(f"{title(engine, precision)} was left out: {error}; {package}")
                except Exception as error:  # an operation that the exporter or the engine cannot take
                    notes.append(f"{title(engine, precision)} was left out: {short(error)}")
    return calls, notes


class _Files:
    """The model as ONNX files, each made when it is first asked for."""

    def __init__(self, folder: Path, model: nn.Module, inputs: Inputs, calibration: Sequence[Inputs]) -> None:
        self._folder, self._model, self._inputs, self._calibration = folder, model, inputs, calibration

    def of(self, precision: str) -> Path:
        plain, path = self._folder / "float32.onnx", self._folder / f"{precision}.onnx"
        if not plain.exists():
            onnx_program(self._model, self._inputs).save(plain, external_data=False)
        if precision != "int8":
            return plain
        if not path.exists():
            names = [slot.name for slot in import_module("onnx").load(str(plain)).graph.input]
            batches = [repeated(batch, len(self._inputs[0])) for batch in self._calibration]
            quantize_file(plain, path, names, batches)
        return path


def repeated(batch: Sequence[Tensor], samples: int) -> Inputs:
    """As many samples as asked for, repeated where there are fewer."""
    return tuple(torch.cat([tensor] * -(-samples // len(tensor)))[:samples] for tensor in batch)


def short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
