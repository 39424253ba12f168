"""The weights that a run starts from, where they are not random, and the zeros among them."""

from __future__ import annotations

from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from autosparse.export.format import KEY
from autosparse.export.reader import differences, load_sparse
from autosparse.methods.families.fixed_mask import set_mask
from autosparse.methods.target import TargetController
from autosparse.methods.target_steering import refresh_reach
from autosparse.parametrizations import Masked, SoftThreshold
from autosparse.sparsifier import Sparsifier, plain
from autosparse.training.folder import RunFolder


def load_start(model: nn.Module, weights: str) -> None:
    """Give the model the weights of a finished run, of a .safetensors file or of a sparse file."""
    state = _with_tied(_read(weights), model.state_dict())
    problems = differences({name: tuple(tensor.shape) for name, tensor in state.items()}, model.state_dict())
    if problems:
        raise ValueError(
            f"initial_weights = {weights} cannot be loaded into the recipe's model: {'; '.join(problems[:5])}. "
            "Give weights of the same network"
        )
    model.load_state_dict(state)


def start_from_zeros(sp: Sparsifier, state: dict[str, Tensor]) -> None:
    """Let the method begin with the zeros of these plain weights: they are pruned, and all other weights are active."""
    plain.load(sp.model, sp.layers, state)
    soft = []
    for layer in sp.layers:
        weight, parametrization = layer.weight(), layer.parametrization
        if isinstance(parametrization, SoftThreshold):
            parametrization.set_threshold(_below_all(weight))
            soft.append((layer, parametrization))
        elif isinstance(parametrization, Masked):
            set_mask(sp, layer, weight != 0)
        else:
            raise ValueError(
                f"initial_zeros: {sp.method.about.name} has neither masks nor thresholds that could start from given zeros; "
                "leave it out, or choose another method"
            )
    refresh_reach(soft)
    controller = sp.parts.get("controller")
    if isinstance(controller, TargetController):
        controller.start(sp.sparsity())


def _below_all(weight: Tensor) -> Tensor:
    """A threshold under the smallest weight that is not zero."""
    positive = weight.abs()[weight != 0]
    return positive.min() / 2 if positive.numel() else weight.new_zeros(())


def _read(weights: str) -> dict[str, Tensor]:
    path = Path(weights)
    file = RunFolder(path).model if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(
            f"initial_weights = {weights}: {file} does not exist; give the folder of a finished run, or a file of weights"
        )
    if path.is_dir():
        RunFolder(path).check_model()
    try:
        with safetensors.safe_open(str(file), "pt") as opened:
            is_sparse = KEY in (opened.metadata() or {})
        return load_sparse(file) if is_sparse else safetensors.torch.load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise ValueError(
            f"initial_weights = {weights} cannot be loaded into the recipe's model: {file} is damaged, or no safetensors file "
            f"({str(error).splitlines()[0]})"
        ) from error


def _with_tied(state: dict[str, Tensor], model: dict[str, Tensor]) -> dict[str, Tensor]:
    """A weight that the model uses under two names is stored under one."""
    stored = {_place(tensor): state[name] for name, tensor in model.items() if name in state}
    tied = {name: stored[_place(tensor)] for name, tensor in model.items() if name not in state and _place(tensor) in stored}
    return state | tied


def _place(tensor: Tensor) -> tuple[int, torch.Size]:
    return tensor.data_ptr(), tensor.shape
