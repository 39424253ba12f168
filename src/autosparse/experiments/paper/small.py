"""The paper's experiments on the embedded digits: same methods, alphas and sparsities, in runs of a few seconds."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from autosparse.common.words import counted
from autosparse.experiments.grid import Cell
from autosparse.experiments.method_fields import LEARNED, THRESHOLD_METHODS, interval
from autosparse.experiments.paper.facts import PaperRow, network_of, recipe_of
from autosparse.experiments.paper.scales import Changes, Scale, changed
from autosparse.recipes.loading import load_recipe
from autosparse.recipes.overrides import merged
from autosparse.recipes.recipe import Recipe

PAPER_EPOCHS = {"resnet50": 100, "mobilenet": 100, "wmt14": 44}
TRANSLATION_EPOCHS = 8  # of multi30k-transformer, whose BLEU is then above 35
BATCH, STEPS = 100, 13  # of the 1,347 training images
# Width of the small conv net: 18,248 and 4,660 weights.
WIDTHS = {"resnet50": 8, "mobilenet": 4}
# Total decay of the thresholds, in nats, over a run: the paper's, and one that ends near its 80 % on nets this small.
PAPER_DECAY, PAPER_TOTAL, FREE_TOTAL = 2.0**-15, 16.0, 1.0
# STR's s = -3200 needs a long run to come down; from here too it prunes nothing at first.
LATE_START = -20.0
# Total decay of STR's rows, by table and row. 2 nats end near 80 % in the wider net; the others are worked out from that and
# were not run: more zeros need a higher threshold, and the weights of the narrower net are larger.
LATE_DECAYS = {
    ("resnet50_main", 6): 2.0,
    ("resnet50_main", 11): 2.3,
    ("resnet50_main", 14): 2.7,
    ("mobilenetv1", 0): 2.05,
    ("mobilenetv1", 2): 2.3,
}
# DST has no target: penalties of its rows at 80 and 90 %.
DST_PENALTIES = {5: 5e-4, 10: 1.1e-3}


class Small(Scale):
    """`cpu` scale: small_conv on the digits for the image nets, a short multi30k-transformer for translation."""

    name = "cpu"
    seeds = 3
    free_suffix = "-free"

    def caption(self, networks: Sequence[str], seeds: int) -> str:
        nets = " and ".join(map(self.label, networks))
        if "wmt14" in networks:
            return f"cpu scale: Multi30k, {nets}, {self._net('wmt14')['train']['epochs']} epochs, {counted(seeds, 'seed')}"
        return f"cpu scale: digits, {nets}, {counted(seeds, 'seed')}"

    def label(self, network: str) -> str:
        if network == "wmt14":
            return "multi30k-transformer"
        return f"small_conv of width {WIDTHS[network]} (for {'ResNet-50' if network == 'resnet50' else 'MobileNetV1'})"

    def run_name(self, recipe: Recipe) -> str:
        network, _, rest = recipe.name.partition("-")
        return f"{'multi30k' if network == 'wmt14' else f'conv{WIDTHS[network]}'}-{rest}"

    def content(self, recipe: Recipe, sparsity: float | None) -> dict[str, Any]:
        network = network_of(recipe)
        content = self._net(network)
        epochs = round(content["train"]["epochs"] * recipe.train.epochs / PAPER_EPOCHS[network])
        block = small_method(recipe, sparsity, epochs, content["train"]["epochs"] / PAPER_EPOCHS[network])
        changes: dict[str, Any] = {
            "method": block,
            "sparsify": {"baseline_epochs": content["train"]["epochs"]},
            "train": {"epochs": epochs},
        }
        if block["name"] in THRESHOLD_METHODS and "target_sparsity" not in block:
            changes["optimizer"] = {"threshold_decay_total": FREE_TOTAL}
        content.pop("method")
        return merged(content, changes)

    def row(self, row: PaperRow) -> tuple[Cell, ...]:
        decay = LATE_DECAYS.get((row.table, row.place))
        if decay is None:
            return super().row(row)
        recipe = recipe_of(row.table, row.place)
        content = changed(self.content(recipe, None), {"method.s_init": LATE_START, **unprotected(decay)})
        return self._seeded(content, self.run_name(recipe))

    def ramped(self, row: PaperRow) -> tuple[Cell, ...]:
        if (row.table, row.place) not in LATE_DECAYS:
            return ()
        recipe = recipe_of(row.table, row.place)
        return self._seeded(self.content(recipe, row.sparsity / 100), f"{self.run_name(recipe)}-ramp")

    def decay(self, weight_decay: float) -> Changes:
        return unprotected(PAPER_TOTAL * weight_decay / PAPER_DECAY)

    def _net(self, network: str) -> dict[str, Any]:
        """The recipe that the paper's method is put into."""
        if network == "wmt14":
            settings = [f"train.epochs={TRANSLATION_EPOCHS}", *self.settings]
            return load_recipe("multi30k-transformer", settings).model_dump(mode="json")
        settings = [f"data.batch_size={BATCH}", f"model.arguments.width={WIDTHS[network]}"]
        return load_recipe("digits", settings).model_dump(mode="json")


def unprotected(total: float) -> Changes:
    """A decay of the thresholds, in nats over the run, with a guard that only warns, as in the paper."""
    return {"optimizer.threshold_decay_total": total, "sparsify.guard": "warn", "sparsify.density_floor": 0.0}


def small_method(recipe: Recipe, sparsity: float | None, epochs: int, shrink: float) -> dict[str, Any]:
    """The method of a paper recipe in a run shorter by the factor `shrink`; thresholds aim at the row's sparsity."""
    block = deepcopy(recipe.method)
    for holder in (block, *(value for value in block.values() if isinstance(value, dict))):
        for field in ("zero_epoch", "horizon"):
            if holder.get(field) is not None:
                holder[field] = max(1, round(holder[field] * shrink))
        if holder.get("schedule") == "exponential":  # its beta counts epochs
            holder["beta"] = holder.get("beta", 1.0) / shrink
    if "autotune" in block:
        block["autotune"]["epochs"] = max(1, round(block["autotune"]["epochs"] * shrink))
    if "update_every" in block:
        block["update_every"] = interval(block["update_every"], epochs * STEPS, STEPS)
    if "update_epochs" in block:
        block["update_epochs"] = interval(block["update_epochs"], epochs)
    if block["name"] in THRESHOLD_METHODS and sparsity is not None and "autotune" not in block:
        block.pop("s_init", None)
        block["target_sparsity"] = sparsity
    if block["name"] in LEARNED:
        assert recipe.paper is not None
        block |= {"penalty_weight": DST_PENALTIES[recipe.paper.row]}
    return block
