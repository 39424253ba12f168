"""`autosparse train` as a newcomer meets it."""

import subprocess
import sys
from pathlib import Path

from autosparse.cli.train import speed_lines


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
    assert max(map(len, done.stdout.splitlines())) <= 80  # of a terminal
    assert (tmp_path / "runs" / "digits" / "report" / "report.html").exists()


def test_the_summary_says_whether_zeros_saved_time_and_where() -> None:
    layers = [{"name": f"conv{number}", "computed": "skips zeros: all passes"} for number in range(7)]
    layers.append({"name": "fc", "computed": "dense: too small: 1 million multiply-adds"})
    speed = {"milliseconds": 10.0, "dense_milliseconds": 15.0, "skipping": 7, "layers": 8, "reasons": {"too small": 1}}
    text = "\n".join(speed_lines({"speed": speed, "layers": layers}))
    assert "1.50x    10 ms per step at the end, dense training about 15 ms" in text
    assert "7 of 8 layers skip zeros: conv0, conv1, conv2, conv3, conv4 ..." in text
    assert "dense: 1 too small" in text
    slower = {**speed, "dense_milliseconds": 8.0}
    assert "0.80x" in speed_lines({"speed": slower, "layers": layers})[0]
    assert "dense would have been faster" in speed_lines({"speed": slower, "layers": layers})[0]
    gain = {"seconds": 60.0, "dense_seconds": 48.0, "ratio": 0.8, "dense": "estimated"}
    whole = speed_lines({"speed": speed, "layers": layers, "gain": gain})[0]
    assert "whole run       0.80x    60 s, a dense run of as many steps 48 s" in whole
    assert "sparse was slower" in whole
    assert speed_lines({"speed": None, "layers": layers}) == []


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
