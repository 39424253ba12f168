"""Runs the cells of the zoo that have no result yet: python -m tests.zoo [--library timm] [--member NAME] [--keep-old]"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from .member import LATER, LIBRARIES
from .plan import CellName, plan
from .results import ROOT, Results, code_fingerprint
from .workers import run_cells

WORKING = ROOT / "build" / "zoo" / "results.json"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("--library", choices=(*LIBRARIES, LATER), action="append", help="only members of this library")
    parser.add_argument("--member", action="append", help="only this member")
    parser.add_argument("--variant", action="append", help="only this variant")
    parser.add_argument("--keep-old", action="store_true", help="also skip cells that finished before autosparse was changed")
    parser.add_argument("--part", default="1/1", help="2/3: the second of three parts of these cells")
    parser.add_argument("--jobs", type=int, default=max(1, min(2, os.cpu_count() or 1)), help="cells at a time")
    parser.add_argument("--results", type=Path, default=WORKING)
    return parser.parse_args()


def main() -> int:
    options = parse()
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")  # for processes that cells start
    results, code = Results(options.results), code_fingerprint()
    cells = plan(options.library or LIBRARIES, options.member, options.variant)
    part, parts = map(int, options.part.split("/"))
    cells = cells[part - 1 :: parts]
    due = [cell for cell in cells if not results.is_finished(cell, None if options.keep_old else code)]
    print(f"{len(cells)} cells, {len(cells) - len(due)} finished before")
    begin, ended = time.monotonic(), 0

    def report(cell: CellName, record: dict[str, Any]) -> None:
        nonlocal ended
        ended += 1
        results.put({**record, "code": code})
        outcome = "green" if record["green"] else "; ".join(f"{name}: {why}" for name, why in record["failures"].items())
        print(f"[{ended}/{len(due)}, {time.monotonic() - begin:.0f} s] {cell}: {outcome[:300]}", flush=True)

    run_cells(due, options.jobs, report)
    red = [cell for cell in cells if not results.is_finished(cell, None)]
    print(f"{len(cells) - len(red)} of {len(cells)} cells are green")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
