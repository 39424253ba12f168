"""From a recipe to the objects of a run: model, sparsifier, optimizer."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import autosparse
from autosparse import models
from autosparse.common.allowed import check_allowed, is_module_name
from autosparse.common.warnings import warn
from autosparse.data import Data, ImageData, TranslationData
from autosparse.methods import Method
from autosparse.recipes.recipe import ModelBlock, OptimizerBlock, Recipe, build_method
from autosparse.sparsifier import Sparsifier
from autosparse.training.rates import all_rates


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """The device that a recipe names; auto takes the accelerator that is there."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        name = accelerator.type if accelerator else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"train.device = {name!r} cannot be used here ({str(error).splitlines()[0]}); cpu always can"
        ) from error
    return torch.device(device.type, local_rank) if device.type == "cuda" and device.index is None else device


def build_model(block: ModelBlock, data: Data) -> nn.Module:
    """The network of a recipe; a translation model is given the vocabulary of its data."""
    vocabulary = None if data.text is None else data.text.vocabulary
    return build_named(block.name, model_arguments(block, vocabulary, data.padding_id, data.facts))


def check_outputs(model: nn.Module, recipe: Recipe, data: Data, inputs: tuple[Tensor, ...]) -> None:
    """Refuse a model with fewer scores than the data has classes, or pieces of words; one sample is computed."""
    if not isinstance(recipe.data, TranslationData):
        needed = int(data.facts["classes"])
        given = recipe.data.classes if isinstance(recipe.data, ImageData) else None
        setting = f"the data has {needed} classes" if given is None else f"data.classes = {given}"
    else:
        needed = 0 if data.text is None else data.text.vocabulary
        setting = f"the data's vocabulary has {needed} pieces"
    device, was_training = next(model.parameters()).device, model.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = model.eval()(*(tensor[:1].to(device) for tensor in inputs))
    except IndexError as error:
        raise ValueError(f"model {recipe.model.name} cannot read the data ({error}), and {setting}: make both agree") from error
    finally:
        model.train(was_training)
    if isinstance(outputs, Tensor) and outputs.shape[-1] < needed:
        raise ValueError(
            f"model {recipe.model.name} gives {outputs.shape[-1]} scores, but {setting}: it needs one score for each; "
            "change model.arguments or data so that both agree"
        )


def model_arguments(
    block: ModelBlock, vocabulary: int | None, padding_id: int | None, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a recipe's model, with what only the data knows of: sizes that the recipe leaves out."""
    if vocabulary is not None and block.name == "transformer":
        return {"vocabulary": vocabulary, "padding_id": padding_id, **block.arguments}
    if ":" in block.name:
        return dict(block.arguments)
    # a recipe that says its classes says them to its model, too, as those of 0.1 do
    known = {"classes": facts.get("classes") if "classes from" in facts else None, "in_features": facts.get("in_features")}
    if "words per text" in facts:
        known |= {"vocabulary": facts["vocabulary"], "length": facts["words per text"]}
    taken = models.parameters_of(block.name)
    return {name: value for name, value in known.items() if value is not None and name in taken} | dict(block.arguments)


def build_named(name: str, arguments: dict[str, Any], *, typed: bool = False) -> nn.Module:
    """A built-in model, or what package.module:function returns; `typed`: the user has typed the name as what to run."""
    return _from_callable(name, arguments, typed) if ":" in name else models.build(name, **arguments)


def check_code(name: str) -> None:
    """Refuse the model of a recipe or run whose code is neither a model of ours nor allowed; nothing is imported."""
    module, colon, function = name.partition(":")
    if not colon:
        return
    if not is_module_name(module) or any(part.startswith("__") for part in function.split(".")):
        raise ValueError(f"model {name!r} is not of the form package.module:function")
    _check_home(name, module)


def _check_home(name: str, module: str) -> None:
    """Our own functions can write files and import modules: of them a recipe may name the models alone."""
    if f"{module}.".startswith("autosparse."):
        if not f"{module}.".startswith("autosparse.models."):
            raise ValueError(f"model {name!r}: of autosparse, a recipe or run may name only what is in autosparse.models")
    else:
        check_allowed(name, module)


def load_callable(name: str, *, typed: bool = False) -> Callable[..., Any]:
    """The function at package.module:function; the current folder counts as a place of modules.

    Unless the user has `typed` the name, both the module and what it leads to must be allowed.
    """
    if not typed:
        check_code(name)
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:  # an installed command does not look there, and the user's model stands there
        sys.path.insert(0, os.getcwd())
    try:
        target: Any = importlib.import_module(module)
        for part in function.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"model {name!r}: {error}; give package.module:function that returns an nn.Module") from error
    if not callable(target):
        raise ValueError(f"model {name!r} is not a function; give package.module:function that returns an nn.Module")
    if not typed:
        _check_home(name, _home(target))
    return target  # type: ignore[no-any-return]


