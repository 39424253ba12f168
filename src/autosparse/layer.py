"""One sparsified tensor of a model, looked up at every use: no reference to a parameter is ever kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from autosparse.common.tensors import whole
from autosparse.parametrizations import SparseParametrization

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def is_transposed_linear(module: nn.Module) -> bool:
    """Whether this is the Conv1D of transformers (GPT-2), a Linear with its weight transposed; known without importing it."""
    return any(kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") for kind in type(module).__mro__)


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
        if self.attached:
            return self._list().original
        parameter = place.module._parameters[place.tensor]
        assert parameter is not None
        return parameter

    @property
    def parametrization(self) -> SparseParametrization:
        parametrization = self._list()[0]
        assert isinstance(parametrization, SparseParametrization)
        return parametrization

    def _list(self) -> parametrize.ParametrizationList:
        place = self.places[0]
        parametrizations = place.module.parametrizations[place.tensor]  # type: ignore[index]
        assert isinstance(parametrizations, parametrize.ParametrizationList)
        return parametrizations

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
            if isinstance(place.module, nn.RNNBase) and _drop_graph not in place.module._forward_hooks.values():
                place.module.register_forward_hook(_drop_graph)

    def detach(self) -> None:
        """Remove the parametrization; what is stored stays as it is."""
        for place in self.places:
            _own_class(place.module)
            parametrize.remove_parametrizations(place.module, place.tensor, leave_parametrized=False)
            hooks = place.module._forward_hooks
            for key in [key for key, hook in hooks.items() if hook is _drop_graph]:
                del hooks[key]


def _own_class(module: nn.Module) -> None:
    """Deep copies share the class that torch made for the original: taking a property from it would break all of them."""
    shared = type(module)
    content = {name: value for name, value in vars(shared).items() if name not in ("__dict__", "__weakref__")}
    module.__class__ = type(shared.__name__, shared.__bases__, content)


def _drop_graph(module: nn.RNNBase, args: Any, output: Any) -> None:
    """torch keeps the weights of an RNN's last forward pass; with their graph they could be neither copied nor freed."""
    module._flat_weights = [each if each is None or each.is_leaf else each.detach() for each in module._flat_weights]
