"""What a run's folder holds: nothing, a part of the run, all of it, or another run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from autosparse.recipes import loading as recipes
from autosparse.recipes.loading import load_recipe
from autosparse.recipes.recipe import Recipe
from autosparse.training.folder import read_json

State = Literal["new", "unfinished", "done"]


def state_of(folder: Path, recipe: Recipe) -> State:
    """Whether the run has to be started, resumed or skipped; a folder of another recipe is refused with the difference."""
    stored = stored_recipe(folder)
    if stored is None:
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} exists but holds no recipe.yaml, so it is no run of ours; choose another --out")
        return "new"
    different = differences(stored, recipe)
    if different:
        raise ValueError(
            f"{folder} holds a run of another recipe ({'; '.join(different)}); choose another --out, or remove that folder"
        )
    return "done" if (folder / "result.json").exists() else "unfinished"


def stored_recipe(folder: Path) -> Recipe | None:
    """The recipe that a folder's run began with; None where no run was begun."""
    path = folder / "recipe.yaml"
    return load_recipe(path) if path.exists() else None


def differences(stored: Recipe, wanted: Recipe) -> list[str]:
    """A phrase for every value that decides a run and is not the same, such as `train.epochs: 10 -> 12`."""
    return recipes.differences(_essence(stored), _essence(wanted))


def _essence(recipe: Recipe) -> Recipe:
    """The recipe without what does not decide a run: names and words, and the threads, which follow from --jobs."""
    train = recipe.train.model_copy(update={"threads": None})
    return recipe.model_copy(update={"name": "", "description": "", "paper": None, "train": train})


def message_of(folder: Path, log: Path) -> str:
    """Why a run failed: its own word, or the last line it printed."""
    try:
        said = read_json(folder / "run.json").get("message", "")
    except ValueError:
        said = ""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return str(errors[-1] if errors else said or (lines[-1] if lines else "ended without a word"))
