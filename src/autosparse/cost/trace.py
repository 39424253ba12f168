"""Observes one forward pass: which module runs, where every tensor comes from, and which weight each product uses."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from autosparse.cost.count import Call, Product, products, tensors_in
from autosparse.cost.layers import LayerCost, Profile
from autosparse.cost.modules import module_products

# functions whose other tensors lend only their shape, type or device
_SHAPED_BY_OTHERS = frozenset({"to", "type_as", "expand_as", "view_as", "reshape_as"})


class Origin(enum.Enum):
    """Of tensors that depend on no parameter. Those made from parameters alone carry the parameter's key instead."""

    INPUT = "input"
    CONSTANT = "constant"


@dataclass
class _Frame:
    """A running module and the weights that products have used in it."""

    module: nn.Module
    path: str
    used: set[str] = field(default_factory=set)


@dataclass
class _Tally:
    kind: str
    macs: int
    first: bool


class Trace(TorchFunctionMode):
    """Watches the root's forward pass from `start` to `finish`, which adds up what it saw."""

    def __init__(self, root: nn.Module, inputs: Any) -> None:
        super().__init__()
        self._error = sys.exception()
        self._frames = [_Frame(root, "")]
        self._tallies: dict[str, _Tally] = {}
        self._shapes: dict[str, torch.Size] = {}
        self._first_keys: dict[str, str] = {}
        self._origins: Any = WeakIdKeyDictionary()
        self._handles: list[RemovableHandle] = []
        self._paths = {module: _plain(path) for path, module in root.named_modules()}
        self._register(inputs)

    def _register(self, inputs: Any) -> None:
        first_keys: dict[int, str] = {}
        for module, path in self._paths.items():
            for name, parameter in module._parameters.items():
                if parameter is None:
                    continue
                key = _key(path, name)
                if key is None:
                    self._origins[parameter] = Origin.CONSTANT
                    continue
                self._first_keys[key] = first_keys.setdefault(id(parameter), key)
                self._origins.setdefault(parameter, key)
            for buffer in module._buffers.values():
                if buffer is not None:
                    self._origins[buffer] = Origin.CONSTANT
        for tensor in tensors_in(inputs):
            if not tensor.requires_grad:
                self._origins[tensor] = Origin.INPUT

    def start(self) -> None:
        for module in self._paths:
            if module is not self._frames[0].module and not isinstance(module, torch.jit.ScriptModule):
                self._handles.append(module.register_forward_pre_hook(self._enter))
                # prepended and always called, so that modules leave in the reverse order even when one raises
                leave = module.register_forward_hook(self._leave, with_kwargs=True, prepend=True, always_call=True)
                self._handles.append(leave)
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        # an interrupt runs no hooks: by the next forward pass another mode may lie above this one
        if torch.overrides._get_current_function_mode() is self:  # type: ignore[no-untyped-call]
            self.__exit__(None, None, None)
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._frames.append(_Frame(module, self._paths[module]))

    def _leave(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        while len(self._frames) > 1 and self._frames[-1].module is not module:
            self._frames.pop()
        if isinstance(module, parametrize.ParametrizationList):
            self._frames.pop()
            key = _key(self._paths[module], "original")
            if key is not None and isinstance(output, Tensor):
                self._origins[output] = key
                self._shapes[key] = output.shape
            return
        self._count_module(args, kwargs, output)
        self._frames.pop()

    def _count_module(self, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """Count the running module's own weights where no torch function was seen to use them."""
        frame = self._frames[-1]
        for name, product in module_products(frame.module, args, kwargs, output):
            key = _join(frame.path, name)
            if key not in frame.used:
                self._add(key, product)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if torch.compiler.is_compiling():
            return result
        # an operator of a library may share a torch function's name but not its arguments
        is_operator = isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket)
        name = "" if is_operator else getattr(func, "__name__", "")
        origin = self._result_origin(name, args, kwargs)
        if "parametrizations" not in self._frames[-1].path.split("."):
            counted = [self._attribute(product) for product in products(name, Call(args, kwargs, result))]
            if any(counted) and isinstance(origin, str):
                origin = None
        for tensor in tensors_in(args[0] if name == "__setitem__" else result):
            if origin is None:
                self._origins.pop(tensor, None)
            else:
                self._origins[tensor] = origin
        return result

    def _origin(self, tensor: Tensor) -> Origin | str | None:
        # the running module first: a tied weight takes the name under which it is used
        for frame in reversed(self._frames):
            for name, parameter in frame.module._parameters.items():
                if parameter is tensor:
                    return _key(frame.path, name) or Origin.CONSTANT
        return self._origins.get(tensor)  # type: ignore[no-any-return]

    def _result_origin(self, function: str, args: Any, kwargs: dict[str, Any]) -> Origin | str | None:
        if function.endswith("_like") or function.startswith("new_"):
            return Origin.CONSTANT
        if function in _SHAPED_BY_OTHERS:
            return self._derived([*tensors_in(args[:1])])
        return self._derived([*tensors_in(args), *tensors_in(kwargs)])

    def _derived(self, inputs: list[Tensor]) -> Origin | str | None:
        """Where the result of a function comes from; None once data has met parameters."""
        largest, key, has_input = -1, None, False
        for tensor in inputs:
            origin = self._origin(tensor)
            if origin is None:
                return None
            if isinstance(origin, str):
                if tensor.numel() > largest:
                    largest, key = tensor.numel(), origin
            else:
                has_input |= origin is Origin.INPUT
        if key is not None:
            return None if has_input else key
        return Origin.INPUT if has_input else Origin.CONSTANT

    def _attribute(self, product: Product) -> bool:
        """Count a product under its weight, or its module when only activations meet; False if no data is in it."""
        data, weight = product.data, product.weight
        key = _join(self._frames[-1].path, "products")
        if weight is None:
            self._add(key, product, activations=True)
            return True
        sides = [(data, weight)]
        if product.either and data is not None:
            sides.append((weight, data))
        origins = [self._origin(right) for _, right in sides]
        if len(sides) == 2 and (all(isinstance(origin, str) for origin in origins) or set(origins) == {Origin.CONSTANT}):
            return False
        for (left, right), origin in zip(sides, origins, strict=True):
            weight_key = origin if origin is not None else self._like(right, parametrized_only=product.either)
            if isinstance(weight_key, str):
                kind = "linear" if product.kind == "matmul" else product.kind
                self._add(weight_key, product._replace(kind=kind, data=left))
                return True
        self._add(key, product._replace(kind="matmul"), activations=True)
        return True

    def _like(self, tensor: Tensor, parametrized_only: bool) -> str | None:
        """A weight of this shape in the running module or its children: an effective weight whose making was not seen."""
        frame = self._frames[-1]
        keys = []
        for module in (frame.module, *frame.module.children()):
            parametrized = getattr(module, "parametrizations", {})
            shapes = {name: getattr(parametrized[name], "original", tensor).shape for name in parametrized}
            if not parametrized_only:
                shapes |= {name: value.shape for name, value in module._parameters.items() if value is not None}
            path = self._paths.get(module, frame.path)
            keys += [_join(path, name) for name, shape in shapes.items() if shape == tensor.shape]
        return next((key for key in keys if key not in frame.used), keys[0] if keys else None)

    def _add(self, key: str, product: Product, activations: bool = False) -> None:
        first = not activations and product.data is not None and isinstance(self._origin(product.data), Origin)
        if not activations:
            self._frames[-1].used.add(key)
        tally = self._tallies.setdefault(key, _Tally(product.kind, 0, first))
        tally.macs += product.macs
        tally.first &= first

    def finish(self, args: Any, kwargs: dict[str, Any], output: Any, samples: int) -> Profile | None:
        """Stop watching; the profile per sample, in the order of first use, or None if the forward pass failed."""
        self.stop()
        if sys.exception() is not self._error:
            return None
        self._count_module(args, kwargs, output)
        for module, path in self._paths.items():
            for name, parameter in module._parameters.items():
                key = _key(path, name)
                if key is not None and parameter is not None:
                    self._shapes.setdefault(key, parameter.shape)
        layers = []
        for key, tally in self._tallies.items():
            shape = self._shapes.get(key)
            first_key = self._first_keys.get(key, key)
            layers.append(
                LayerCost(
                    name=_layer_name(key),
                    kind=tally.kind,
                    params=shape.numel() if shape is not None else 0,
                    macs=(tally.macs + samples // 2) // samples,
                    shape=tuple(shape) if shape is not None else None,
                    first=tally.first,
                    tied_to=None if first_key == key else _layer_name(first_key),
                )
            )
        return Profile(tuple(layers))


def _plain(path: str) -> str:
    """A module's path without the wrapper that torch.compile adds."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _layer_name(key: str) -> str:
    return key.removesuffix(".weight")


def _key(path: str, name: str) -> str | None:
    """A tensor's key in the plain model; None for a parameter that belongs to a parametrization itself."""
    owner, marker, rest = f".{path}".rpartition(".parametrizations.")
    if not marker:
        return _join(path, name)
    return _join(owner.removeprefix("."), rest) if "." not in rest and name.startswith("original") else None
