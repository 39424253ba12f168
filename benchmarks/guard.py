"""Runs that die without the guard, with and without it: accuracy, sparsity, layers with under 1 % left in each seed.

python benchmarks/guard.py --fashion-mnist DIR [--out results/guard.jsonl]; finished runs are skipped.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from small_runs import Log, Setting

SPLIT: dict[str, Any] = {"net": "transformer", "optimizer": "split"}
CASES: dict[str, dict[str, Any]] = {
    "conv, alpha 0.75, s0 = -3, D 8": {"fields": (("s_init", -3.0),), "total_decay": 8.0},
    "conv, alpha 0, s0 = -3, D 3.5": {"fields": (("alpha", 0.0), ("s_init", -3.0)), "total_decay": 3.5},
    "conv, alpha 0.75, s0 = -5, D 32 (weight escape)": {"fields": (("s_init", -5.0),), "total_decay": 32.0},
    "transformer, s0 = -5, D 5": {**SPLIT, "fields": (("s_init", -5.0),), "total_decay": 5.0},
    "transformer, start 0.3, D 5": {**SPLIT, "total_decay": 5.0},
    "transformer, start 0.5, D 5": {**SPLIT, "fields": (("start_sparsity", 0.5),), "total_decay": 5.0},
    "transformer, start 0.3, target 0.9": {**SPLIT, "fields": (("target_sparsity", 0.9),)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fashion-mnist", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/guard.jsonl"))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = Log(arguments.out, arguments.fashion_mnist)
    print("| case | without | guard, floor 1 % | guard, floor 5 % |")
    print("|---|---|---|---|")
    for name, case in CASES.items():
        cells = []
        for guard, floor in ((None, 0.01), ("hold", 0.01), ("hold", 0.05)):
            options = {"data": "fashion-mnist", "guard": guard, "floor": floor, **case}
            cells.append(describe([log.run(Setting(seed=seed, **options)) for seed in range(arguments.seeds)]))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def describe(rows: list[dict[str, Any]]) -> str:
    accuracy, sparsity = mean(row["accuracy"] for row in rows), mean(row["sparsity"] for row in rows)
    dead = [sum(value > 99.01 for value in row["layers"].values()) for row in rows]
    return f"{accuracy:.2f} % at {sparsity:.1f} % zeros, dead layers {'/'.join(map(str, dead))}"


if __name__ == "__main__":
    main()
