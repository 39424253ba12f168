"""`autosparse train` killed at every phase: resumed, it ends in the weights of a run that nobody killed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from autosparse import kernels

from .killing import KILLED, PLAN, Kill, Place, choose, describe
from .tally import Tally, chance_of, scaled, tally

KILLS = {"target": 14, "tuned": 10, "adam": 6, "sparse": 12, "sparse-rigl": 8}
PLANNED, AFTER_PLAN = 16, 8
ON_KERNELS = ("sparse", "sparse-rigl")


def start(recipe: str, out: str) -> tuple[str, ...]:
    return ("train", f"{recipe}.yaml", "--no-report", "--out", out)


def resume(out: str) -> tuple[str, ...]:
    return ("train", "--resume", "--no-report", "--out", out)


def finish(place: Place, recipe: str, out: str) -> str | None:
    """The same command again, which goes on with what is there; what went wrong, if anything."""
    done = place.fork(*start(recipe, out), "--start-or-resume")
    return None if done.returncode == 0 else f"going on failed with {done.returncode}: {done.stderr[-2000:]}"


def kill_and_finish(place: Place, recipe: str, out: str, first: tuple[str, ...], kill: Kill, counted: Tally) -> bool:
    """One trial; False if the command ended before it could be killed."""
    done = place.fork(*first, kill=kill)
    if not place.was_killed():
        return False
    counted.kills += 1
    counted.on_kernels += recipe in ON_KERNELS or recipe == "planned"
    counted.after_plan += recipe == "planned" and kill.is_after_plan
    problem = None if done.returncode == KILLED else f"it ended with {done.returncode}, not by the kill"
    problem = problem or finish(place, recipe, out) or place.difference("unbroken", out)
    counted.count(problem and describe(kill, done, problem))
    return True


def trials(place: Place, recipe: str, marks: list[str], count: int, chance: random.Random, counted: Tally) -> None:
    number = 0
    while counted.trials < count:
        number += 1
        out = f"{recipe}-{number}"
        kill_and_finish(place, recipe, out, start(recipe, out), choose(chance, marks, "train"), counted)
        assert number < 3 * count + 10, "the commands end before they can be killed"
    counted.note = note(place, marks)


def note(place: Place, marks: list[str]) -> str:
    rounded = f"; in {place.rounded} the validation loss differs in its last bits" if place.rounded else ""
    return f"{len(set(marks))} kinds of moments{rounded}"


@pytest.mark.parametrize("recipe", KILLS)
def test_train(recipe: str, tmp_path: Path) -> None:
    if recipe in ON_KERNELS and not kernels.available():
        pytest.skip(f"no sparse kernels: {kernels.why_not()}")
    with tally(f"kills of train, {recipe}") as counted, Place(tmp_path) as place:
        marks = place.marks_of(*start(recipe, "unbroken"))
        trials(place, recipe, marks, scaled(KILLS[recipe]), chance_of(recipe), counted)


@pytest.mark.skipif(not kernels.available(), reason=f"no sparse kernels: {kernels.why_not()}")
@pytest.mark.parametrize("label", [None, PLAN], ids=["any moment", "after a plan"])
def test_train_with_a_stored_plan(label: str | None, tmp_path: Path) -> None:
    """Under "auto" measured times decide: runs are the same from the first checkpoint that holds the plan."""
    count = scaled(PLANNED if label is None else AFTER_PLAN)
    with (
        tally(f"kills of train, planned{'' if label is None else ', within a second after a plan'}") as counted,
        Place(tmp_path) as place,
    ):
        chance = chance_of(f"planned {label}")
        begun = place.fork(*start("planned", "begun"), kill=Kill("train", "step", 12, 0.0))
        assert begun.returncode == KILLED, begun.stderr
        place.copy("begun", "unbroken")
        marks = place.marks_of(*resume("unbroken"))
        text = (place.path / "unbroken" / "result.json").read_text()
        assert "passes of" in text, "no pass of this net runs on the sparse kernels"
        number = 0
        while counted.trials < count:
            number += 1
            out = f"planned-{number}"
            place.copy("begun", out)
            kill_and_finish(place, "planned", out, resume(out), choose(chance, marks, "train", label=label), counted)
            assert number < 3 * count + 10, "the commands end before they can be killed"
        counted.note = note(place, marks)
