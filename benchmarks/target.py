"""Does target_sparsity land where it says, and at what accuracy? Every run against uncontrolled runs of the same sparsity.

python benchmarks/target.py --fashion-mnist DIR [--out results/target.jsonl] [--data digits] [--nets conv];
finished runs are skipped.
"""

from __future__ import annotations

import argparse
import math
from itertools import pairwise, product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from small_runs import Log, Setting

TARGETS = (0.7, 0.8, 0.9, 0.95)
DECAYS = {"digits": (0.4, 1.0, 2.0, 6.0, 16.0), "fashion-mnist": (1.0, 3.0, 10.0)}
SEEDS = (0, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fashion-mnist", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/target.jsonl"))
    parser.add_argument("--data", nargs="+", default=list(DECAYS), choices=list(DECAYS))
    parser.add_argument("--nets", nargs="+", default=["conv", "transformer"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = Log(arguments.out, arguments.fashion_mnist)
    print("| data | net | optimizer | dense | target | reached (worst of 3) | accuracy | uncontrolled there | difference |")
    print("|---|---|---|---|---|---|---|---|---|")
    worst = 0.0
    for data, net, optimizer in product(arguments.data, arguments.nets, ("sgd", "adamw")):
        base: dict[str, Any] = {"data": data, "net": net, "optimizer": optimizer}
        dense = [log.run(Setting(**base, seed=seed, method="dense"))["accuracy"] for seed in SEEDS]
        free = [[log.run(Setting(**base, seed=seed, total_decay=total)) for seed in SEEDS] for total in DECAYS[data]]
        for target in TARGETS:
            fields = (("target_sparsity", target),)
            rows = [log.run(Setting(**base, seed=seed, fields=fields)) for seed in SEEDS]
            miss = max(abs(row["sparsity"] - 100 * target) for row in rows)
            worst = max(worst, miss)
            ours = [row["accuracy"] for row in rows]
            there, note = at_sparsity(free, 100 * target)
            print(
                f"| {data} | {net} | {optimizer} | {mean(dense):.2f} | {100 * target:.0f} | {miss:.3f} points | "
                f"{mean(ours):.2f} +- {stdev(ours):.2f} | {there:.2f}{note} | {mean(ours) - there:+.2f} |"
            )
    print(f"\nworst distance from a target: {worst:.3f} points")


def at_sparsity(free: list[list[dict[str, Any]]], sparsity: float) -> tuple[float, str]:
    """Accuracy of the uncontrolled runs at a sparsity: interpolated in log density, the nearest one outside their range."""
    points = sorted((mean(r["sparsity"] for r in runs), mean(r["accuracy"] for r in runs)) for runs in free)
    if sparsity <= points[0][0]:
        return points[0][1], f" (at {points[0][0]:.0f})"
    for (low, low_accuracy), (high, high_accuracy) in pairwise(points):
        if low <= sparsity <= high:
            part = math.log((100 - low) / (100 - sparsity)) / max(1e-9, math.log((100 - low) / max(1e-9, 100 - high)))
            return low_accuracy + part * (high_accuracy - low_accuracy), ""
    return points[-1][1], f" (at {points[-1][0]:.0f})"


if __name__ == "__main__":
    main()
