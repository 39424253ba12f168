"""The measured step is a real one: masks of the wanted density that move, both sides from the same weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autosparse.bench.tasks import make_task, new_model, own_loss, plain_loss
from autosparse.bench.training import BFLOAT16, DENSE, IN_FLOAT32, Settings, Start, compare, make_side
from autosparse.recipes.loading import dump_recipe, load_recipe

PLAIN = Settings(
    what="small_conv",
    batch=4,
    tokens=64,
    image=None,
    threads=1,
    alpha=0.0,
    dense_grad_every=1,
    backward_sparsity=0.0,
    layer_by_layer=False,
    exclude=(),
    default_malloc=True,
    cpu_time=True,
)


def test_thresholds_and_masks_change_while_it_is_timed() -> None:
    side = make_side(make_task("small_conv", 4, 64, None), PLAIN, Start(0.8, "dense"))
    assert side.sp is not None
    before = [(layer.active(), layer.parametrization.threshold_values()) for layer in side.sp.layers]
    for _ in range(3):
        side.step()
    after = [(layer.active(), layer.parametrization.threshold_values()) for layer in side.sp.layers]
    assert any(not torch.equal(old[0], new[0]) for old, new in zip(before, after, strict=True))
    assert all(not torch.equal(old[1], new[1]) for old, new in zip(before, after, strict=True))  # type: ignore[arg-type]


def test_a_run_gives_its_densities(tmp_path: Path) -> None:
    recipe = load_recipe("digits")
    densities = {"conv2": 0.3, "conv3": 0.05, "fc": 0.7}
    layers = [{"name": name, "sparsity": 1 - density} for name, density in densities.items()]
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    (tmp_path / "result.json").write_text(json.dumps({"layers": layers}))
    task = make_task(str(tmp_path), 8, 64, None)
    side = make_side(task, replace(PLAIN, what=str(tmp_path)), Start(None, "dense"))
    assert side.sp is not None
    assert len(task.targets) == 8
    found = dict(zip([layer.name for layer in side.sp.layers], side.sp.densities(), strict=True))
    assert found == pytest.approx(densities, abs=0.02)
    (tmp_path / "result.json").write_text(json.dumps({"layers": []}))
    with pytest.raises(ValueError, match="is dense"):
        make_task(str(tmp_path), 8, 64, None)


def test_every_round_times_a_whole_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task("small_conv", 2, 64, None)
    rows, sides = compare(task, replace(PLAIN, dense_grad_every=3, alpha=0.5), [Start(0.5, "dense")], rounds=2)
    assert sides[rows[1].side].sp.step == 3 + 2 * 3  # type: ignore[union-attr]
    assert [len(row.seconds) for row in rows] == [2, 2]


def test_bfloat16_beside_dense_torch_in_both_precisions() -> None:
    task = make_task("small_conv", 2, 64, None)
    rows, sides = compare(task, replace(PLAIN, precision=BFLOAT16), [Start(0.9, "dense")], rounds=1)
    assert [row.side for row in rows] == [DENSE, IN_FLOAT32, "AutoSparse from 90 %, dense compute"]
    assert rows[0].faster_median == 1.0
    sp = sides[rows[2].side].sp
    assert sp is not None
    assert sp.layers[0].stored.grad is not None
    assert sp.layers[0].stored.grad.dtype is torch.float32


def test_both_losses_of_a_translation_are_the_same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from autosparse import models

    monkeypatch.setattr(
        "autosparse.bench.tasks.models.transformer", lambda **_: models.build("transformer", **SMALL_TRANSFORMER)
    )
    task = make_task("transformer", 1, 64, None)
    assert task.inputs[0].shape == (2, 32)
    assert task.size == "64 tokens"
    model = new_model(task)
    torch.testing.assert_close(own_loss(model, task.inputs, task.targets), plain_loss(model, task.inputs, task.targets))
    side = make_side(task, PLAIN, Start(0.5))
    assert side.sp is not None
    assert "output" in [layer.name for layer in side.sp.layers]
    side.step()


SMALL_TRANSFORMER = {
    "vocabulary": 60, "size": 16, "heads": 2, "feed_forward": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0,
}  # fmt: skip
