"""Runs that start from given weights, and from their zeros."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from autosparse import save_sparse
from autosparse.recipes.loading import load_recipe
from autosparse.training.finished import open_finished
from autosparse.training.run import train

from .conftest import Workshop

LAYERS = ("0.weight", "4.0.weight", "6.weight")
UNCHANGED = ("optimizer.lr=1e-12", "optimizer.weight_decay=0", "schedule={name: constant}")


def run(out: str, *changes: str, **options: Any) -> dict[str, Any]:
    recipe = load_recipe("tiny.yaml", ["train.epochs=2", "data.limit=128", *changes])
    return train(recipe, out, quiet=True, **options)


@pytest.fixture
def sparse(fresh_workshop: Workshop) -> Workshop:
    """A workshop with a finished run of 60 % zeros, also as a sparse file."""
    run("sparse")
    save_sparse(open_finished(Path("sparse")).model, "sparse.safetensors")
    return fresh_workshop


@pytest.mark.parametrize("weights", ["sparse", "sparse/model.safetensors", "sparse.safetensors"])
def test_a_run_a_file_and_a_sparse_file(sparse: Workshop, weights: str) -> None:
    run("again", f"initial_weights={weights}", "method=dense", *UNCHANGED)
    before, after = sparse.weights("sparse"), sparse.weights("again")
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in LAYERS)


@pytest.mark.parametrize(
    "method", ["{name: autosparse, target_sparsity: 0.6}", "{name: str}", "{name: rigl, dense_first: false}", "{name: keep}"]
)
def test_methods_start_from_the_zeros(sparse: Workshop, method: str) -> None:
    run("again", "initial_weights=sparse", "initial_zeros=true", f"method={method}", "train.epochs=1", *UNCHANGED)
    before, after = sparse.weights("sparse"), sparse.weights("again")
    for name in LAYERS:
        kept = before[name] != 0
        assert torch.equal(after[name] != 0, kept), name
        assert torch.allclose(after[name][kept], before[name][kept], atol=1e-2), name


def test_methods_without_masks_or_thresholds_are_refused(sparse: Workshop) -> None:
    with pytest.raises(ValueError, match="initial_zeros: cs has neither masks nor thresholds that could start"):
        run("again", "initial_weights=sparse", "initial_zeros=true", "method={name: cs}")


def test_what_differs_is_named(sparse: Workshop) -> None:
    with pytest.raises(ValueError, match=r"initial_weights = sparse cannot be loaded .*0\.weight.*16"):
        run("again", "initial_weights=sparse", "model.arguments={width: 16}")
    weights = sparse.weights("sparse")
    weights["stranger"] = weights.pop("6.weight")
    safetensors.torch.save_file(weights, "renamed.safetensors")
    with pytest.raises(ValueError, match=r"6\.weight.*stranger"):
        run("renamed", "initial_weights=renamed.safetensors")


def test_zeros_need_weights(fresh_workshop: Workshop) -> None:
    with pytest.raises(ValueError, match="initial_zeros: needs initial_weights, and a method that prunes"):
        run("r", "initial_zeros=true")


def test_a_resumed_run_does_not_need_them_any_more(sparse: Workshop) -> None:
    run("again", "initial_weights=sparse", "initial_zeros=true")
    before = Path("again/model.safetensors").read_bytes()
    Path("again/result.json").unlink()
    Path("sparse").rename("elsewhere")
    run("again", "initial_weights=sparse", "initial_zeros=true", resume=True)
    assert Path("again/model.safetensors").read_bytes() == before


def test_the_message_of_a_finished_run_gives_the_command_to_train_on(sparse: Workshop) -> None:
    with pytest.raises(ValueError, match=r"train.epochs: 2 -> 3.* To train on from its weights and zeros: ") as refused:
        run("sparse", "train.epochs=3", resume=True)
    command = str(refused.value).partition("zeros: autosparse ")[2].split()
    assert command[:4] == ["train", "sparse/recipe.yaml", "--set", "train.epochs=3"]
    done = sparse.command(*command, "--no-report")
    assert done.returncode == 0, done.stderr
    assert sparse.json("sparse-longer", "result.json")["epochs"] == 3
    assert sparse.json("sparse-longer", "result.json")["sparsity"] == pytest.approx(0.6, abs=0.005)
