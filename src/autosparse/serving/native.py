"""A region of a network as a module: compiled for the sizes it meets, measured once for how to compute each layer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autosparse.kernels.library import Engine
from autosparse.serving.choice import candidates, choose, fastest, first_guess
from autosparse.serving.layout import NotOnGridError
from autosparse.serving.operations import Variant
from autosparse.serving.program import Program
from autosparse.serving.steps import ConvolutionStep, Region, fuse

# Images computed together: more make the vectors of small pictures fuller, but leave the nearest cache.
GROUPS = (1, 2, 4)
MAX_PROGRAMS = 4
ROUNDS = 5
Shapes = tuple[tuple[int, ...], ...]


def readable(x: object) -> bool:
    """Whether native code can read a tensor's memory once it is contiguous."""
    return (
        isinstance(x, Tensor)
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.layout == torch.strided
        and not x.is_neg()
    )


@dataclass(frozen=True)
class LayerChoice:
    """How one layer is computed, for tables."""

    name: str
    kind: str
    weights: int
    density: float
    how: str
    microseconds: float | None = None
    reason: str = ""  # why torch computes it, or why in float32 though int8 was asked for
    precision: str = "float32"
    range: tuple[float, float] | None = None  # that the bytes of its input cover
    error: float | None = None  # of its result on the example, relative to the result's length


class NativeModule(nn.Module):
    """A module that points to packed memory, and so cannot be copied."""

    def __init__(self, threads: int) -> None:
        super().__init__()
        self.threads = threads
        self._lock = threading.Lock()  # for new entries of caches

    def use_one_thread(self) -> None:
        """In a forked child: the other threads are gone, and so is one that may have held the lock."""
        self.threads = 1
        self._lock = threading.Lock()

    def layer_names(self) -> list[str]:
        """The model's layers that it computes."""
        raise NotImplementedError

    def __deepcopy__(self, memo: object) -> NativeModule:
        raise RuntimeError("a deployed model cannot be copied; deploy the plain model again")

    def __reduce__(self) -> str:
        raise RuntimeError("a deployed model cannot be pickled; save the plain model with autosparse.save_sparse")


class NativeRegion(NativeModule):
    """Runs a region natively; `plain` is the same in torch, for inputs that the engine cannot take."""

    def __init__(self, region: Region, plain: nn.Module, engine: Engine, threads: int) -> None:
        super().__init__(threads)
        self.region = fuse(region)
        self.plain = plain
        self.engine = engine
        self.images = 1
        self.variants: dict[int, Variant] = first_guess(self.region)
        self._programs: OrderedDict[Shapes, Program | None] = OrderedDict()

    def use_one_thread(self) -> None:
        super().use_one_thread()
        for program in self._programs.values():
            if program is not None:
                program.use_one_thread()

    def measure(self, inputs: list[Tensor]) -> tuple[float, float]:
        """Choose for inputs like these; returns the least seconds of the engine and of torch."""
        batch, shapes = inputs[0].shape[0], shapes_of(inputs)
        groups = [images for images in GROUPS if images == 1 or (batch >= images and batch >= images * self.threads)]
        programs = {images: self._compile(shapes, images, batch) for images in groups}
        variants = {images: choose(program, inputs) for images, program in programs.items()}
        calls = {images: (lambda program=program: program(inputs)) for images, program in programs.items()}
        seconds = fastest({**calls, 0: lambda: self.plain(*inputs)}, self.threads, ROUNDS)
        self.images = min(groups, key=lambda images: seconds[images])
        self.variants = variants[self.images]
        self._programs.clear()
        self._programs[shapes] = programs[self.images]
        return seconds[self.images], seconds[0]

    def use(self, inputs: list[Tensor], images: int, variants: dict[int, Variant]) -> bool:
        """Compute inputs like these as it was measured before; False if that is impossible."""
        products = self.region.products()
        if images not in GROUPS or variants.keys() != products.keys():
            return False
        shapes, batch = shapes_of(inputs), inputs[0].shape[0]
        program = self._compile(shapes, images, batch)
        possible = {index: candidates(step, program.grid_of(step), self.engine) for index, step in products.items()}
        if not all(variant in possible[index] for index, variant in variants.items()):
            return False
        self.images, self.variants = images, variants
        self._programs[shapes] = self._compile(shapes, images, batch)
        return True

    def _compile(self, shapes: Shapes, images: int, batch: int) -> Program:
        groups = -(-batch // images)
        workers = self.threads if groups >= self.threads else 1
        sizes = [(shape[0], shape[1], shape[2]) for shape in shapes]
        return Program(self.region, sizes, self.engine, self.threads, images, workers, self.variants)

    def program(self, inputs: list[Tensor]) -> Program | None:
        """The program for inputs of this size; None if the engine cannot take them, and torch computes or refuses them."""
        if not all(readable(x) and x.dim() == 4 and len(x) == len(inputs[0]) for x in inputs):
            return None
        shapes = shapes_of(inputs)
        try:
            return self._programs[shapes]
        except KeyError:  # by now another thread may have compiled it
            with self._lock:
                return self._programs[shapes] if shapes in self._programs else self._new_program(shapes, len(inputs[0]))

    def _new_program(self, shapes: Shapes, batch: int) -> Program | None:
        try:
            program = self._compile(shapes, self.images, batch)
        except NotOnGridError:
            program = None
        self._programs[shapes] = program
        while len(self._programs) > MAX_PROGRAMS:
            self._programs.popitem(last=False)
        return program

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        program = self.program(list(inputs))
        if program is None:
            result: Tensor | tuple[Tensor, ...] = self.plain(*inputs)
            return result
        outputs = program(list(inputs))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def layer_names(self) -> list[str]:
        steps = [step for _, step in self._convolutions()]
        return [step.name for step in steps] + [step.before.name for step in steps if step.before is not None]

    def choices(self, inputs: list[Tensor], calls: int = ROUNDS) -> list[LayerChoice]:
        """How every convolution is computed and how long it takes: the least of a few calls."""
        program = self.program(inputs)
        if program is None:
            return [self._choice(index, step, None) for index, step in self._convolutions()]
        least = torch.full((len(program.ops),), float("inf"), dtype=torch.float64)
        for _ in range(calls):
            seconds = torch.zeros_like(least)
            program(inputs, seconds)
            least = torch.minimum(least, seconds)
        return [
            self._choice(index, step, float(least[program.op_of_step[index]]) * 1e6) for index, step in self._convolutions()
        ]

    def _convolutions(self) -> list[tuple[int, ConvolutionStep]]:
        return [(index, step) for index, step in enumerate(self.region.steps) if isinstance(step, ConvolutionStep)]

    def _choice(self, index: int, step: ConvolutionStep, microseconds: float | None) -> LayerChoice:
        how = str(self.variants[index]) if index in self.variants else "taps"
        if microseconds is None:
            how = "torch"
        name, kind = step.name, step.window
        if step.before is not None:
            name, kind = f"{step.before.name} + {name}", f"{kind} after depthwise {step.before.window}"
        return LayerChoice(name, kind, step.weight.numel(), step.density, how, microseconds)


def shapes_of(inputs: list[Tensor]) -> Shapes:
    """Of one sample of every input."""
    return tuple(tuple(x.shape[1:]) for x in inputs)
