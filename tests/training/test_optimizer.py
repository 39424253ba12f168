"""What decays in the optimizer of a recipe, and what does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autosparse import SparsityWarning
from autosparse.recipes.loading import load_recipe
from autosparse.training.build import attach, build_named, build_optimizer, make_method

STEPS = 5


def optimizer_of(*changes: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The net of the digits recipe with these changes, and its optimizer."""
    recipe = load_recipe("digits", ["train.epochs=2", *changes])
    model: nn.Module = build_named(recipe.model.name, recipe.model.arguments)
    method = make_method(recipe)
    sp = None
    if method is not None:
        sp = attach(recipe, method, model, STEPS, (Tensor(1, 1, 8, 8).zero_(),))
    return model, build_optimizer(recipe, model, sp, STEPS, recipe.train.epochs)


def decays(*changes: str) -> dict[str, float]:
    """The weight decay of every parameter."""
    model, optimizer = optimizer_of(*changes)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    listed = [(names[id(entry)], group["weight_decay"]) for group in optimizer.param_groups for entry in group["params"]]
    assert sorted(name for name, _ in listed) == sorted(names.values())
    return dict(listed)


def test_the_penalty_of_topkast_is_the_decay_of_its_own_layers_only() -> None:
    listed = decays("method={name: topkast, sparsity: 0.8}", "optimizer.weight_decay=1e-3")
    sparse = {name for name in listed if name.endswith("parametrizations.weight.original")}
    assert len(sparse) == 5  # of seven layers, without the first and the last
    assert {listed[name] for name in sparse} == {0.0}
    assert {listed[name] for name in listed.keys() - sparse} == {1e-3}


def test_topkast_without_a_penalty_decays_like_any_other() -> None:
    listed = decays("method={name: topkast, sparsity: 0.8, exploration: 0.0}", "optimizer.weight_decay=1e-3")
    assert set(listed.values()) == {1e-3}


def test_norms_and_biases_may_be_left_out() -> None:
    listed = decays("method=dense", "optimizer.weight_decay=1e-3", "optimizer.norm_decay=false")
    assert set(listed.values()) == {0.0, 1e-3}
    matrices = {name for name, value in listed.items() if value}
    assert len(matrices) == 7
    assert all(name.endswith("weight") for name in matrices)


@pytest.mark.parametrize("name", ["optg", "cs", "scl", "ltp"])
def test_a_recipes_threshold_decay_does_not_reach_methods_that_take_none(name: str) -> None:
    with pytest.warns(SparsityWarning, match=f"{name} takes no decay on what it learns"):
        listed = decays(f"method={{name: {name}}}", "train.epochs=8", "optimizer.threshold_decay_total=1.0")
    assert set(listed.values()) == {0.0, 1e-4}


def test_a_recipes_threshold_decay_reaches_thresholds() -> None:
    listed = decays("method={name: str}", "optimizer.threshold_decay=0.3")
    assert set(listed.values()) == {1e-4, 0.3}


@pytest.mark.parametrize("kind", ["decoupled", "coupled"])
def test_a_recipe_chooses_the_kind_of_decay_that_thresholds_take_under_adam(kind: str) -> None:
    adam = f"optimizer={{name: adam, lr: 1e-3, threshold_decay: 0.3, threshold_decay_kind: {kind}}}"
    _, optimizer = optimizer_of("method={name: str}", adam)
    *_, thresholds = optimizer.param_groups
    assert (thresholds["weight_decay"], thresholds["decoupled_weight_decay"]) == (0.3, kind == "decoupled")
