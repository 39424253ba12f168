"""Writes docs/zoo.md and docs/zoo.json from the results of `make zoo`: python docs/make_zoo_table.py [RESULTS.json ...]"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE, DATA = ROOT / "docs" / "zoo.md", ROOT / "docs" / "zoo.json"
WORKING, TIMES = ROOT / "build" / "zoo" / "results.json", ROOT / "build" / "zoo" / "times.json"
FIRST, SECOND = "float32 SGD", "bfloat16 AdamW"
VARIANTS = (FIRST, SECOND, "float32 AdamW", "bfloat16 SGD", "compiled", "two processes")
LATER = "later"
KEPT = ("member", "library", "family", "variant", "green", "remarks", "failures", "seconds", "weights", "losses", "sparsity",
        "passes", "fused", "graphs", "first")  # fmt: skip

HEAD = """# The zoo: networks that nobody here wrote

`make zoo` trains {members} networks of timm, transformers, diffusers and torch, and small ones in shapes that people write by
hand, {cells} cells in all. A cell is a network with a precision and an optimizer. In 60 steps on one batch it must

- reach `target_sparsity=0.8` within half a point, with a loss below the first one,
- resume from a checkpoint in the middle of the ramp bit for bit,
- have the gradients of dense compute within rounding: as the planner runs it, and with every kernel that fits and everything
  fused that can be,
- finalize to the user's class with the user's keys, and compute the same,
- give the same outputs after `deploy`, which says in a sentence what stays in torch,
- export to ONNX where torch can, with the same outputs in onnxruntime (in the first cell of each network).

"Within rounding" means: at most twice as far as torch's own gradients move when all weights move by one millionth, or, under
autocast, as they are from float32. Networks are built from configurations with fewer blocks or smaller images than published;
nothing is downloaded. Finished cells are kept in `build/zoo/results.json` and skipped until `src` changes. The numbers in
cells are seconds of processor time, in a process with one thread: about {minutes} minutes for all cells on two cores.
{finished} of the {cells} cells have run for this page; `-` marks those that have not. `docs/make_zoo_table.py` writes it from
`docs/zoo.json`.

timm imports torchvision, which does not import on every build of torch. Its networks need nothing of it, so the tests
stand in for it while timm is imported (`tests/zoo/torchvision_stand_in.py`).

"kernels" says how many passes ran on sparse kernels and how many batch norms were fused at the end of the float32 cell, as
chosen by measuring under `"auto"`: {running} of {convolutional} convolutional members ran both. Under autocast and in small
layers torch is faster and keeps them.

