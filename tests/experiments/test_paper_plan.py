"""Which runs stand for the paper's rows and figures, at both scales."""

from __future__ import annotations

import pytest

from autosparse.experiments.grid import Cell
from autosparse.experiments.paper import making
from autosparse.experiments.paper.facts import TABLES, network_of, paper_numbers, recipe_of, recipes_of_rows, rows_of
from autosparse.experiments.paper.figures import FIGURES, PAPER_DECAY
from autosparse.experiments.paper.scales import Full, Scale
from autosparse.experiments.paper.small import Small
from autosparse.recipes.loading import load_recipe


def row(item: str, place: int, scale: Scale) -> Cell:
    return scale.row(rows_of(item)[place])[0]


def test_every_row_of_the_paper_has_one_recipe() -> None:
    tables = paper_numbers()["tables"]
    assert {name for name, _ in TABLES.values()} == set(tables)
    wanted = {(table, place) for table in tables for place in range(len(tables[table]["rows"]))}
    in_the_text = {("text_only_results", place) for place in range(3)}
    assert set(recipes_of_rows()) == wanted | in_the_text
    for recipe in recipes_of_rows().values():
        assert load_recipe(f"{network_of(recipe)}-dense").dense


def test_rows_are_what_the_paper_printed() -> None:
    auto = rows_of("table1")[7]
    assert (auto.label, auto.base, auto.accuracy, auto.drop) == ("AutoSparse", 77.01, 76.77, 0.31)
    assert (auto.sparsity, auto.train_fraction, auto.test_fraction) == (79.67, 0.51, 0.14)
    translated = rows_of("table4")[1]
    assert (translated.base, translated.accuracy) == (27.83, 27.57)
    tuned = rows_of("table5")[2]
    assert (tuned.label, tuned.setting, tuned.train_fraction) == ("MobileNetV1", "eps = 0.01, 0.05, 0.005", 0.67)


@pytest.mark.parametrize("scale", [Small(), Full()], ids=["cpu", "full"])
def test_runs_of_one_name_are_one_run_and_every_recipe_is_sound(scale: Scale) -> None:
    found: dict[str, Cell] = {}
    for item in making.ITEMS:
        for cell in making.cells_of(item, scale):
            assert found.setdefault(cell.name, cell) == cell
            assert not cell.recipe.train.dense_beside
    assert len({cell.recipe.model_dump_json(exclude={"name", "description"}) for cell in found.values()}) == len(found)


def test_full_rows_are_the_papers_recipes() -> None:
    for item in TABLES:
        for number, _ in enumerate(rows_of(item)):
            made, meant = row(item, number, Full()).recipe, recipe_of(TABLES[item][0], number)
            ignored = {"name", "description", "paper"}
            assert made.model_dump(exclude=ignored) == meant.model_dump(exclude=ignored)


def test_settings_reach_full_recipes_and_only_translation_at_cpu_scale() -> None:
    folder = ["data.path=images", "data.source=folder"]
    assert row("table1", 7, Full(folder)).recipe.data.path == "images"
    assert Full(folder).base("resnet50")[0].recipe.data.path == "images"
    assert row("table1", 7, Small(["data.path=here"])).recipe.data.path is None
    assert row("table4", 0, Small(["data.path=here"])).recipe.data.path == "here"
    assert row("table4", 0, Small(["train.epochs=11"])).recipe.train.epochs == 11


def test_a_small_row_keeps_alpha_and_its_share_of_the_run() -> None:
    auto = row("table1", 13, Small()).recipe  # alpha 0.9, 0 from epoch 45 of 100
    fields = {"alpha_per": "epoch", "alpha": 0.9, "zero_epoch": round(0.45 * 30), "target_sparsity": 0.8994}
    assert auto.method == {"name": "autosparse", **fields}
    assert auto.optimizer.threshold_decay_total is None
    assert auto.model.arguments["width"] == 8
    assert row("table3", 0, Small()).recipe.model.arguments["width"] == 4


def test_alpha_of_small_translation_decays_over_the_same_share_of_the_run() -> None:
    small, full = (row("table4", 1, scale).recipe for scale in (Small(), Full()))
    share = small.train.epochs / full.train.epochs
    assert small.train.epochs == 8  # as many as the recipe's own run, which learns to translate
    assert small.method["beta"] == pytest.approx(full.method["beta"] / share)
    assert small.method["zero_epoch"] == round(full.method["zero_epoch"] * share)


