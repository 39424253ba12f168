"""Whole runs against the clock: which runs are made, with how many epochs, and what counts as reaching an accuracy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autosparse.bench import whole_runs
from autosparse.bench.whole_runs import DENSE, MORE, SPARSE, Contest, Outcome, alone
from autosparse.recipes.loading import load_recipe
from autosparse.training.folder import RunFolder
from autosparse.training.run import dense_of


class Pretended:
    """Runs whose epochs take 2 s dense and 1 s sparse; accuracy rises by a tenth per epoch, zeros come with the last two."""

    def __init__(self) -> None:
        self.trained: list[tuple[str, int, int]] = []

    def __call__(self, recipe: Any, folder: Path, **_: Any) -> dict[str, Any]:
        epochs, pace = recipe.train.epochs, 2.0 if recipe.dense else 1.0
        self.trained.append((recipe.method["name"], epochs, recipe.seed))
        folder.mkdir(parents=True)
        lines = [
            {"epoch": epoch + 1, "accuracy": 0.1 * (epoch + 1) + 0.001 * recipe.seed, "seconds": pace * (epoch + 1)}
            | {"processor_seconds": pace / 2 * (epoch + 1)}
            | ({} if recipe.dense else {"sparsity": 0.9 if epoch >= epochs - 2 else 0.5})
            for epoch in range(epochs)
        ]
        RunFolder(folder).metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        sparsity = 0.0 if recipe.dense else 0.9
        times = {"seconds": pace * epochs, "processor_seconds": pace / 2 * epochs}
        return {"epochs": epochs, **times, "accuracy": lines[-1]["accuracy"], "sparsity": sparsity}


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    found = Pretended()
    monkeypatch.setattr(whole_runs, "train", found)
    return found


def contest(folder: Path, **options: Any) -> Contest:
    recipe = load_recipe("digits", ["train.epochs=3"])
    return Contest(alone(recipe), dense_of(recipe), folder, say=lambda _: None, **options)


def test_sparse_gets_the_epochs_that_fit_into_the_seconds_of_dense(pretended: Pretended, tmp_path: Path) -> None:
    found = contest(tmp_path, seeds=2)
    found.run()
    both = [("dense", 3, 0), ("autosparse", 3, 0), ("dense", 3, 1), ("autosparse", 3, 1)]
    assert pretended.trained == [*both, ("autosparse", 6, 0), ("autosparse", 6, 1)]
    goal = found.common_accuracy()
    assert goal == pytest.approx(0.3)
    rows = {row.side: row for row in found.summaries(goal)}
    assert list(rows) == [DENSE, SPARSE, MORE]
    assert [rows[side].seconds for side in rows] == [6.0, 3.0, 6.0]
    assert [rows[side].seconds_to for side in rows] == [6.0, 3.0, 5.0], "sparse runs count once they have their zeros"
    assert rows[SPARSE].accuracy == pytest.approx(0.3005)
    assert rows[SPARSE].deviation == pytest.approx(0.0007, abs=1e-4)
    assert found.summaries(0.35)[0].seconds_to is None
    content = json.loads(json.dumps(whole_runs.content(found, goal, ["autosparse"]), default=str))
    assert len(content["runs"]) == 6
    assert content["rows"][1]["side"] == SPARSE


def test_both_sides_fit_into_given_seconds(pretended: Pretended, tmp_path: Path) -> None:
    found = contest(tmp_path, seeds=1, seconds=10.0)
    found.run()
    assert pretended.trained[2:] == [("dense", 5, 0), ("autosparse", 10, 0)]
    assert [row.side for row in found.summaries(0.1)][2:] == ["dense, 10 s", "sparse, 10 s"]


def test_processor_time_may_be_the_clock(pretended: Pretended, tmp_path: Path) -> None:
    found = contest(tmp_path, seeds=1, clock="processor_seconds")
    found.run()
    rows = found.summaries(0.3)
    assert [row.seconds for row in rows] == [3.0, 1.5, 3.0]
    assert [row.seconds_to for row in rows] == [3.0, 1.5, 2.5]


def test_a_sparse_run_is_not_there_before_its_zeros() -> None:
    run = Outcome("sparse", 0, Path(), 3, 3.0, 0.6, 0.9, ((1.0, 0.8, 0.4), (2.0, 0.5, 0.896), (3.0, 0.6, 0.9)))
    assert run.seconds_to(0.55) == 3.0
    assert run.seconds_to(0.7) is None


def test_the_sparse_side_trains_alone() -> None:
    assert load_recipe("digits").train.dense_beside
    assert not alone(load_recipe("digits")).train.dense_beside