## Results
"""
TIMES_HEAD = """
## Time and memory
`make zoo-times` trains networks at their published sizes, with SGD and a batch for which plain torch's step takes at least
200 ms, and compares steps in turn: during the ramp ({ramp:.0%} zeros, alpha above 0) and at the target ({target:.0%}, alpha 0).
Below 1 is faster than plain torch in the same precision; **bold** is above the 1.05 that is asked for. Memory is the peak of
torch's tensors from the making of the network to its third step; what comes on top is given in copies of the sparsified
weights: one is allowed. Networks whose batch norms are fused need more in one step of a run, in which the first fused step
is compared with torch's own on copies of the weights. GPT-2's layers (transformers' Conv1D) have no sparse training kernel.
One thread, in processor time; `python -m tests.zoo.times --precision bfloat16` gives the rows under autocast. Measured on
{processor}.

| network | plain step, ms | ramp | target | plain MB | ramp, copies | target, copies | plain call, ms | deployed |
|---|---|---|---|---|---|---|---|---|
"""
COLOUR = re.compile(r"\x1b\[[\d;]*m")  # of terminals, in messages of torch
MOST, WHEN = 1.05, ("in the ramp", "at the target")
LATER_HEAD = """
## Chosen last
Twice, when everything else was done, five networks that had not been used before were chosen and run. What failed then is
the first result, as it was.

"""


def page(results: dict[str, Any]) -> str:
    """The whole page; the same results give the same page."""
    records = results["records"]
    regular = [record for record in records if record["library"] != LATER]
    planned = [tuple(cell) for cell in results["planned"]]
    parts = [
        _head(regular, planned),
        _table(regular, planned),
        _remarks("What stays in torch after deploy", regular, "deploys"),
    ]
    parts += [_remarks("What torch does not export", regular, "exports"), _failures(regular), _later(records)]
    parts += [_times(results.get("times", {}))]
    return "".join(parts)


def _head(records: list[dict[str, Any]], planned: list[tuple[str, ...]]) -> str:
    firsts = [record for record in records if record["variant"] == FIRST and record["family"] == "convolution"]
    return HEAD.format(
        members=len({name for _, name, _ in planned}),
        cells=len(planned),
        finished=len(records),
        minutes=round(sum(record.get("seconds", 0) for record in records) / max(1, len(records)) * len(planned) / 60 / 2),
        running=sum(1 for record in firsts if record.get("passes") and record.get("fused")),
        convolutional=len(firsts),
    )


def _table(records: list[dict[str, Any]], planned: list[tuple[str, ...]]) -> str:
    headings = ["network", "from", "weights", *VARIANTS, "kernels", "deploys", "ONNX"]
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    by_cell = {(record["library"], record["member"], record["variant"]): record for record in records}
    for library, name in dict.fromkeys(cell[:2] for cell in planned):
        cells = [(library, name, variant) for variant in VARIANTS]
        outcomes = [_outcome(by_cell.get(cell), cell in planned) for cell in cells]
        first = by_cell.get((library, name, FIRST))
        facts = ["-"] * 4 if first is None else _facts(first)
        lines.append("| " + " | ".join([name, library, facts[0], *outcomes, *facts[1:]]) + " |")
    return "\n".join(lines) + "\n"


def _facts(first: dict[str, Any]) -> list[str]:
    return [f"{first.get('weights', 0):,}", _kernels(first), _deploys(first), _exports(first)]


def _outcome(record: dict[str, Any] | None, is_planned: bool) -> str:
    if record is None:
        return "-" if is_planned else ""
    return f"yes, {record['seconds']:.0f} s" if record["green"] else "**no**"


def _kernels(record: dict[str, Any]) -> str:
    passes, fused = record.get("passes", 0), record.get("fused", 0)
    return ", ".join([f"{passes} passes"] * bool(passes) + [f"{fused} fused"] * bool(fused)) or "dense"


def _deploys(record: dict[str, Any]) -> str:
    if "deploys" in record["failures"]:
        return "**no**"
    return "yes, in part" if "deploys" in record["remarks"] else "yes"


def _exports(record: dict[str, Any]) -> str:
    if "exports" in record["failures"]:
        return "**no**"
    return "torch does not" if "exports" in record["remarks"] else "yes"


def _remarks(title: str, records: Iterable[dict[str, Any]], check: str) -> str:
    remarked = [record for record in records if record["variant"] == FIRST and check in record["remarks"]]
    lines = [f"- {record['member']}: {_plain(record['remarks'][check])}\n" for record in remarked]
    return "".join([f"\n## {title}\n", *lines]) if lines else ""


def _failures(records: Iterable[dict[str, Any]]) -> str:
    lines = [
        f"- {record['member']}, {record['variant']}: {check}: {_plain(why)}\n"
        for record in records
        for check, why in record["failures"].items()
    ]
    return "".join(["\n## What fails\n", *lines]) if lines else ""


def _later(records: Iterable[dict[str, Any]]) -> str:
    later = [record for record in records if record["library"] == LATER]
    if not later:
        return ""
    lines = [LATER_HEAD, "| network | cell | first result | now |\n|---|---|---|---|\n"]
    for record in later:
        first, now = _result(record.get("first", record["failures"])), _result(record["failures"])
        lines.append(f"| {record['member']} | {record['variant']} | {first} | {now} |\n")
    return "".join(lines)


def _result(failures: dict[str, str]) -> str:
    return "; ".join(f"{check}: {_plain(why)}" for check, why in failures.items()) or "all checks passed"


def _times(measured: dict[str, Any]) -> str:
    rows = measured.get("networks", {})
    if not rows:
        return ""
    head = TIMES_HEAD.format(**{name: measured[name] for name in ("ramp", "target", "processor")})
    return head + "".join(_time_row(name, times) for name, times in rows.items())


def _time_row(name: str, times: dict[str, Any]) -> str:
    steps = [times[f"step {when}"] / times["plain step"] for when in WHEN]
    more = [(times[f"bytes {when}"] - times["plain bytes"]) / (4 * times["weights"]) for when in WHEN]
    cells = [name, f"{times['plain step']:.0f}", *[f"**{step:.2f}**" if step > MOST else f"{step:.2f}" for step in steps]]
    cells += [f"{times['plain bytes'] / 2**20:.0f}", *[f"{copies:.2f}" for copies in more]]
    calls = ["", ""]
    if "plain call" in times:
        calls = [f"{times['plain call']:.1f}", f"{times['deployed call'] / times['plain call']:.2f}"]
    return "| " + " | ".join([*cells, *calls]) + " |\n"


def _plain(text: str, most: int = 300) -> str:
    """One line that Markdown leaves alone."""
    line = " ".join(COLOUR.sub("", text).split()).replace("|", "/").replace("<", "&lt;").replace("_", r"\_").replace("*", r"\*")
    return line if len(line) <= most else line[:most].rsplit(" ", 1)[0] + " ..."


def gather(paths: Iterable[Path]) -> dict[str, Any]:
    """The plan, and what is known of its cells; needs the libraries of the members."""
    sys.path.insert(0, str(ROOT))
    from tests.zoo.member import LIBRARIES
    from tests.zoo.plan import plan

    planned, shown = plan(LIBRARIES), json.loads(DATA.read_text(encoding="utf-8"))
    records = [record for record in shown["records"] if record["library"] == LATER]  # they are run once
    records += [record for path in paths for record in json.loads(path.read_text(encoding="utf-8"))]
    known = {}
    for record in records:
        known[record["library"], record["member"], record["variant"]] = {name: record[name] for name in KEPT if name in record}
    later = [record for record in known.values() if record["library"] == LATER]
    times = json.loads(TIMES.read_text(encoding="utf-8")) if TIMES.exists() else shown.get("times", {})
    return {"planned": planned, "records": [known[cell] for cell in planned if cell in known] + later, "times": times}


def main(paths: list[Path]) -> None:
    results = gather(paths)
    DATA.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or [WORKING])
