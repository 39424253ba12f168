"""`compare`, `report`, `export` and one rank of torchrun killed at every phase: the same command again ends as ever."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest

from autosparse import kernels

from .killing import KILLED, Kill, Place, choose, describe
from .tally import chance_of, scaled, tally

COMPARES, REPORTS, RANKS = 12, 8, 8
RUNS = 3  # of a comparison: one dense, two sparse
EXPORTS = {"safetensors": 3, "torch": 2, "hub": 4, "onnx": 2}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2")


def run_of_digits(place: Place, name: str = "run", recipe: str = "target") -> None:
    done = place.fork("train", f"{recipe}.yaml", "--no-report", "--out", name, "--set", "train.epochs=1")
    assert done.returncode == 0, done.stderr


def contents(folder: Path) -> dict[str, str]:
    """The files of a folder or the file, by their checksums; names that begin with a dot do not count."""
    files = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file() and not file.name.startswith(".")
    }


def test_report(tmp_path: Path) -> None:
    with tally("kills of report") as counted, Place(tmp_path) as place:
        run_of_digits(place)
        marks, chance = place.marks_of("report", "run", "--out", "whole"), chance_of("report")
        for number in range(scaled(REPORTS)):
            out = f"report-{number}"
            kill = choose(chance, marks, "report")
            killed = place.fork("report", "run", "--out", out, kill=at_once(kill, out, "whole"))
            again = place.fork("report", "run", "--out", out)
            counted.kills += 1
            same = again.returncode == 0 and contents(place.path / out).keys() == contents(place.path / "whole").keys()
            problem = None if killed.returncode == KILLED and same else "the report is not whole"
            counted.count(problem and describe(kill, again, problem))


def at_once(kill: Kill, out: str, unbroken: str) -> Kill:
    """The same moment of a command that writes elsewhere, without a delay that it might not live to see."""
    return Kill(kill.who, kill.label.replace(unbroken, out), kill.occurrence, 0.0, kill.rank)


def test_export(tmp_path: Path) -> None:
    with tally("kills of export") as counted, Place(tmp_path) as place:
        run_of_digits(place)
        for kind, trials in EXPORTS.items():
            export = ("export", "run", "--format", kind, "--out")
            marks, chance = place.marks_of(*export, f"{kind}-whole"), chance_of(f"export {kind}")
            for number in range(scaled(trials)):
                out = f"{kind}-{number}"
                kill = at_once(choose(chance, marks, "export"), out, f"{kind}-whole")
                killed = place.fork(*export, out, kill=kill)
                problem = None if killed.returncode == KILLED else "it was not killed"
                again = place.fork(*export, out, "--force")
                counted.kills += 1
                problem = problem or (None if again.returncode == 0 else "it cannot be exported again")
                if problem is None and kind != "onnx" and different(place.path, f"{kind}-whole", out):
                    problem = "the files differ"
                counted.count(problem and describe(kill, again, problem))


def different(folder: Path, whole: str, out: str) -> bool:
    """Whether two exports differ; a model card names its own folder, a torch file its own name."""
    ours, others = (
        {name: digest for name, digest in contents(folder / each).items() if name != "README.md"} for each in (whole, out)
    )
    return ours.keys() != others.keys() if whole.startswith("torch") else ours != others


def test_compare(tmp_path: Path) -> None:
    """Killed are the command itself, whose runs must end with it, and runs of it."""
    with tally("kills of compare") as counted, Place(tmp_path) as place:
        settings = (
            "--methods",
            "autosparse,rigl",
            "--sparsity",
            "0.8",
            "--seeds",
            "1",
            "--jobs",
            "2",
            "--set",
            "train.epochs=2",
        )
        compare = ("compare", "target.yaml", *settings, "--out")
        whole = place.marks_below(*compare, "whole", who="compare")
        runs = place.marks_below(*compare, "whole-again", who="train")
        chance = chance_of("compare")
        for number in range(scaled(COMPARES)):
            out = f"compare-{number}"
            who = chance.choice(["compare", "train"])
            kill = choose(chance, whole, who) if who == "compare" else choose(chance, runs, who, processes=RUNS)
            kill = at_once(kill, out, "whole-again" if who == "train" else "whole")
            first = place.run(*compare, out, kill=kill)
            counted.kills += place.was_killed()
            problem = None if place.was_killed() else "nobody was killed"
            problem = problem or finish_compare(place, compare, out)
            counted.count(problem and describe(kill, first, problem))


def finish_compare(place: Place, compare: tuple[str, ...], out: str) -> str | None:
    """The same command again, until runs that save as their parent died have ended; what went wrong, if anything."""
    again = place.run(*compare, out)
    if "is in use by" in again.stderr + again.stdout:
        time.sleep(5)
        again = place.run(*compare, out)
    if again.returncode != 0:
        return f"the comparison ended with {again.returncode}: {again.stdout[-500:]}{again.stderr[-1500:]}"
    runs = [folder.name for folder in sorted((place.path / "whole").iterdir()) if (folder / "result.json").exists()]
    problems = [place.difference(f"whole/{run}", f"{out}/{run}") for run in runs]
    assert len(runs) == RUNS, runs
    return next((problem for problem in problems if problem), None)


@pytest.mark.skipif(not kernels.available(), reason=f"no sparse kernels: {kernels.why_not()}")
def test_one_rank_of_torchrun(tmp_path: Path) -> None:
    """On the sparse kernels; torchrun starts the ranks again, which go on by themselves."""
    with tally("kills of one rank under torchrun") as counted, Place(tmp_path) as place:
        train = ("train", "sparse.yaml", "--no-report", "--set", "train.epochs=2", "--out")
        marks = {
            rank: place.marks_below(*train, f"whole{rank}", who="train", rank=rank, launcher=TORCHRUN) for rank in ("0", "1")
        }
        chance = chance_of("ranks")
        for number in range(scaled(RANKS)):
            rank, out = str(number % 2), f"ranks-{number}"
            kill = at_once(choose(chance, marks[rank], "train", rank), out, f"whole{rank}")
            done = place.run(*train, out, kill=kill, launcher=TORCHRUN)
            counted.kills += place.was_killed()
            counted.on_kernels += place.was_killed()
            problem = None if place.was_killed() else "nobody was killed"
            problem = problem or (None if done.returncode == 0 else f"torchrun ended with {done.returncode}")
            counted.count((problem := problem or place.difference("whole0", out)) and describe(kill, done, problem))
