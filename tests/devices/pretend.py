"""A device that nobody has to own: tensors of a device type of their own that compute on the CPU inside.

It refuses to mix with CPU tensors as CUDA does, and counts what a program on a real device would wait for: every value that
goes back to the host, and every result whose size depends on values. The type is torch's `lazy`, which no backend here serves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

DEVICE = torch.device("lazy", 0)
CPU = torch.device("cpu")
aten = torch.ops.aten
COPIES = frozenset({aten.copy_.default, aten._to_copy.default, aten._copy_from.default})
WAITS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
# Indices may lie on the CPU. Masks among them are counted by the host before it knows the size of the result.
INDEXING = frozenset({aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default})


class Reads:
    """The operations that made the host wait, in order, while `watch` was on."""

    def __init__(self) -> None:
        self._open: list[list[str]] = []

    @contextlib.contextmanager
    def watch(self) -> Iterator[list[str]]:
        names: list[str] = []
        self._open.append(names)
        try:
            yield names
        finally:
            self._open.remove(names)

    def note(self, function: Any) -> None:
        for names in self._open:
            names.append(str(function))


READS = Reads()


class PretendTensor(Tensor):
    """A tensor on the device; `inside` holds its values on the CPU."""

    inside: Tensor

    @staticmethod
    def __new__(cls, inside: Tensor) -> PretendTensor:
        layout = {"strides": inside.stride(), "storage_offset": inside.storage_offset(), "dtype": inside.dtype}
        tensor: PretendTensor = Tensor._make_wrapper_subclass(cls, inside.size(), device=DEVICE, **layout)  # type: ignore[attr-defined]
        tensor.inside = inside
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert a tensor of the pretended device to numpy: use Tensor.cpu() first")

    def data_ptr(self) -> int:
        return self.inside.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copy = PretendTensor(self.inside.detach().clone())
            memo[id(self)] = _with_gradient(copy, self, memo)
        copied: Tensor = memo[id(self)]
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As torch saves the tensors of a device that has no storage."""
        rebuild = torch._utils._rebuild_device_tensor_from_cpu_tensor
        return rebuild, (self.inside.detach(), self.dtype, str(self.device), self.requires_grad)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"PretendTensor({self.inside!r})"


def _with_gradient(copy: Tensor, original: Tensor, memo: dict[int, Any]) -> Tensor:
    if isinstance(original, torch.nn.Parameter):
        copy = torch.nn.Parameter(copy, original.requires_grad)
    else:
        copy.requires_grad_(original.requires_grad)
    if original.grad is not None:
        copy.grad = original.grad.__deepcopy__(memo)
    return copy


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _refuse_mixed(func, args, kwargs)
    result_device = torch.device(kwargs["device"]) if kwargs.get("device") is not None else DEVICE
    if _waits(func, args, result_device):
        READS.note(func)
    inner_args, inner_kwargs = _map(_inside, args), {name: _map(_inside, value) for name, value in kwargs.items()}
    if inner_kwargs.get("device") is not None:
        inner_kwargs["device"] = CPU
    results = func(*inner_args, **inner_kwargs)
    if func is aten.set_.source_Tensor:
        args[0].inside = inner_args[1]
        return args[0]
    if result_device == CPU:
        return results
    outsides = {
        id(tensor.inside): tensor for tensor in _tensors((*args, *kwargs.values())) if isinstance(tensor, PretendTensor)
    }
    return _map(lambda tensor: _outside(tensor, outsides), results)


def _outside(inside: Tensor, known: dict[int, PretendTensor]) -> PretendTensor:
    """The tensor that was given for one written in place, else a new one."""
    return known[id(inside)] if id(inside) in known else PretendTensor(inside)


def _map(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """Every tensor in nested lists and tuples replaced: torch's own tree functions take several times as long."""
    if isinstance(values, list | tuple):
        return type(values)([_map(function, value) for value in values])
    return function(values) if isinstance(values, Tensor) else values


def _inside(tensor: Tensor) -> Tensor:
    return tensor.inside if isinstance(tensor, PretendTensor) else tensor


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _map(lambda tensor: found.append(tensor) or tensor, values)  # type: ignore[func-returns-value]
    return found


def _on_cpu(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if not isinstance(tensor, PretendTensor)]


def _refuse_mixed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """CPU tensors are welcome only where CUDA takes them: copies, indices, and numbers beside tensors."""
    if func in COPIES:
        return
    given = (args[0], *args[2:], *kwargs.values()) if func in INDEXING else (*args, *kwargs.values())
    strangers = _on_cpu(_tensors(given))
    is_written = bool(strangers) and func._schema.is_mutable and strangers[0] is args[0]
    if all(tensor.dim() == 0 for tensor in strangers) and not is_written and (_takes_numbers(func) or not strangers):
        return
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and cpu! (in {func})"
    )


def _takes_numbers(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags or func in INDEXING


def _waits(func: Any, args: tuple[Any, ...], result_device: torch.device) -> bool:
    if func in COPIES:
        to_host = func is aten.copy_.default and not isinstance(args[0], PretendTensor)
        return to_host or result_device == CPU
    if func in INDEXING:
        has_mask = any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1]))
        fills = func is not aten.index.Tensor and args[2].numel() == 1  # which CUDA does without counting
        return has_mask and not fills
    return not WAITS.isdisjoint(func.tags)


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    return PretendTensor(torch.empty(size, dtype=dtype, memory_format=memory_format))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return PretendTensor(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """What torch.tensor(values, device=...) calls below __torch_dispatch__."""
    assert isinstance(target, PretendTensor)
    target.inside.copy_(source)
    return target


_FACTORIES: dict[str, Callable[..., Tensor]] = {
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "_copy_from": _copy_from,
}
_LIBRARY = torch.library.Library("aten", "IMPL")
for _name, _function in _FACTORIES.items():
    _LIBRARY.impl(_name, _function, "Lazy")
