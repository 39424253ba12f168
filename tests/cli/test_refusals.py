"""What the command refuses before it does any work, in sentences that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosparse import cli
from autosparse.recipes.loading import load_recipe
from autosparse.training.run import train

SMALL = ["train.epochs=1", "train.dense_beside=false", "train.threads=1", "data.limit=128", "data.limit_test=64"]
WRONG = ["model.arguments.classes=4"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusals") / "run"
    train(load_recipe("digits", SMALL), folder, quiet=True)
    return folder


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line that the command prints; a traceback would be an error that is no SystemExit."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(arguments))
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_a_split_that_does_not_exist(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, "eval", str(run_folder), "--split", "foo")
    assert line.startswith("error: --split foo: the digits have one held-out split; give test or validation")
    with pytest.raises(SystemExit) as stopped:
        cli.main(["eval", str(run_folder), "--split", "validation"])
    assert stopped.value.code == 0


def test_a_net_with_fewer_classes_than_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("autosparse", "dense"):
        changes = [part for setting in [*SMALL, *WRONG, f"method.name={method}"] for part in ("--set", setting)]
        line = refusal(capsys, "train", "digits", *changes, "--out", str(tmp_path / method))
        assert "model small_conv gives 4 scores, but data.classes = 10" in line
        assert not (tmp_path / method / "checkpoints").exists()


def test_a_run_whose_data_has_more_classes_now(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = run_folder / "recipe.yaml"
    text = recipe.read_text()
    recipe.write_text(text.replace("classes: 10\n  augment", "classes: 12\n  augment"))
    try:
        assert "gives 10 scores, but data.classes = 12" in refusal(capsys, "eval", str(run_folder))
    finally:
        recipe.write_text(text)


@pytest.mark.parametrize(
    "command",
    [
        ["train", "digits"],
        ["compare", "digits", "--seeds", "1"],
        ["paper", "table1"],
        ["export", "RUN"],
        ["export", "RUN", "--format", "hub"],
        ["report", "RUN"],
        ["bench", "train", "small_conv"],
        ["bench", "infer", "RUN"],
    ],
)
def test_a_place_where_nothing_can_be_written(
    command: list[str], run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "x"  # below a file: not even root can write there
    words = [str(run_folder) if word == "RUN" else word for word in command]
    line = refusal(capsys, *words, "--out", str(place))
    assert line.startswith(f"error: {place} cannot be written: {tmp_path / 'file'} takes no new files (Not a directory)")
    assert "--out" in line
    assert "Errno" not in line


def test_proc_takes_no_files(capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("this system has no /proc")
    assert "error: /proc/x cannot be written: /proc takes no new files" in refusal(capsys, "train", "--out", "/proc/x")


def test_a_file_in_place_of_the_runs_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert "is a file; give the name of a folder" in refusal(capsys, "train", "--out", str(tmp_path / "file"))


def test_processor_time_of_runs_with_several_threads(capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, "bench", "run", "cifar10-resnet20", "--cpu-time")
    assert "--cpu-time counts the time of all threads together: add --set train.threads=1" in line