def test_small_rows_of_other_methods() -> None:
    mest = row("table1", 4, Small()).recipe  # 250 epochs against a dense run of 100
    assert (mest.train.epochs, mest.sparsify.baseline_epochs) == (75, 30)
    assert mest.method["update_epochs"] == 2
    rigl = row("table1", 0, Small()).recipe
    assert rigl.method["update_every"] == 30 * 13 // 30
    topkast = row("table2", 1, Small()).recipe
    assert (topkast.method["backward_sparsity"], topkast.optimizer.weight_decay) == (0.5, 1e-4)
    tuned = row("table5", 1, Small()).recipe
    assert tuned.method["autotune"]["down"] == 0.01
    assert tuned.method["autotune"]["epochs"] == round(0.09 * 30)
    assert row("table5", 1, Small()) == row("table5", 1, Small())  # the paper's recipe is not shortened in place
    assert "target_sparsity" not in tuned.method
    assert tuned.optimizer.threshold_decay_total == 1.0


@pytest.mark.parametrize(("item", "place", "decay"), [("table1", 6, 2.0), ("table1", 14, 2.7), ("table3", 0, 2.05)])
def test_str_stands_in_small_tables_as_published_and_with_our_ramp(item: str, place: int, decay: float) -> None:
    paper = rows_of(item)[place]
    published, ramped = Small().row(paper)[0].recipe, Small().ramped(paper)[0].recipe
    assert published.method == {"name": "str", "s_init": -20.0}
    assert published.optimizer.threshold_decay_total == decay
    assert (published.sparsify.guard, published.sparsify.density_floor) == ("warn", 0.0)
    assert ramped.method == {"name": "str", "target_sparsity": paper.sparsity / 100}
    assert (ramped.optimizer.threshold_decay_total, ramped.sparsify.guard) == (None, "hold")


def test_only_str_at_cpu_scale_has_a_second_row() -> None:
    for item in TABLES:
        for paper in rows_of(item):
            expected = 3 if paper.label == "STR" and item != "table4" else 0
            assert len(Small().ramped(paper)) == expected
            assert Full().ramped(paper) == ()


def test_figure_three_has_the_papers_decays() -> None:
    small, full = (FIGURES["fig3"].runs(scale) for scale in (Small(), Full()))
    assert small["STR"].recipe.optimizer.threshold_decay_total == 16.0
    assert small["STR 80"].recipe.optimizer.threshold_decay_total == pytest.approx(16 * 1.7e-5 / PAPER_DECAY)
    assert small["STR"].recipe.sparsify.density_floor == 0.0
    assert full["STR 80"].recipe.optimizer.weight_decay == 1.7e-5
    for cell in (*small.values(), *full.values()):
        assert cell.recipe.method["s_init"] == -5.0
        assert "target_sparsity" not in cell.recipe.method


def test_only_thresholds_get_a_decay_of_their_own() -> None:
    runs = FIGURES["fig2"].runs(Small())
    assert runs["AutoSparse"].recipe.optimizer.threshold_decay_total == 1.0
    assert runs["OptG"].recipe.optimizer.threshold_decay_total is None


@pytest.mark.parametrize("scale", [Small(), Full()], ids=["cpu", "full"])
def test_figure_two_trains_optg_with_its_authors_settings(scale: Scale) -> None:
    optimizer = FIGURES["fig2"].runs(scale)["OptG"].recipe.optimizer
    assert (optimizer.lr, optimizer.momentum, optimizer.weight_decay) == (0.1, 0.9, 1e-4)


def test_figure_one_b_runs_every_decay() -> None:
    for scale in (Small(), Full()):
        runs = FIGURES["fig1b"].runs(scale)
        assert {cell.recipe.method["schedule"] for cell in runs.values()} == set(runs)
        assert all(cell.recipe.method["zero_epoch"] == "never" for cell in runs.values())


def test_at_full_scale_figures_share_the_rows_of_the_tables() -> None:
    scale = Full()
    rows = {cell.name for item in TABLES for cell in making.cells_of(item, scale)}
    for item in ("fig1a", "fig4", "fig5", "fig6"):
        assert {cell.name for cell in making.cells_of(item, scale)} <= rows
    assert FIGURES["fig2"].runs(scale)["AutoSparse"].name in rows


def test_missing_data_is_told() -> None:
    cells = making.cells_of("table4", Small(["data.path=nowhere"]))
    told = making.missing_data(cells) or ""
    assert "there is no nowhere" in told
    assert "train.en" in told
    assert making.missing_data(making.cells_of("table1", Small())) is None
