"""`autosparse predict` and `autosparse eval --deployed` on a finished run of 0.1.0."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from autosparse import cli
from autosparse.data import open_data
from autosparse.data.pictures import read_pictures
from autosparse.training.finished import open_finished

RUN = Path(__file__).parents[1] / "compatibility" / "v0.1.0" / "finished"
pytestmark = pytest.mark.filterwarnings("ignore:deploy")


def call(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(arguments))
    return stopped.value.code


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[int]]:
    """Test digits as files, and what the run's model says of them."""
    image = pytest.importorskip("PIL.Image")
    finished, folder = open_finished(RUN), tmp_path_factory.mktemp("pictures")
    images = next(iter(open_data(finished.recipe.data).test.epoch(0)))[0][0][:40]
    (mean,), (std,) = finished.recipe.data.mean, finished.recipe.data.std
    # 17 greys are 16 steps: not all of them are whole numbers of 255
    files = []
    for number, digit in enumerate((images * std + mean) * 255):
        files.append(str(folder / f"{number}.png"))
        image.fromarray(digit[0].round().to(torch.uint8).numpy()).save(files[-1])
    return files, finished.model(images).argmax(-1).tolist()


def test_pictures_get_the_classes_of_the_model(pictures, capsys: pytest.CaptureFixture[str]) -> None:
    files, expected = pictures
    assert call("predict", str(RUN), *files, "--json", "--top", "2") == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["file"] for each in found] == files
    assert [each["classes"][0] for each in found] == expected
    assert all(each["probabilities"] == sorted(each["probabilities"], reverse=True) for each in found)
    assert call("predict", str(RUN), files[0], "--precision", "fp32") == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{files[0]}: {expected[0]} (")
    assert shown.count("%") == 1


@pytest.mark.parametrize("size", [(24, 24), (16, 40), (3, 5)])
def test_pictures_of_another_size_and_colour(size: tuple[int, int], tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", size, (51, 51, 51)).save(tmp_path / "grey.png")
    data = open_finished(RUN).recipe.data.model_copy(update={"mean": (0.1,), "std": (0.5,)})
    batch = read_pictures([tmp_path / "grey.png"] * 2, data, 8, 8)
    assert torch.allclose(batch, torch.full((2, 1, 8, 8), (0.2 - 0.1) / 0.5))


def test_wrong_files_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words.png").write_text("no picture")
    for arguments, message in (
        ((str(RUN), str(tmp_path / "none.png")), "there is no picture"),
        ((str(RUN), str(tmp_path / "words.png")), "cannot be read as a picture"),
        ((str(tmp_path / "run"), "a.png"), "there is no run"),
        ((str(RUN), "a.png", "--precision", "int4"), "--precision 'int4' is not known; give float32, bfloat16, int8, auto"),
    ):
        assert call("predict", *arguments) == 2
        assert message in capsys.readouterr().err


def test_the_deployed_model_beside_the_plain_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("eval", str(RUN), "--deployed", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["precision"] == "float32"
    assert found["plain"]["accuracy"] == found["deployed"]["accuracy"] > 0
    assert min(found[key]["milliseconds"] for key in ("plain", "deployed")) > 0
    assert call("eval", str(RUN), "--deployed", "--precision", "fp32") == 0
    shown = capsys.readouterr().out
    assert "deployed float32" in shown
    assert "ms per sample" in shown


def test_a_latency_that_was_asked_for_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUN, run)
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("target_sparsity: 0.8", "target_latency: 0.5\n  precision: int8"))
    assert call("eval", str(run), "--deployed", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["precision"], found["target_latency"]) == ("int8", 0.5)
    assert call("eval", str(run), "--deployed") == 0
    assert "0.5 ms asked, " in capsys.readouterr().out
    assert call("eval", str(run), "--deployed", "--precision", "float32", "--json") == 0
    assert "target_latency" not in json.loads(capsys.readouterr().out)


def test_options_that_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("eval", str(RUN), "--precision", "int8") == 2
    assert "give --deployed with it" in capsys.readouterr().err
    assert call("eval", str(RUN), "--deployed", "--checkpoint", "best") == 2
    assert "leave --checkpoint out" in capsys.readouterr().err
