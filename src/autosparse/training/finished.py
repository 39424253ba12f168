"""A finished run opened again: its recipe, its model, and the data that it has never trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from autosparse.data import Data, ImageData, TranslationData, open_data
from autosparse.recipes.recipe import Recipe
from autosparse.training import build
from autosparse.training.folder import RunFolder


@dataclass(frozen=True)
class Finished:
    """A run with its model in evaluation mode, and the arguments that build the model again."""

    folder: RunFolder
    recipe: Recipe
    arguments: dict[str, Any]
    model: nn.Module


def open_finished(path: Path) -> Finished:
    """The run in a folder; the error for any but a finished one says what to do."""
    folder = RunFolder(path)
    folder.check_finished()
    recipe = folder.load_recipe()
    arguments = _arguments(folder, recipe)
    return Finished(folder, recipe, arguments, load_model(folder, recipe, arguments))


def load_model(folder: RunFolder, recipe: Recipe, arguments: dict[str, Any] | None = None) -> nn.Module:
    """The plain model with its final weights."""
    try:
        model = build.build_named(recipe.model.name, _arguments(folder, recipe) if arguments is None else arguments)
    except TypeError as error:  # an argument that the model does not have, or of another type
        raise ValueError(f"{folder.recipe} does not describe a model: {error}") from error
    try:
        safetensors.torch.load_model(model, str(folder.model))
    except (RuntimeError, safetensors.SafetensorError) as error:
        message = str(error).splitlines()[0]
        raise ValueError(f"{folder.model} does not hold the weights of this recipe's model: {message}") from error
    return model.eval()


def held_out_data(folder: RunFolder, recipe: Recipe) -> Data:
    """The data to score on; translations are cut into pieces as in training, whatever text lies there now."""
    if isinstance(recipe.data, TranslationData):
        from autosparse.data.translation import open_held_out

        return open_held_out(recipe.data, folder.tokenizer)
    return open_data(recipe.data, seed=recipe.seed)


def calibration_batches(finished: Finished, samples: int) -> list[tuple[Tensor, ...]]:
    """Inputs of the run's own training data, this many samples or all there are, to find the ranges of activations."""
    recipe = finished.recipe
    # in order and unchanged: pictures as they will be served, not as training crops them
    if isinstance(recipe.data, ImageData):
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"augment": "none"})})
    batches: list[tuple[Tensor, ...]] = []
    for inputs, _ in open_data(recipe.data, seed=recipe.seed).train.epoch(0):
        missing = samples - sum(len(batch[0]) for batch in batches)
        if missing <= 0:
            break
        batches.append(tuple(tensor[:missing] for tensor in inputs))
    return batches


def _arguments(folder: RunFolder, recipe: Recipe) -> dict[str, Any]:
    """All arguments of the run's model; a translation model's vocabulary comes from the run's own tokenizer."""
    facts = folder.read_info().get("data")
    facts = facts if isinstance(facts, dict) else {}
    if not isinstance(recipe.data, TranslationData):
        return build.model_arguments(recipe.model, None, None, facts)
    from autosparse.data.tokenizer import PADDING_ID, read_tokenizer

    return build.model_arguments(recipe.model, read_tokenizer(folder.tokenizer).get_vocab_size(), PADDING_ID, facts)
