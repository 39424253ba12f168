"""A region in int8 or bfloat16 as a module: compiled for the sizes it meets, measured once for how to compute each layer."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from autosparse.kernels.library import Engine
from autosparse.serving.choice import fastest
from autosparse.serving.native import GROUPS, ROUNDS, LayerChoice, NativeModule, NativeRegion, Shapes, shapes_of
from autosparse.serving.quantized.choice import choose, possible, products
from autosparse.serving.quantized.emulation import EmulatedRegion
from autosparse.serving.quantized.operations import ByteVariant
from autosparse.serving.quantized.program import ByteProgram
from autosparse.serving.quantized.steps import QuantizedRegion
from autosparse.serving.steps import ConvolutionStep, MeanStep, Region


class ByteRegion(NativeRegion):
    """Runs a region natively in int8 or bfloat16; it holds no float32 copy of its weights."""

    def __init__(self, quantized: QuantizedRegion, engine: Engine, threads: int) -> None:
        NativeModule.__init__(self, threads)
        kernels = engine.bytes if quantized.precision == "int8" else engine.halves
        assert kernels is not None
        self.kernels = kernels
        self.quantized, self.region, self.engine = quantized, quantized.region, engine
        self.plain = EmulatedRegion(quantized)
        self.images = 1
        self.variants: dict[int, ByteVariant] = {}  # type: ignore[assignment]
        self.errors: dict[str, float] = {}  # by layer, see `measure_errors`
        self._programs: OrderedDict[Shapes, ByteProgram | None] = OrderedDict()  # type: ignore[assignment]

    def measure(self, inputs: list[Tensor]) -> tuple[float, float]:
        """Choose for inputs like these; returns the least seconds of the engine, and infinity: torch has no such layers."""
        batch, shapes = inputs[0].shape[0], shapes_of(inputs)
        groups = [images for images in GROUPS if images == 1 or (batch >= images and batch >= images * self.threads)]
        programs = {images: self._compile(shapes, images, batch) for images in groups}
        variants = {images: choose(program, inputs) for images, program in programs.items()}
        calls = {images: (lambda program=program: program(inputs)) for images, program in programs.items()}
        seconds = fastest(calls, self.threads, ROUNDS)
        self.images = min(groups, key=lambda images: seconds[images])
        self.variants = variants[self.images]
        self._programs.clear()
        self._programs[shapes] = programs[self.images]
        return seconds[self.images], float("inf")

    def use(self, inputs: list[Tensor], images: int, variants: dict[int, ByteVariant]) -> bool:  # type: ignore[override]
        """Compute inputs like these as it was measured before; False if that is impossible."""
        shapes, batch = shapes_of(inputs), inputs[0].shape[0]
        if images not in GROUPS:
            return False
        program = self._compile(shapes, images, batch)
        steps = products(program)
        if variants.keys() != steps.keys():
            return False
        if not all(variants[index] in possible(program, index, step) for index, step in steps.items()):
            return False
        self.images, self.variants = images, variants
        self._programs[shapes] = self._compile(shapes, images, batch)
        return True

    def _compile(self, shapes: Shapes, images: int, batch: int) -> ByteProgram:  # type: ignore[override]
        groups = -(-batch // images)
        workers = self.threads if groups >= self.threads else 1
        sizes = [(shape[0], shape[1], shape[2]) for shape in shapes]
        return ByteProgram(self.quantized, sizes, self.kernels, self.threads, images, workers, self.variants)

    def measure_errors(self, inputs: list[Tensor], expected: dict[int, Tensor]) -> None:
        """How far off every convolution's result is on these inputs: the difference's length over the expected length."""
        steps = [step for _, step in self._convolutions() if step.output in expected]
        inside = tuple(step for step in self.region.steps if not isinstance(step, MeanStep))  # which can only leave
        region = Region(inside, self.region.inputs, tuple(step.output for step in steps))
        watched = QuantizedRegion(region, self.quantized.affine, self.quantized.precision)
        sizes = [(shape[0], shape[1], shape[2]) for shape in shapes_of(inputs)]
        results = ByteProgram(watched, sizes, self.kernels, 1, 1, 1, {})(inputs)
        for step, result in zip(steps, results, strict=True):
            wanted = expected[step.output]
            self.errors[step.name] = float((result - wanted).norm() / wanted.norm().clamp_min(torch.finfo(torch.float32).tiny))

    def _choice(self, index: int, step: ConvolutionStep, microseconds: float | None) -> LayerChoice:
        precision, affine = self.quantized.precision, self.quantized.affine[step.inputs[0]]
        together = "quads" if precision == "int8" else "pairs"
        how = "torch" if microseconds is None else f"{precision}, {together} {self.variants.get(index, '')}".strip()
        covered = (-affine.zero_point * affine.scale, (255 - affine.zero_point) * affine.scale)
        return LayerChoice(
            step.name, step.window, step.weight.numel(), step.density, how, microseconds,
            precision=precision, range=covered if precision == "int8" else None, error=self.errors.get(step.name),
        )  # fmt: skip
