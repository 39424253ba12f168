"""Stands in for `autosparse train` where a test is about processes or drawings: RECIPE RUN [--resume], done in milliseconds.

The recipe's description says what happens: `fail`, `wait` (until a signal comes, then it saves), anything else ends well.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import yaml

from autosparse.training.signals import stop_with_parent

LAYERS = ("conv1", "conv2", "fc")
EPOCHS = 4


def save(*_: object) -> None:
    (run / "saved").write_text("yes")
    print("stopped and saved", file=sys.stderr)
    raise SystemExit(143)


def write_results(run: Path, recipe: dict, resumed: bool) -> None:
    """The files of a finished run, made of round numbers."""
    dense = recipe["method"]["name"] == "dense"
    info = {"format": "autosparse run", "version": 1, "status": "done", "name": recipe["name"], "seed": recipe["seed"]}
    (run / "run.json").write_text(json.dumps({**info, "method": recipe["method"]["name"]}))
    lines = []
    for epoch in range(1, EPOCHS + 1):
        share = epoch / EPOCHS
        line = {"epoch": epoch, "loss": 1 - 0.5 * share, "accuracy": 0.9 * share, "seconds": share}
        if not dense:
            line |= {"alpha": 0.75 * (1 - share), "sparsity": 0.8 * share, "densities": [1 - 0.8 * share] * len(LAYERS)}
        lines.append(json.dumps(line))
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    layer = {"kind": "Conv2d", "weights": 100, "zeros": 80, "sparsity": 0.8, "threshold": 0.1, "macs": 1000}
    facts = {"accuracy": 0.9, "sparsity": 0.0 if dense else 0.8, "seconds": 1.0, "train_fraction": 0.5, "test_fraction": 0.5}
    facts |= {"layers": [] if dense else [{"name": name, **layer} for name in LAYERS], "macs": dict.fromkeys(LAYERS, 1000)}
    (run / "result.json").write_text(json.dumps({**facts, "resumed": resumed, "threads": recipe["train"]["threads"]}))


recipe_file, run = Path(sys.argv[1]), Path(sys.argv[2])
recipe = yaml.safe_load(recipe_file.read_text())
resumed = "--resume" in sys.argv
run.mkdir(parents=True, exist_ok=True)
(run / "recipe.yaml").write_text(recipe_file.read_text())
signal.signal(signal.SIGTERM, save)
stop_with_parent()
(run / "begun").write_text(os.environ["OMP_NUM_THREADS"])
if recipe["description"] == "fail" and not resumed:
    print("error: the loss is nan", file=sys.stderr)
    raise SystemExit(2)
if recipe["description"] == "wait" and not resumed:
    time.sleep(60)
write_results(run, recipe, resumed)
