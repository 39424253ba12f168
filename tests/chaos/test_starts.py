"""Several processes start on one folder at the same moment: one works, the others are told so, and nothing is mixed."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .killing import Nursery, Place
from .tally import scaled, tally
from .test_kills_others import contents

AT_ONCE, STARTS, EXPORTS = 4, 8, 6
REFUSALS = ("is in use by", "exists already", "is complete already", "nothing to resume")


def all_at_once(nurseries: list[Nursery], folder: Path, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    with ThreadPoolExecutor(len(nurseries)) as pool:
        return list(pool.map(lambda nursery: nursery.run(arguments, folder, {}, {}), nurseries))


def one_worked(done: list[subprocess.CompletedProcess[str]]) -> str | None:
    """Those that did not work were refused in a sentence."""
    failed = [each for each in done if each.returncode != 0]
    strange = [each.stderr for each in failed if not any(words in each.stderr for words in REFUSALS)]
    if strange:
        return f"a start failed otherwise: {strange[0][-1500:]}"
    return "none of the starts worked" if len(failed) == len(done) else None


def test_starts_and_resumes(tmp_path: Path) -> None:
    with tally("concurrent starts and resumes") as counted, Place(tmp_path) as place:
        nurseries = [Nursery() for _ in range(AT_ONCE)]
        assert place.fork("train", "target.yaml", "--no-report", "--out", "unbroken").returncode == 0
        for number in range(scaled(STARTS)):
            out = f"started-{number}"
            begun = all_at_once(nurseries, tmp_path, "train", "target.yaml", "--no-report", "--out", out)
            problem = one_worked(begun) or place.difference("unbroken", out)
            if problem is None and sum(each.returncode == 0 for each in begun) != 1:
                problem = "more than one start worked"
            counted.count(problem)
            resumed = all_at_once(nurseries, tmp_path, "train", "--resume", "--no-report", "--out", out)
            counted.count(one_worked(resumed) or place.difference("unbroken", out))
        for nursery in nurseries:
            nursery.close()


def test_reports_and_exports(tmp_path: Path) -> None:
    with tally("concurrent reports and exports") as counted, Place(tmp_path) as place:
        nurseries = [Nursery() for _ in range(AT_ONCE)]
        assert place.fork("train", "target.yaml", "--no-report", "--out", "run", "--set", "train.epochs=1").returncode == 0
        assert place.fork("export", "run", "--format", "hub", "--out", "hub").returncode == 0
        assert place.fork("report", "run", "--out", "report").returncode == 0
        for number in range(scaled(EXPORTS)):
            for verb, options in (("export", ("--format", "hub", "--force")), ("report", ())):
                out = f"{verb}-{number}"
                done = all_at_once(nurseries, tmp_path, verb, "run", *options, "--out", out)
                whole = contents(tmp_path / {"export": "hub"}.get(verb, verb)).keys()
                problem = next((each.stderr[-1500:] for each in done if each.returncode != 0), None)
                if problem is None and contents(tmp_path / out).keys() != whole:
                    problem = f"{out} holds {sorted(contents(tmp_path / out))}"
                counted.count(problem)
        for nursery in nurseries:
            nursery.close()
