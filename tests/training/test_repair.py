"""Files that a power cut has emptied, cut or filled with zeros: found out, told, and written again where that is possible."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from autosparse import SparsityWarning
from autosparse.recipes.loading import completed, load_recipe
from autosparse.recipes.recipe import Recipe
from autosparse.training.evaluate import evaluate
from autosparse.training.finished import open_finished
from autosparse.training.folder import Run, RunFolder
from autosparse.training.run import train

from .conftest import Workshop

CHANGES = ["train.epochs=2", "data.limit=64", "data.limit_test=32"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a dense one inside."""
    folder = tmp_path_factory.mktemp("trained") / "r"
    train(recipe(), folder, quiet=True)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(trained, tmp_path / "r")))


def recipe() -> Recipe:
    return load_recipe("digits", [*CHANGES, "train.dense_beside=true", "train.threads=1", "model.arguments.width=4"])


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.write_bytes({"emptied": b"", "cut": content[:-40], "zeros": content[:-40] + bytes(40)}[how])


def resume(run: RunFolder, word: str) -> dict[str, Any]:
    with pytest.warns(SparsityWarning, match=word):
        return train(recipe(), run.path, resume=True, quiet=True)


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ("seconds", "processor_seconds", "speed", "gain")}


@pytest.mark.parametrize("how", ["emptied", "cut", "zeros"])
@pytest.mark.parametrize("name", ["run.json", "recipe.yaml", "result.json", "model.safetensors"])
def test_a_damaged_file_of_a_finished_run_is_written_again(run: RunFolder, trained: Path, name: str, how: str) -> None:
    damage(run.path / name, how)
    result = resume(run, rf"{name} is .*the run is finished again from its last checkpoint")
    assert run.faults() == []
    assert run.read_info()["status"] == "done"
    assert run.model.read_bytes() == (trained / "model.safetensors").read_bytes()
    assert without_time(result) == without_time(json.loads((trained / "result.json").read_text()))
    assert run.load_recipe() == completed(recipe())


def test_a_lost_file_is_written_again(run: RunFolder, trained: Path) -> None:
    run.model.unlink()
    resume(run, r"model\.safetensors is missing")
    assert run.model.read_bytes() == (trained / "model.safetensors").read_bytes()


def test_readers_of_a_damaged_model_are_told_what_to_do(run: RunFolder) -> None:
    damage(run.model, "zeros")
    for read in (open_finished, evaluate):
        with pytest.raises(ValueError, match=r"model\.safetensors is not as the run wrote it; `autosparse train --resume"):
            read(run.path)


def test_a_recipe_that_was_edited_by_hand_is_no_damage(run: RunFolder) -> None:
    run.recipe.write_text(run.recipe.read_text().replace("name: digits", "name: mine", 1))
    assert run.faults() == []


def test_what_no_checkpoint_can_restore_is_refused(run: RunFolder) -> None:
    shutil.rmtree(run.checkpoints)
    damage(run.model, "emptied")
    with pytest.raises(ValueError, match=r"model\.safetensors is empty, and there is no checkpoint to write it again from"):
        train(recipe(), run.path, resume=True, quiet=True)
    assert run.done


def test_a_run_of_an_older_release_is_judged_by_the_form_of_its_files(run: RunFolder) -> None:
    info = run.read_info()
    del info["files"]
    run.info.write_text(json.dumps(info))
    assert run.faults() == []
    damage(run.model, "cut")
    assert len(run.faults()) == 1


@pytest.mark.parametrize("name", ["run.json", "recipe.yaml"])
def test_an_unfinished_run_goes_on(run: RunFolder, trained: Path, name: str) -> None:
    run.update_info(status="running")
    run.result.unlink()
    run.model.unlink()
    damage(run.path / name, "emptied")
    resume(run, f"{name} is empty")
    assert run.model.read_bytes() == (trained / "model.safetensors").read_bytes()


def test_a_begun_run_whose_recipe_was_lost_starts_again(run: RunFolder) -> None:
    for path in run.path.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    run.recipe.write_bytes(b"")
    assert train(recipe(), run.path, start_or_resume=True, quiet=True)["epochs"] == 2
    shutil.rmtree(run.checkpoints)
    run.recipe.write_bytes(b"")
    with pytest.raises(ValueError, match="there is no checkpoint with a copy"):
        run.load_recipe()


def test_lost_figures_are_told_and_do_not_stop_a_run(run: RunFolder) -> None:
    run.metrics.write_bytes(bytes(100))
    resume(run, r"metrics\.jsonl has lost the figures of 2 of 2 epochs")
    assert run.faults() == []
    assert Run.read(run.path).notes == ("metrics.jsonl has lost the figures of 2 epochs",)


def test_a_damaged_dense_run_inside_is_finished_again(run: RunFolder) -> None:
    dense = RunFolder(run.path / "dense")
    before = dense.read_result()
    run.update_info(status="running")
    run.result.unlink()
    damage(dense.result, "emptied")
    resume(run, r"dense: result\.json is empty; the run is finished again")
    assert without_time(dense.read_result()) == without_time(before)


def test_a_run_killed_just_before_it_was_closed_is_closed(run: RunFolder) -> None:
    run.update_info(status="running", files={})
    train(recipe(), run.path, resume=True, quiet=True)
    assert run.read_info()["status"] == "done"
    assert set(run.read_info()["files"]) == {"recipe.yaml", "model.safetensors", "metrics.jsonl"}


def test_losses_to_compare_with_are_written_again(fresh_workshop: Workshop) -> None:
    tuned = load_recipe("tiny.yaml", [*CHANGES, "method={name: autosparse, autotune: {epochs: 1}}"])
    train(tuned, "r", quiet=True)
    run = RunFolder(Path("r"))
    before = run.reference.read_bytes()
    run.update_info(status="running")
    run.result.unlink()
    run.reference.write_bytes(b"")
    with pytest.warns(SparsityWarning, match=r"reference\.json is empty; it is written again"):
        train(tuned, "r", resume=True, quiet=True)
    assert run.reference.read_bytes() == before
    RunFolder(Path("r/reference")).metrics.write_bytes(b"")
    run.reference.unlink()
    run.result.unlink()
    with pytest.raises(ValueError, match=r"has lost the figures of epochs \[1\], which this run compares with"):
        train(tuned, "r", resume=True, quiet=True)
