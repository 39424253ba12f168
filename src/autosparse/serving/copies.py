"""A copy of the user's model to work on: everything that deploy changes is its own."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.nn.utils import parametrize

from autosparse.serving.capture import one_line

State = dict[str, Tensor]


def working_copy(model: nn.Module) -> tuple[nn.Module, State]:
    """A copy for evaluation whose parametrizations are plain weights, and the tensors of the model itself, under its names."""
    copied = _copy(model).eval().requires_grad_(False)
    parametrized = [f"{name}.".lstrip(".") for name, module in copied.named_modules() if parametrize.is_parametrized(module)]
    state = {
        # what a parametrization holds is changed when it becomes a weight
        key: value.detach().clone() if any(key.startswith(name) for name in parametrized) else value
        for key, value in copied.state_dict(keep_vars=True).items()
    }
    for module in list(copied.modules()):
        if parametrize.is_parametrized(module):
            _bake(module)
    return copied, state


def _copy(model: nn.Module) -> nn.Module:
    results = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    results += [tensor for module in model.modules() for tensor in getattr(module, "_flat_weights", [])]
    # what a forward pass has left behind cannot be copied together with its history
    memo = {id(tensor): tensor.detach().clone() for tensor in results if isinstance(tensor, Tensor) and not tensor.is_leaf}
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:  # of the model's own attributes
        raise TypeError(f"deploy works on a copy, and this model cannot be copied ({one_line(error)})") from error


def _bake(module: nn.Module) -> None:
    """Give a module the class and the weights that it would have without its parametrizations.

    torch's own `remove_parametrizations` would change the class, which the copy shares with the user's module.
    """
    values = {name: getattr(module, name).detach().clone() for name in module.parametrizations}  # type: ignore[union-attr]
    del module._modules["parametrizations"]
    module.__class__ = type(module).__bases__[0]
    for name, value in values.items():
        module.register_parameter(name, nn.Parameter(value, requires_grad=False))
