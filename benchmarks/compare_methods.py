"""All methods on the digits of scikit-learn, in the same loop and for the same number of epochs; one table.

python benchmarks/compare_methods.py [--sparsity 0.9] [--seeds 3] [--epochs 30] [--methods rigl,set] [--log FILE.jsonl]

Methods with a budget get the sparsity; those that learn theirs get the fields of LEARNED, which land as near to 90 % as was
found. Methods that train in rounds share the epochs among their rounds. Finished runs are read from the log and not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from small_runs import BATCH, load
from torch.nn.functional import cross_entropy

import autosparse
from autosparse.experiments.methods import LEARNED

RATE, DECAY = 0.1, 1e-4
# Rounds after the first; all others train in one.
ROUNDS = {"prune_retrain": 1, "lottery": 2, "cs": 1}
# Updates once an epoch where the default counts hundreds of steps: a run here has 390.
UPDATES = {"rigl": "update_every", "dsr": "update_every", "gmp": "update_every"}


def fields_of(name: str, sparsity: float, steps: int) -> dict[str, Any]:
    """The method's fields in this comparison."""
    if name in LEARNED:
        return LEARNED[name]
    fields: dict[str, Any] = {"target_sparsity" if name in ("autosparse", "str") else "sparsity": sparsity}
    if name in ROUNDS:
        fields["rounds"] = ROUNDS[name]
    if name in UPDATES:
        fields[UPDATES[name]] = steps
    if name == "mest":
        fields["update_epochs"] = 1
    return fields


def train(name: str, sparsity: float, epochs: int, seed: int) -> dict[str, Any]:
    """One run; `dense` is the same loop without a method."""
    images, labels, test_images, test_labels = load("digits", None)
    steps = len(labels) // BATCH
    stages = 1 + ROUNDS.get(name, 0)
    length = epochs // stages
    torch.manual_seed(seed)
    model = autosparse.models.small_conv(width=16)
    began = time.process_time()  # unlike the clock on the wall it does not see what else the machine does
    run = None
    groups: Any = [{"params": list(model.parameters()), "weight_decay": DECAY}]
    if name != "dense":
        told = length * stages if name == "cs" else length  # cs counts the epochs of all rounds, the others those of one
        run = autosparse.sparsify(
            model, autosparse.method(name, **fields_of(name, sparsity, steps)), epochs=told, steps_per_epoch=steps,
            example_input=images[:1], seed=seed, baseline_epochs=length * stages,
        )  # fmt: skip
        # TopKAST's penalty takes the place of weight decay
        groups = run.param_groups(weight_decay=0.0 if name.startswith("topkast") else DECAY)
    optimizer = torch.optim.SGD(groups, lr=RATE, momentum=0.9)
    if run:
        if name in ("snip", "grasp", "synflow"):
            run.score([(images[:BATCH], labels[:BATCH])], lambda net, batch: cross_entropy(net(batch[0]), batch[1]))
        run.bind(optimizer)
    order = torch.Generator().manual_seed(seed)
    for stage in range(stages):
        if run and stage:
            run.next_round(optimizer)
        for epoch in range(length):
            model.train()
            total = 0.0
            for step, index in enumerate(torch.randperm(len(labels), generator=order).split(BATCH)[:steps]):
                progress = (epoch * steps + step) / (length * steps)
                for group in optimizer.param_groups:
                    group["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * progress))
                loss = cross_entropy(model(images[index]), labels[index], label_smoothing=0.1)
                loss = loss + run.penalty() if run else loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += float(loss.detach())
            if run:
                run.end_epoch(total / steps)
    seconds = time.process_time() - began
    found = {"sparsity": 0.0, "train_f": 1.0, "test_f": 1.0}
    if run:
        report = run.report()
        found = {"sparsity": 100 * report.sparsity, "train_f": report.train_fraction, "test_f": report.test_fraction}
        run.finalize()
    model.eval()
    with torch.no_grad():
        accuracy = 100 * float((model(test_images).argmax(1) == test_labels).float().mean())
    return {"accuracy": accuracy, **found, "seconds": seconds}


def runs(names: list[str], arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Results by method, from the log where they are there."""
    log = Path(arguments.log)
    lines = log.read_text().splitlines() if log.exists() else []
    done = {line["key"]: line for line in map(json.loads, lines)}
    found: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        for seed in range(arguments.seeds):
            fields = {} if name == "dense" else fields_of(name, arguments.sparsity, 0)
            key = json.dumps([name, fields, arguments.sparsity, arguments.epochs, seed], sort_keys=True)
            if key not in done:
                done[key] = {"key": key, **train(name, arguments.sparsity, arguments.epochs, seed)}
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("a") as file:
                    file.write(json.dumps(done[key]) + "\n")
                row = done[key]
                print(f"{name} seed {seed}: {row['accuracy']:.2f} % at {row['sparsity']:.2f} % zeros", file=sys.stderr)
            found.setdefault(name, []).append(done[key])
    return found


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "| method | accuracy % | sparsity % | Train F | Test F | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in results.items():
        column = {key: [row[key] for row in rows] for key in ("accuracy", "sparsity", "train_f", "test_f", "seconds")}
        spread = stdev(column["accuracy"]) if len(rows) > 1 else 0.0
        lines.append(
            f"| {name} | {mean(column['accuracy']):.2f} ± {spread:.2f} | {mean(column['sparsity']):.2f} "
            f"| {mean(column['train_f']):.3f} | {mean(column['test_f']):.3f} | {mean(column['seconds']):.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--methods", help="names with commas between; all by default")
    parser.add_argument("--log", default="runs/compare_methods.jsonl")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore", autosparse.SparsityWarning)
    names = arguments.methods.split(",") if arguments.methods else autosparse.list_methods()
    for name in names:
        autosparse.methods.describe(name)  # an unknown name is refused before anything is trained
    print(table(runs(["dense", *names], arguments)))


if __name__ == "__main__":
    main()
