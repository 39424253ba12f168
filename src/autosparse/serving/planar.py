"""What programs share whatever their numbers are: operations in order, planes that are used again, one native call."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Mapping
from ctypes import POINTER, byref, c_void_p, pointer
from typing import Any, ClassVar

from torch import Tensor

from autosparse.kernels.inference_table import Call
from autosparse.serving.layout import Extent
from autosparse.serving.steps import MeanStep, Region, Step


class PlanarProgram:
    """Runs a region for any number of images of one size. Kinds of numbers differ in their planes, operations and kernels."""

    operation: ClassVar[type[ctypes.Structure]]  # as native code reads it
    grids: dict[Any, Any]
    arena_floats: int
    scratch: Tensor
    scratch_floats: int
    _native_ops: Any

    def __init__(
        self, region: Region, sizes: Mapping[int, Extent], operations: Any, table: Any, threads: int, images: int, workers: int
    ) -> None:
        self.region, self.sizes, self.operations, self._table = region, sizes, operations, table
        self.threads, self.images, self.workers = threads, images, workers
        self.ops: list[Any] = []
        self.op_of_step: dict[int, int] = {}
        self._lock = threading.Lock()
        self._valid: dict[Any, Tensor] = {}
        self._placed: dict[int, Any] = {}
        self._to_place: list[Any] = []
        self._in_use: dict[int, Any] = {}

    def use_one_thread(self) -> None:
        """In a forked child."""
        self.threads = 1
        self._lock = threading.Lock()

    def _reserve_value(self, value: int, fresh: bool) -> Any:
        raise NotImplementedError

    def _give_back(self, placed: Any) -> None:
        raise NotImplementedError

    def _lay_out(self, variants: Mapping[int, Any]) -> None:
        """Operations in order; a value's planes are free again after its last reader."""
        region = self.region
        readers = Counter(value for step in region.steps for value in step.inputs) + Counter(region.outputs)
        for number, value in enumerate(region.inputs):
            self.ops.append(self.operations.load(number, self._place(value, fresh=True)))
        for index, step in enumerate(region.steps):
            sources = [self._placed[value].planes for value in step.inputs]
            if isinstance(step, MeanStep):
                self.ops.append(self.operations.mean(region.outputs.index(step.output), sources[0]))
            else:
                target = self._place(step.output)
                self.ops += self.operations.of(step, sources, target, self.grid_of(step), variants.get(index))
                self.op_of_step[index] = len(self.ops) - 1
                if step.output in region.outputs:
                    self.ops.append(self.operations.store(region.outputs.index(step.output), target))
                    readers[step.output] -= 1
            for value in step.inputs:
                readers[value] -= 1
                if readers[value] == 0 and value not in region.inputs:
                    self._give_back(self._placed[value])

    def grid_of(self, step: Step) -> Any:
        return self.grids[self.sizes[step.output].grid]

    def _place(self, value: int, fresh: bool = False) -> Any:
        self._placed[value] = self._reserve_value(value, fresh)
        return self._placed[value].planes

    def use(self, index: int, prepared: Any) -> None:
        """Compute a step in this way from now on; values stay where they are."""
        self._native_ops[self.op_of_step[index]] = prepared.op
        self._in_use[index] = prepared

    def __call__(self, inputs: list[Tensor], seconds: Tensor | None = None) -> list[Tensor]:
        """The region's outputs for (images, channels, rows, cols) inputs."""
        inputs = [x.contiguous() for x in inputs]
        images = inputs[0].shape[0]
        outputs = [self._empty(value, inputs[0]) for value in self.region.outputs]
        if images:
            with self._lock:
                self.run(0, len(self.ops), images, inputs, outputs, seconds)
        return outputs

    def run(
        self, first: int, count: int, images: int, inputs: list[Tensor], outputs: list[Tensor], seconds: Tensor | None = None
    ) -> None:
        """Some of the operations."""
        groups = -(-images // self.images)
        apart = self.workers >= self.threads > 1 and groups >= self.threads
        call = Call(
            images, self.images, self.threads, int(not apart), self.arena_floats, self.scratch.data_ptr(),
            self.scratch_floats, pointers(inputs), pointers(outputs), None if seconds is None else seconds.data_ptr(),
        )  # fmt: skip
        at = ctypes.cast(byref(self._native_ops, first * ctypes.sizeof(self.operation)), POINTER(self.operation))
        self._table.run(at, count, pointer(call))

    def _empty(self, value: int, like: Tensor) -> Tensor:
        extent = self.sizes[value]
        is_mean = any(isinstance(step, MeanStep) and step.output == value for step in self.region.steps)
        return like.new_empty(len(like), extent.channels, *((1, 1) if is_mean else extent.size))


def pointers(tensors: list[Tensor]) -> ctypes.Array[c_void_p]:
    """Where tensors begin, for native code."""
    return (c_void_p * max(len(tensors), 1))(*(tensor.data_ptr() for tensor in tensors))
