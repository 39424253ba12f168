"""The profile of a model: from the user's first eager forward pass, or from an example input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from autosparse.common.modes import same_mode_after
from autosparse.cost.count import samples_in, tensors_in
from autosparse.cost.layers import Profile
from autosparse.cost.trace import Trace

ExampleInput = Tensor | tuple[Any, ...] | Mapping[str, Any]


class Recorder:
    """Watches the model's next complete eager forward pass, then removes its hooks and calls `done` with the profile."""

    def __init__(self, model: nn.Module, batch_size: int | None = None, done: Callable[[Profile], None] | None = None) -> None:
        self.profile: Profile | None = None
        self._done = done
        self._batch_size = batch_size
        self._samples = 0
        self._trace: Trace | None = None
        self._may_be_compiled = False
        self._handles = [
            model.register_forward_pre_hook(self._before, with_kwargs=True),
            # prepended: several recorders must end in the reverse order of their start
            model.register_forward_hook(self._after, with_kwargs=True, prepend=True, always_call=True),
        ]

    def close(self) -> None:
        """Stop waiting for a forward pass."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, function: Callable[..., Any], model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Watch a function that runs the model's parts by itself, such as a training step."""
        self._before(model, args, kwargs)
        output = None
        try:
            output = function(*args, **kwargs)
        finally:
            self._after(model, args, kwargs, output)
        return output

    def _before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
            return
        if self._trace is not None:
            self._trace.stop()
            self._trace = None
        if has_compiled_parts(model) and not self._may_be_compiled:
            return
        self._samples = self._batch_size or samples_in([*args, *kwargs.values()])
        if self._samples:
            self._trace = Trace(model, (args, kwargs))
            self._trace.start()

    def _after(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if torch.compiler.is_compiling() or self._trace is None:
            return
        trace, self._trace = self._trace, None
        self.profile = trace.finish(args, kwargs, output, self._samples)
        if self.profile is not None:
            self.close()
            if self._done:
                self._done(self.profile)


def profile(model: nn.Module, example_input: ExampleInput, batch_size: int | None = None) -> Profile:
    """MACs of every layer for one sample: one forward pass in eval mode that leaves the model as it was.

    `batch_size` is dim 0 of the first tensor unless given.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"profile needs a torch.nn.Module, not {type(model).__name__}")
    model = getattr(model, "_orig_mod", model)
    args, kwargs = call_arguments(example_input)
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    if not (batch_size or samples_in([*args, *kwargs.values()])):
        raise ValueError(f"the example input holds no sample: {_shapes(args, kwargs)}; give at least one")
    compiled = has_compiled_parts(model)
    with (
        Recorder(model, batch_size) as recorder,
        same_mode_after(model, inside=False),
        same_random_state(model, args, kwargs),
        torch.no_grad(),
        torch.compiler.set_stance("force_eager") if compiled else nullcontext(),
    ):
        recorder._may_be_compiled = compiled
        try:
            model(*args, **kwargs)
        except Exception as error:
            raise ValueError(
                f"the model rejected the example input {_shapes(args, kwargs)}: {type(error).__name__}: {error}"
            ) from error
    if recorder.profile is None:
        raise RuntimeError("the forward pass was not seen: call profile outside torch.compile and torch.jit.trace")
    return recorder.profile


def has_compiled_parts(model: nn.Module) -> bool:
    """Whether torch.compile runs a part of the model, which hides what happens inside."""
    return any(module._compiled_call_impl is not None or "_orig_mod" in module._modules for module in model.modules())


def call_arguments(example_input: ExampleInput) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a call with this input."""
    if isinstance(example_input, Tensor | PackedSequence):
        return (example_input,), {}
    if isinstance(example_input, tuple):
        return example_input, {}
    if isinstance(example_input, Mapping):
        return (), dict(example_input)
    raise TypeError(
        f"example_input must be a tensor, a tuple of positional inputs or a dict of keyword inputs, "
        f"not {type(example_input).__name__}"
    )


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    def shape(value: Any) -> str:
        return " ".join(str(tuple(tensor.shape)) for tensor in tensors_in(value)) or type(value).__name__

    named = [f"{name}={shape(value)}" for name, value in kwargs.items()]
    return "[" + ", ".join([*map(shape, args), *named]) + "]"


@contextmanager
def same_random_state(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """torch's random numbers are afterwards what they were before, on the devices of the model and its inputs."""
    tensors = [*model.parameters(), *tensors_in((args, kwargs))]
    found = {tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")}
    devices = {device for device in found if hasattr(torch, device.type)}  # others have no random numbers of their own
    kind = next((device.type for device in devices), "cuda")
    indices = sorted({device.index or 0 for device in devices if device.type == kind})
    with torch.random.fork_rng(devices=indices, device_type=kind):
        yield
