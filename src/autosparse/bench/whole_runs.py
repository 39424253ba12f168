"""Whole runs against the clock: dense and sparse with as many epochs, with as many seconds, and to the same accuracy."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from autosparse import kernels
from autosparse.bench.conditions import conditions
from autosparse.recipes.recipe import Recipe
from autosparse.training.folder import RunFolder
from autosparse.training.run import train

AT_TARGET = 0.005  # points of sparsity within which an epoch has the sparsity that the run ends with
CLOCKS = {"seconds": "wall clock", "processor_seconds": "processor time"}
DENSE, SPARSE, MORE = "dense", "sparse", "sparse, seconds of dense"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """One finished run; `curve` has seconds, accuracy and sparsity of every epoch."""

    side: str
    seed: int
    folder: Path
    epochs: int
    seconds: float
    accuracy: float
    sparsity: float
    curve: tuple[tuple[float, float, float], ...]

    def seconds_to(self, accuracy: float) -> float | None:
        """When it first had this accuracy, with the zeros that it ends with; None where it never had."""
        reached = (s for s, a, zeros in self.curve if a >= accuracy and zeros >= self.sparsity - AT_TARGET)
        return next(reached, None)


@dataclass(frozen=True)
class Summary:
    """A side over all seeds: means, and deviations where there are several."""

    side: str
    epochs: int
    seconds: float
    accuracy: float
    deviation: float
    sparsity: float
    seconds_to: float | None  # None where a seed did not reach it


@dataclass
class Contest:
    """All runs of a benchmark in one folder; runs that are there already are not repeated."""

    recipe: Recipe
    dense: Recipe
    out: Path
    seeds: int
    seconds: float | None = None  # to train for; by default what the dense recipe takes
    say: Say = print
    clock: Literal["seconds", "processor_seconds"] = "seconds"
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self) -> None:
        """Dense and sparse in turn for every seed, then both with the epochs that fit into the seconds."""
        for seed in range(self.seeds):
            self._train(DENSE, self.dense, seed)
            self._train(SPARSE, self.recipe, seed)
        seconds = self.seconds or self._mean_seconds(DENSE)
        longer = self._epochs_in(seconds, SPARSE)
        fitting = self._epochs_in(seconds, DENSE) if self.seconds else self.dense.train.epochs
        for seed in range(self.seeds):
            if fitting != self.dense.train.epochs:
                self._train(f"{DENSE}, {seconds:.0f} s", with_epochs(self.dense, fitting), seed)
            if longer != self.recipe.train.epochs:
                side = MORE if self.seconds is None else f"{SPARSE}, {seconds:.0f} s"
                self._train(side, with_epochs(self.recipe, longer), seed)

    def _train(self, side: str, recipe: Recipe, seed: int) -> None:
        words = side.replace(",", "").replace(" ", "-")
        folder = self.out / f"{words}-{recipe.train.epochs}-epochs-seed{seed}"
        self.say(f"{side}: {recipe.train.epochs} epochs, seed {seed}")
        result = train(recipe.model_copy(update={"seed": recipe.seed + seed}), folder, start_or_resume=True, quiet=True)
        lines = RunFolder(folder).read_metrics()
        curve = tuple((line[self.clock], line["accuracy"], line.get("sparsity") or 0.0) for line in lines)
        numbers = (result["epochs"], result[self.clock], result["accuracy"], result["sparsity"])
        self.outcomes.append(Outcome(side, seed, folder, *numbers, curve))

    def _mean_seconds(self, side: str) -> float:
        return statistics.fmean(each.seconds for each in self.outcomes if each.side == side)

    def _epochs_in(self, seconds: float, side: str) -> int:
        epochs = next(each.epochs for each in self.outcomes if each.side == side)
        return max(1, int(epochs * seconds / self._mean_seconds(side)))

    def common_accuracy(self) -> float:
        """What dense and sparse reach with every seed in the recipe's epochs, at their own sparsity."""
        runs = [each for each in self.outcomes if each.side in (DENSE, SPARSE)]
        return min(max(a for _, a, zeros in each.curve if zeros >= each.sparsity - AT_TARGET) for each in runs)

    def summaries(self, accuracy: float) -> list[Summary]:
        """One row per side."""
        rows = []
        for side in dict.fromkeys(each.side for each in self.outcomes):
            runs = [each for each in self.outcomes if each.side == side]
            times = [each.seconds_to(accuracy) for each in runs]
            known = [time for time in times if time is not None]
            scores = [each.accuracy for each in runs]
            rows.append(
                Summary(
                    side,
                    runs[0].epochs,
                    statistics.fmean(each.seconds for each in runs),
                    statistics.fmean(scores),
                    statistics.stdev(scores) if len(scores) > 1 else 0.0,
                    statistics.fmean(each.sparsity for each in runs),
                    statistics.fmean(known) if len(known) == len(times) else None,
                )
            )
        return rows


def alone(recipe: Recipe) -> Recipe:
    """The sparse contestant without a dense run beside it, which would take its time."""
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"dense_beside": False})})


def with_epochs(recipe: Recipe, epochs: int) -> Recipe:
    """The same recipe over another number of epochs; what counts whole epochs is checked again."""
    block = recipe.model_dump(mode="json")
    block["train"]["epochs"] = epochs
    return Recipe.model_validate(block)


def content(contest: Contest, accuracy: float, command: Sequence[str]) -> Mapping[str, Any]:
    """What the JSON file holds."""
    timed = f"{CLOCKS[contest.clock]} of whole runs"
    facts = conditions(kernels.instruction_set() if kernels.available() else None, (), timed=timed)
    rows = [vars(row) for row in contest.summaries(accuracy)]
    runs = [{**vars(each), "folder": each.folder.name, "curve": each.curve} for each in contest.outcomes]
    threads = contest.recipe.train.threads or torch.get_num_threads()
    names = {"recipe": contest.recipe.name, "seeds": contest.seeds, "threads": threads, "accuracy": accuracy}
    return {"machine": facts, **names, "command": list(command), "rows": rows, "runs": runs}
