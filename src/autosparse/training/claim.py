"""Who may train into a folder: one owner at a time, and only the run that is already there, if any."""

from __future__ import annotations

from typing import Literal

from autosparse.common.files import refuse_unwritable
from autosparse.data import Data
from autosparse.recipes.loading import differences
from autosparse.recipes.recipe import Recipe
from autosparse.training.folder import RunFolder
from autosparse.training.lock import FolderLock
from autosparse.training.repair import is_intact, repair

Mode = Literal["start", "resume", "start or resume"]
# Changes that a resumed run may make: they do not touch what is computed.
FREE = ("data.path", "data.workers", "train.save_minutes")


def mode_of(resume: bool, start_or_resume: bool) -> Mode:
    """What the caller asks for."""
    if resume and start_or_resume:
        raise ValueError("give --resume, which needs a run to go on with, or --start-or-resume, not both")
    return "resume" if resume else "start or resume" if start_or_resume else "start"


def claim(folder: RunFolder, recipe: Recipe, mode: Mode, lock: FolderLock) -> None:
    """Own the folder, unless its run is done or another process owns it."""
    if folder.path.exists() and not folder.path.is_dir():
        raise ValueError(f"{folder.path} is a file; give the name of a folder with --out")
    if is_intact(folder):
        check_claim(folder, recipe, mode)
        return
    refuse_unwritable(folder.path)
    if lock.file.exists():  # else nothing is left in a folder that is refused
        lock.take()
    check_claim(folder, recipe, mode)
    lock.take()
    check_claim(folder, recipe, mode)  # another process may have been here in the meantime
    repair(folder)


def check_claim(folder: RunFolder, recipe: Recipe, mode: Mode) -> None:
    """Refuse a folder that holds another run, or a resume that would change one."""
    if not folder.exists or (folder.stillborn and mode != "resume"):
        if mode == "resume":
            raise ValueError(f"there is nothing to resume in {folder.path}: start the run without --resume")
        return
    if mode == "start":
        raise ValueError(f"{folder.path} exists already: go on with --resume, or choose another folder with --out")
    if not folder.recipe.exists():
        raise ValueError(f"{folder.path} is not the folder of a run: it has no recipe.yaml; choose another with --out")
    if not folder.has_checkpoints and folder.faults(folder.recipe):  # begun, but nothing of it would be lost
        return
    changed = [line for line in differences(folder.load_recipe(), recipe) if not line.startswith(FREE)]
    if changed:
        raise ValueError(
            f"the recipe differs from that of the run in {folder.path}: {'; '.join(changed)}. "
            f"Resume without the changes, or start a new run with --out{_longer(folder, recipe, changed)}"
        )


def _longer(folder: RunFolder, recipe: Recipe, changed: list[str]) -> str:
    """The command for what a finished run cannot do: train on for more epochs."""
    if not folder.done or not changed[0].startswith("train.epochs"):
        return ""
    zeros = "" if recipe.dense else " --initial-zeros"
    return (
        ". To train on from its weights and zeros: "
        f"autosparse train {folder.recipe} --set train.epochs={recipe.train.epochs} "
        f"--initial-weights {folder.path}{zeros} --out {folder.path}-longer"
    )


def check_data(folder: RunFolder, data: Data) -> None:
    """Refuse to go on with data other than the run's own; runs of 0.1 do not say what theirs was."""
    noted = folder.read_info().get("fingerprint") or {}
    changed = [split for split, checksum in data.fingerprint.items() if noted.get(split, checksum) != checksum]
    if changed:
        raise ValueError(
            f"the {' and '.join(changed)} data is not what the run in {folder.path} began with: other items, labels or names. "
            "Resume with the same data, or start a new run with --out"
        )