def _home(target: Any) -> str:
    """The module that defines a function: a harmless one may have imported it from elsewhere."""
    while isinstance(target, functools.partial):
        target = target.func
    return str(getattr(target, "__module__", None) or type(target).__module__)


def _from_callable(name: str, arguments: dict[str, Any], typed: bool) -> nn.Module:
    function = load_callable(name, typed=typed)
    try:
        model = function(**arguments)
    except TypeError as error:
        raise ValueError(f"model {name!r} does not take these arguments: {error}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {name!r} returned {type(model).__name__}; it must return an nn.Module")
    return model


def stage_epochs(recipe: Recipe, method: Method | None) -> int:
    """Epochs of one round: rounds share the epochs of the recipe, so that methods compare at the same length."""
    rounds = 1 if method is None else method.traits.rounds
    if recipe.train.epochs % rounds:
        name = recipe.method["name"]
        raise ValueError(f"{name} trains {rounds} rounds: train.epochs = {recipe.train.epochs} must be a multiple of that")
    return recipe.train.epochs // rounds


def attach(recipe: Recipe, method: Method, model: nn.Module, steps_per_epoch: int, example: tuple[Tensor, ...]) -> Sparsifier:
    """The method on the model."""
    block = recipe.sparsify
    return autosparse.sparsify(
        model,
        method,
        epochs=stage_epochs(recipe, method),
        steps_per_epoch=steps_per_epoch,
        include=block.include,
        exclude=block.exclude,
        example_input=example,
        seed=recipe.seed,
        density_floor=block.density_floor,
        guard=block.guard,
        convention=block.convention,
        baseline_epochs=block.baseline_epochs or recipe.train.epochs,
    )


def build_optimizer(recipe: Recipe, model: nn.Module, sp: Sparsifier | None, steps: int, epochs: int) -> torch.optim.Optimizer:
    """SGD, Adam or AdamW over groups: what decays, what does not, thresholds with their own decay."""
    block = recipe.optimizer
    groups = _weight_groups(block, model, sp)
    if sp is not None:
        decay = _threshold_decay(recipe, sp, steps, epochs)
        groups = sp.param_groups(groups, block.weight_decay, decay, block.threshold_decay_kind == "coupled")
    if block.name == "sgd":
        return torch.optim.SGD(groups, lr=block.lr, momentum=block.momentum, nesterov=block.nesterov)
    kind = torch.optim.Adam if block.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=block.lr, betas=block.betas, eps=block.eps)


def _threshold_decay(recipe: Recipe, sp: Sparsifier, steps: int, epochs: int) -> float | None:
    """The decay of what the method learns; None leaves it to the method, as where decay would spoil its scores."""
    block = recipe.optimizer
    if sp.method.traits.learned_decay is not None:
        if block.threshold_decay or block.threshold_decay_total:
            warn(f"{recipe.method['name']} takes no decay on what it learns: the recipe's threshold decay is left out")
        return None
    if block.threshold_decay_total is None:
        return block.threshold_decay
    momentum = block.momentum if block.name == "sgd" else 0.0
    rates = all_rates(recipe.schedule, block.lr, steps, epochs)
    return autosparse.threshold_decay(block.threshold_decay_total, rates, momentum)


def _weight_groups(block: OptimizerBlock, model: nn.Module, sp: Sparsifier | None) -> list[dict[str, Any]]:
    """Norms and biases take no decay where the recipe says so, nor do weights that the method's penalty decays already."""
    penalised: set[int] = set()
    if block.weight_decay and sp is not None and sp.method.traits.penalty_decays:
        penalised = {id(layer.stored) for layer in sp.layers}
    if block.norm_decay and not penalised:
        return [{"params": list(model.parameters()), "weight_decay": block.weight_decay}]
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": block.weight_decay}, {"params": [], "weight_decay": 0.0}]
    for weight in model.parameters():
        exempt = id(weight) in penalised or (weight.ndim <= 1 and not block.norm_decay)
        groups[exempt]["params"].append(weight)
    return groups


def make_method(recipe: Recipe, reference: Any = None) -> Method | None:
    """The recipe's method with the reference losses that auto-tuning needs; None for a dense run."""
    if recipe.dense:
        return None
    method: Method = build_method(recipe.method, reference)
    return method
