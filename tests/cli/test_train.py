"""`autosparse train` as a newcomer meets it."""

import subprocess
import sys
from pathlib import Path


def autosparse(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autosparse", *arguments], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_default_in_short(tmp_path: Path) -> None:
    done = autosparse(tmp_path, "train", "--set", "train.epochs=3", "--set", "data.limit=256")
    assert done.returncode == 0, done.stderr
    for word in (
        "accuracy",
        "dense run of the same length",
        "sparsity",
        "Train F",
        "Test F",
        "model.safetensors",
        "report.html",
    ):
        assert word in done.stdout
    assert "digits-autotune" in done.stdout
    assert (tmp_path / "runs" / "digits" / "report" / "report.html").exists()


def test_mistakes_are_one_line_with_code_2(tmp_path: Path) -> None:
    done = autosparse(tmp_path, "train", "digit")
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no recipe 'digit'; did you mean 'digits'")
    done = autosparse(tmp_path, "train", "--set", "train.epoch=3")
    assert done.returncode == 2
    assert "did you mean" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_failed_run_has_code_1_and_says_what_to_try(tmp_path: Path) -> None:
    done = autosparse(tmp_path, "train", "--set", "optimizer.lr=1e30", "--set", "train.dense_beside=false", "--out", "r")
    assert done.returncode == 1
    assert "Try a lower optimizer.lr" in done.stderr
    assert "Traceback" not in done.stderr
