"""Every full-size recipe of the paper takes two steps at its true shapes, in a small batch of made-up data."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from autosparse.data.config import ImageData, TranslationData
from autosparse.methods import Method
from autosparse.methods.families.budget import Budgeted
from autosparse.recipes.loading import load_recipe, recipe_names
from autosparse.recipes.method_block import build_method
from autosparse.recipes.recipe import Recipe
from autosparse.sparsifier import Sparsifier
from autosparse.training.build import attach, build_named, build_optimizer, model_arguments
from autosparse.training.validate import summed_loss

IMAGES, SENTENCES, TOKENS, PADDING = 2, 2, 12, 0
STEPS = {"images": 5004, "translation": 1647}  # per epoch of the real data
MILLIONS = {"resnet50": 25.6, "mobilenet_v1": 4.2, "transformer": 214.2}
NAMES = [name for name in recipe_names() if name.startswith(("resnet50-", "mobilenet-", "wmt14-"))]
Batch = tuple[tuple[Tensor, ...], Tensor]


def made_up(data: ImageData | TranslationData) -> Batch:
    """Inputs and targets of one step."""
    if isinstance(data, ImageData):
        assert data.image_size is not None
        images = torch.randn(IMAGES, data.channels, data.image_size, data.image_size)
        return (images,), torch.randint(data.classes, (IMAGES,))
    source, target = torch.randint(4, data.vocabulary, (2, SENTENCES, TOKENS))
    return (source, target), target.roll(-1, dims=1)


def build_network(recipe: Recipe) -> nn.Module:
    vocabulary = recipe.data.vocabulary if isinstance(recipe.data, TranslationData) else None
    return build_named(recipe.model.name, model_arguments(recipe.model, vocabulary, PADDING, {}))


def method_of(recipe: Recipe) -> Method | None:
    if recipe.dense:
        return None
    tuned = recipe.method.get("autotune")
    return build_method(recipe.method, reference=[1.0] * tuned["epochs"] if tuned else None)


def take_step(recipe: Recipe, model: nn.Module, sp: Sparsifier | None, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    inputs, target = batch
    optimizer.zero_grad()
    loss = summed_loss(model(*inputs), target, None, recipe.train.label_smoothing) / target.numel()
    (loss if sp is None else loss + sp.penalty()).backward()
    optimizer.step()
    return float(loss.detach())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_steps(name: str) -> None:
    recipe = load_recipe(name)
    torch.manual_seed(recipe.seed)
    model, method, batch = build_network(recipe), method_of(recipe), made_up(recipe.data)
    if "base" not in name:
        weights = sum(parameter.numel() for parameter in model.parameters())
        assert round(weights / 1e6, 1) == MILLIONS[recipe.model.name]
    steps = STEPS[recipe.data.kind]
    sp = None if method is None else attach(recipe, method, model, steps, tuple(tensor[:1] for tensor in batch[0]))
    optimizer = build_optimizer(recipe, model, sp, steps, recipe.train.epochs)
    if sp is not None:
        sp.bind(optimizer)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    losses = [take_step(recipe, model, sp, optimizer, batch) for _ in range(2)]
    assert all(math.isfinite(loss) for loss in losses)
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    if sp is not None and method is not None:
        assert sp.step == 2
        assert 0 < sp.cost.test_fraction <= 1
        if isinstance(method, Budgeted):
            assert sp.sparsity() == pytest.approx(recipe.method["sparsity"], abs=1e-4)
