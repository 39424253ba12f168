"""`autosparse export`: each format of a real run, loaded in a new process, gives the run's accuracy."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest
import torch

from autosparse import cli
from autosparse.training.finished import open_finished

SCORE = """
import sys
import torch
from autosparse.data import open_data
from autosparse.recipes.loading import load_recipe
def accuracy(predict):
    data = open_data(load_recipe("run/recipe.yaml").data)
    right = [predict(*inputs).argmax(-1) == target for inputs, target in data.test.epoch(0)]
    print(torch.cat(right).float().mean().item())
"""
BUILD = """
from autosparse.models import small_conv
net = small_conv(width=8).eval()
"""
LOAD = {
    "safetensors": BUILD
    + """
from autosparse.export import load_sparse
accuracy(load_sparse("run/export/model.sparse.safetensors", net))
""",
    "torch": BUILD
    + """
net.load_state_dict(torch.load("run/export/model.pt", weights_only=True))
accuracy(net)
""",
    "hub": """
from autosparse.export import SparseModel
accuracy(SparseModel.from_pretrained("run/export/hub"))
""",
    "onnx": """
import onnxruntime
session = onnxruntime.InferenceSession("run/export/model.onnx")
accuracy(lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0]))
""",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "run"
    settings = ["train.epochs=2", "train.dense_beside=false", "train.threads=1", "model.arguments.width=8"]
    changes = [part for setting in settings for part in ("--set", setting)]
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", "--quiet", "--no-report", "--out", str(folder), *changes])
    assert stopped.value.code == 0
    return folder


@pytest.fixture
def run_folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run as `run`, in the folder that the user is in."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(trained, tmp_path / "run"))


def export(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["export", *arguments])
    return stopped.value.code


@pytest.mark.parametrize("kind", list(LOAD))
def test_each_format_gives_the_runs_accuracy_in_a_new_process(
    kind: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    if kind == "hub":
        pytest.importorskip("huggingface_hub")
    assert export("run", "--format", kind) == 0, capsys.readouterr().err
    finished = subprocess.run([sys.executable, "-c", SCORE + LOAD[kind]], capture_output=True, text=True, check=True)
    expected = json.loads((run_folder / "result.json").read_text())["accuracy"]
    assert float(finished.stdout) == pytest.approx(expected, abs=1e-6)


def test_what_is_printed(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export("run") == 0
    shown = capsys.readouterr().out
    size = (run_folder / "export/model.sparse.safetensors").stat().st_size
    dense = (run_folder / "model.safetensors").stat().st_size
    assert f"{size:,} bytes, {size / dense:.1%} of the dense model.safetensors ({dense:,} bytes)" in shown
    assert size < 0.6 * dense
    assert export("run", "--dtype", "fp16", "--out", "half/small.safetensors") == 0
    assert Path("half/small.safetensors").stat().st_size < 0.8 * size


INT8 = (
    LOAD["safetensors"]
    + """
import onnxruntime
session = onnxruntime.InferenceSession("run/export/model.onnx")
accuracy(lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0]))
"""
)


def test_int8_files_lose_little_accuracy(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    assert export("run", "--dtype", "int8") == 0
    assert export("run", "--format", "onnx", "--dtype", "int8", "--calibration-samples", "100") == 0
    assert "ranges from 100 training samples" in capsys.readouterr().out
    finished = subprocess.run([sys.executable, "-c", SCORE + INT8], capture_output=True, text=True, check=True)
    expected = json.loads((run_folder / "result.json").read_text())["accuracy"]
    assert [float(line) for line in finished.stdout.split()] == pytest.approx([expected, expected], abs=0.02)
    size = (run_folder / "export/model.sparse.safetensors").stat().st_size
    assert size < 0.35 * (run_folder / "model.safetensors").stat().st_size


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_folder_to_serve(dtype: str, run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    assert export("run", "--format", "deployed", "--dtype", dtype, "--out", "serving") == 0, capsys.readouterr().err
    assert f"{dtype} on 1 thread, measured on this processor" in capsys.readouterr().out
    assert {path.name for path in Path("serving").iterdir()} == {"config.json", "deployment.json", "model.safetensors"}
    assert json.loads(Path("serving/deployment.json").read_text())["precision"] == dtype
    code = run_path(str(Path(__file__).parents[2] / "examples" / "serve.py"))
    served = code["load"]("serving", (1, 8, 8))
    plain = open_finished(run_folder).model
    images = torch.rand(5, 1, 8, 8)
    with torch.no_grad():
        expected = plain(images)
    assert float((served(images) - expected).norm() / expected.norm()) < (1e-4 if dtype == "float32" else 0.1)
    assert export("run", "--format", "deployed", "--out", "serving") == 2
    assert "--force" in capsys.readouterr().err


def test_existing_files_need_force(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("safetensors", "torch", "hub"):
        assert export("run", "--format", kind) == 0
        assert export("run", "--format", kind) == 2
        assert "--force" in capsys.readouterr().err
        assert export("run", "--format", kind, "--force") == 0
    Path("taken.onnx").touch()
    assert export("run", "--format", "onnx", "--out", "taken.onnx") == 2


def test_wrong_options(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export("run", "--format", "zip") == 2
    assert "--format zip is not known; give safetensors, torch, onnx, hub" in capsys.readouterr().err
    assert export("run", "--dtype", "int4") == 2
    assert "--dtype 'int4' is not known; give float32, bfloat16, float16, int8" in capsys.readouterr().err
    assert export("run", "--format", "onnx", "--dtype", "fp16") == 2
    assert "--dtype float16 does not go with --format onnx: give float32 or int8" in capsys.readouterr().err
    assert export("run", "--format", "torch", "--dtype", "int8") == 2
    assert "--dtype int8 does not go with --format torch: give float32, bfloat16 or float16" in capsys.readouterr().err
    assert export("run", "--format", "deployed", "--dtype", "fp16") == 2
    assert "does not go with --format deployed: give float32, bfloat16 or int8" in capsys.readouterr().err
    assert export("run", "--calibration-samples", "0") == 2
    assert not (run_folder / "export").exists()


@pytest.mark.parametrize(
    ("status", "message"),
    [("running", "is still being trained, or was killed"), ("stopped", "was stopped"), ("failed", "failed")],
)
def test_an_unfinished_run_says_what_to_do(
    run_folder: Path, status: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    info = json.loads((run_folder / "run.json").read_text())
    (run_folder / "run.json").write_text(json.dumps({**info, "status": status}))
    assert export("run") == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "`autosparse train --resume --out run`" in shown


def test_folders_that_hold_no_run(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export("nowhere") == 2
    assert "there is no run in nowhere" in capsys.readouterr().err
    Path("empty").mkdir()
    assert export("empty") == 2
    assert "empty is empty: train a model first with `autosparse train --out empty`" in capsys.readouterr().err
    Path("other").mkdir()
    Path("other/notes.txt").touch()
    assert export("other") == 2
    assert "is not the folder of a run" in capsys.readouterr().err
    (run_folder / "model.safetensors").write_bytes(b"damaged")
    assert export("run") == 2
    assert "model.safetensors is damaged" in capsys.readouterr().err


def test_a_model_of_ones_own_is_rebuilt(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = (run_folder / "recipe.yaml").read_text()
    (run_folder / "recipe.yaml").write_text(recipe.replace("name: small_conv", "name: autosparse.models:small_conv"))
    assert export("run", "--format", "hub") == 0
    assert "model=your_model" in capsys.readouterr().out
    assert json.loads(Path("run/export/hub/config.json").read_text())["model"] == "autosparse.models:small_conv"
