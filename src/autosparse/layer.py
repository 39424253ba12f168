"""One sparsified tensor of a model, looked up at every use: no reference to a parameter is ever kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.func import functional_call
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.utils import parametrize

from autosparse.common.parametrized import own_class
from autosparse.common.tensors import whole
from autosparse.parametrizations import SparseParametrization
from autosparse.quantization.fake import FakeQuantizedWeight

PARTS = "_parts"
TOGETHER = "_together"  # in a list of parametrizations: who makes the effective weights of all layers of a small network
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def transposed_linear_class(module: nn.Module) -> type[nn.Module] | None:
    """The Conv1D of transformers (GPT-2), a Linear with its weight transposed, if it is one; known without importing it."""
    kinds = (kind for kind in type(module).__mro__ if kind.__module__.startswith("transformers."))
    return next((kind for kind in kinds if kind.__name__ == "Conv1D"), None)


def is_transposed_linear(module: nn.Module) -> bool:
    """Whether this is transformers' Conv1D or derives from it."""
    return transposed_linear_class(module) is not None


class Parts(parametrize.ParametrizationList):
    """torch's list of parametrizations, which for one alone takes a fraction of the time: small layers feel it."""

    def forward(self) -> Tensor:
        if len(self._modules) > 1:  # the user has added one
            return super().forward()
        part = self._modules["0"]
        assert isinstance(part, SparseParametrization)
        effective: Tensor = part.forward(self.original)
        return effective


def _quick_property(module: nn.Module, tensor: str) -> None:
    """Read the effective weight past the calls that torch makes on the way; small layers feel those too.

    Where hooks, `parametrize.cached` or a compiler want to see them, torch's own property is asked.
    """
    given: property = vars(type(module))[tensor]
    by_torch: Callable[[nn.Module], Tensor] = given.fget  # type: ignore[assignment]

    def effective(self: nn.Module) -> Tensor:
        if is_dynamo_compiling() or parametrize._cache_enabled or _has_any_global_hook():  # type: ignore[no-untyped-call]
            return by_torch(self)
        parts: Any = self._modules["parametrizations"]._modules[tensor]  # type: ignore[union-attr]
        if type(parts) is not Parts or parts._forward_hooks or parts._forward_pre_hooks or parts._backward_hooks:
            return by_torch(self)
        together = vars(parts).get(TOGETHER)
        made: Tensor | None = None if together is None else together.take(parts)
        return parts.forward() if made is None else made

    setattr(type(module), tensor, property(effective, given.fset))


@dataclass(frozen=True)
class Place:
    """Where a tensor sits: a module and the tensor's name in it."""

    module: nn.Module
    module_name: str
    tensor: str

    @property
    def name(self) -> str:
        """The layer's name: the module's for a `weight`, the full name for any other tensor."""
        if self.tensor == "weight" and self.module_name:
            return self.module_name
        return f"{self.module_name}.{self.tensor}".lstrip(".")

    @property
    def key(self) -> str:
        """The tensor's key in a plain state_dict."""
        return f"{self.module_name}.{self.tensor}".lstrip(".")


