"""Per-layer scalars for a tracker after every epoch: TensorBoard, Weights & Biases, MLflow, trackio, or a function."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from autosparse.common.ranks import leads
from autosparse.common.warnings import warn
from autosparse.sparsifier import Sparsifier

Write = Callable[[dict[str, float], int], object]
PREFIX = "autosparse"


def track(sp: Sparsifier, tracker: Any, *, layers: bool = True) -> None:
    """Send the scalars of every epoch to a tracker, from the first process alone.

    `tracker` is a SummaryWriter, the module `wandb`, `mlflow` or `trackio`, a run of theirs, a Lightning logger, or a function
    of the scalars and the step. A tracker that fails is left out from then on, with a warning: it does not end the run.
    """
    write = writer_of(tracker)

    def listen(sp: Sparsifier) -> None:
        if not leads():
            return
        try:
            write(scalars(sp, layers=layers), sp.step)
        except Exception as error:  # whatever a tracker's network or disk raises
            sp.listeners.remove(listen)
            warn(f"the tracker failed and gets nothing more of this run: {type(error).__name__}: {error}")

    sp.listeners.append(listen)


def scalars(sp: Sparsifier, *, layers: bool = True) -> dict[str, float]:
    """The numbers of the last epoch by name, those of layers below `autosparse/layers/NAME`."""
    past = sp.history[-1]
    names = ("sparsity", "alpha", "loss", "train_fraction", "test_fraction")
    found = {"epoch": past["epoch"], "step": past["step"], **{name: past.get(name) for name in names}}
    if layers:
        for layer, density, threshold in zip(sp.layers, past["densities"], past["thresholds"], strict=True):
            # trackers allow fewer characters than module names can have
            name = re.sub(r"[^\w./ -]", "_", layer.name)
            found |= {f"layers/{name}/sparsity": 1 - density, f"layers/{name}/threshold": threshold}
    return {f"{PREFIX}/{name}": float(value) for name, value in found.items() if value is not None}


def writer_of(tracker: Any) -> Write:
    """How this tracker takes scalars."""
    if hasattr(tracker, "add_scalar"):  # TensorBoard

        def write(values: dict[str, float], step: int) -> None:
            for name, value in values.items():
                tracker.add_scalar(name, value, step)

        return write
    if hasattr(tracker, "log_metrics"):  # MLflow, and the loggers of Lightning
        return lambda values, step: tracker.log_metrics(values, step=step)
    if hasattr(tracker, "log"):  # Weights & Biases and trackio count their own steps: ours are among the values
        return lambda values, _: tracker.log(values)
    if callable(tracker):
        return lambda values, step: tracker(values, step)
    raise TypeError(
        f"{tracker!r} is no tracker: give a SummaryWriter, wandb, mlflow, trackio, a Lightning logger, or a function of a "
        "dictionary and a step"
    )