@dataclass(frozen=True)
class Layer:
    """A tensor with a parametrization; tied tensors are one layer in several places."""

    places: tuple[Place, ...]
    shape: torch.Size

    @property
    def name(self) -> str:
        return self.places[0].name

    @property
    def kind(self) -> str:
        return next(
            t.__name__ for t in type(self.places[0].module).__mro__ if not t.__name__.startswith(("Parametrized", "FSDP"))
        )

    @property
    def numel(self) -> int:
        return self.shape.numel()

    @property
    def channel_dim(self) -> int:
        """The dimension of the output channels."""
        module = self.places[0].module
        return 1 if isinstance(module, _TRANSPOSED) or is_transposed_linear(module) else 0

    @property
    def attached(self) -> bool:
        place = self.places[0]
        return parametrize.is_parametrized(place.module, place.tensor)

    @property
    def stored(self) -> Tensor:
        """The parameter that the optimizer trains; a sharded tensor under FSDP2."""
        place = self.places[0]
        if PARTS in vars(self) or self.attached:
            return self._list().original
        parameter = place.module._parameters[place.tensor]
        assert parameter is not None
        return parameter

    @property
    def parametrization(self) -> SparseParametrization:
        parts = vars(self).get(PARTS)
        if parts is None:
            parts = self._list()
        parametrization: SparseParametrization = parts._modules["0"]  # type: ignore[assignment]
        return parametrization

    def cached_count(self) -> int | None:
        """The parametrization's, where it has one."""
        part, stored = self.parametrization, vars(self)[PARTS]._parameters.get("original")
        count: int | None = part.cached_count(self.stored if stored is None else stored)
        if count is None or not part.counts_only_wide:
            part.refuse_narrow(self.name)
        return count

    @property
    def parts(self) -> Parts:
        """The list of parametrizations in its first place."""
        parts = self._list()
        assert isinstance(parts, Parts)
        return parts

    def _list(self) -> parametrize.ParametrizationList:
        parts: Any = vars(self).get(PARTS)
        if parts is None:
            place = self.places[0]
            parts = place.module.parametrizations[place.tensor]  # type: ignore[index]
            vars(self)[PARTS] = parts  # a module, no parameter; looked up several times per step
        assert isinstance(parts, parametrize.ParametrizationList)
        return parts

    def weight(self) -> Tensor:
        """The stored weight, whole and detached."""
        return whole(self.stored.detach())

    def effective(self) -> Tensor:
        """The weight that the forward pass sees, whole and detached."""
        if not self.attached:
            return self.weight()
        # thresholds are sharded too under FSDP2
        held = {name: whole(each.detach()) for name, each in self.parametrization.named_parameters()}
        with torch.no_grad():
            effective: Tensor = functional_call(self.parametrization, held, (self.weight(),))
            for part in list(self._list())[1:]:
                effective = part(effective) if isinstance(part, FakeQuantizedWeight) else effective
        return effective

    def active(self) -> Tensor:
        """Where the effective weight is not zero."""
        weight = self.weight()
        return self.parametrization.active(weight) if self.attached else weight != 0

    def count_active(self) -> Tensor:
        weight = self.weight()
        return self.parametrization.count_active(weight) if self.attached else torch.count_nonzero(weight)

    def attach(self, parametrization: SparseParametrization) -> None:
        for place in self.places:
            # unsafe: the checks would run the parametrization once more, and cannot run on the meta device
            parametrize.register_parametrization(place.module, place.tensor, parametrization, unsafe=True)
            place.module.parametrizations[place.tensor].__class__ = Parts  # type: ignore[index]
            _quick_property(place.module, place.tensor)
            if not _hooks_of(place.module._load_state_dict_pre_hooks, _from_plain):
                place.module.register_load_state_dict_pre_hook(_from_plain)  # type: ignore[no-untyped-call]
            if isinstance(place.module, nn.RNNBase) and _drop_graph not in place.module._forward_hooks.values():
                place.module.register_forward_hook(_drop_graph)

    def detach(self) -> None:
        """Remove the parametrization; what is stored stays as it is."""
        vars(self).pop(PARTS, None)
        for place in self.places:
            own_class(place.module)
            parametrize.remove_parametrizations(place.module, place.tensor, leave_parametrized=False)
            for hooks, hook in (
                (place.module._forward_hooks, _drop_graph),
                (place.module._load_state_dict_pre_hooks, _from_plain),
            ):
                for key in _hooks_of(hooks, hook):
                    del hooks[key]


def _hooks_of(hooks: Mapping[int, Any], hook: Callable[..., Any]) -> list[int]:
    """The keys of a hook; torch wraps those of load_state_dict."""
    return [key for key, registered in hooks.items() if getattr(registered, "hook", registered) is hook]


def _drop_graph(module: nn.RNNBase, args: Any, output: Any) -> None:
    """torch keeps the weights of an RNN's last forward pass; with their graph they could be neither copied nor freed."""
    module._flat_weights = [each if each is None or each.is_leaf else each.detach() for each in module._flat_weights]
    for parts in module.parametrizations.values():  # type: ignore[operator]
        together = vars(parts).get(TOGETHER)
        if together is not None:
            together.done(parts)


def _from_plain(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let load_state_dict read a plain weight into a sparsified module; thresholds and masks stay for now."""
    for tensor, parts in module.parametrizations.items():  # type: ignore[operator,union-attr]
        part, stored, plain = parts[0], f"{prefix}parametrizations.{tensor}.original", prefix + tensor
        if isinstance(part, SparseParametrization) and plain in state and stored not in state:
            state[stored] = part.right_inverse(state.pop(plain))
            for name, value in part.state_dict().items():
                state.setdefault(f"{prefix}parametrizations.{tensor}.0.{name}", value)
            part.took_plain_weight = True
