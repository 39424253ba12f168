"""Plain PyTorch files and ONNX."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import autosparse
from autosparse import models
from autosparse.export import save_onnx, save_torch

NET = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
"""


def test_a_torch_file_loads_in_the_original_class_without_autosparse(tmp_path: Path, net: nn.Module) -> None:
    net[2].weight.data[::2] = 0.0
    save_torch(net, tmp_path / "model.pt")
    x = torch.randn(4, 10)
    torch.save((x, net(x).detach()), tmp_path / "expected.pt")
    check = """
net.load_state_dict(torch.load("model.pt", weights_only=True))
x, expected = torch.load("expected.pt", weights_only=True)
assert torch.equal(net(x), expected)
import sys
assert "autosparse" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", NET + check], cwd=tmp_path, check=True)


def test_a_torch_file_is_dense_clean_and_as_narrow_as_wanted(tmp_path: Path) -> None:
    model = models.transformer(vocabulary=50, size=16, heads=2, feed_forward=32, encoder_layers=1, decoder_layers=1)
    save_torch(model, tmp_path / "full.pt")
    save_torch(model, tmp_path / "half.pt", dtype="bf16")
    full, half = (torch.load(tmp_path / name, weights_only=True) for name in ("full.pt", "half.pt"))
    assert full.keys() == half.keys() == model.state_dict().keys()
    assert all(torch.equal(full[name], value) for name, value in model.state_dict().items())
    assert {value.dtype for value in half.values() if value.ndim > 1} == {torch.bfloat16}
    assert {value.dtype for value in half.values() if value.ndim == 1} == {torch.float32}
    assert full["output.weight"].data_ptr() == full["embedding.weight"].data_ptr()
    with zipfile.ZipFile(tmp_path / "full.pt") as archive:  # the tied weight once
        stored = sum(entry.file_size for entry in archive.infolist() if "/data/" in entry.filename)
    assert stored == sum(parameter.nbytes for parameter in model.parameters())


def test_a_torch_file_of_a_view_does_not_carry_the_rest_along(tmp_path: Path) -> None:
    save_torch({"w": torch.zeros(1_000_000)[:3]}, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").stat().st_size < 10_000


def test_torch_files_are_not_overwritten(tmp_path: Path, net: nn.Module) -> None:
    save_torch(net, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="exists already"):
        save_torch(net, tmp_path / "model.pt")
    save_torch(net, tmp_path / "model.pt", force=True)


@pytest.fixture
def onnxruntime() -> object:
    pytest.importorskip("onnxscript")
    return pytest.importorskip("onnxruntime")


def test_onnx_takes_any_batch(tmp_path: Path, onnxruntime: object) -> None:
    model = models.small_conv(width=4).train()
    for _ in range(3):
        model(torch.randn(8, 1, 8, 8))  # batch-norm statistics that matter
    path = tmp_path / "model.onnx"
    assert save_onnx(model, path, (torch.randn(4, 1, 8, 8),), names=("images",)) < 1e-5
    assert model.training
    session = onnxruntime.InferenceSession(str(path))  # type: ignore[attr-defined]
    assert [(each.name, each.shape[1:]) for each in session.get_inputs()] == [("images", [1, 8, 8])]
    model.eval()
    for batch in (1, 3, 17):
        x = torch.randn(batch, 1, 8, 8)
        (found,) = session.run(None, {"images": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model(x).detach(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="exists already"):
        save_onnx(model, path, (torch.randn(4, 1, 8, 8),))


@pytest.mark.slow
def test_onnx_of_a_transformer_takes_any_length(tmp_path: Path, onnxruntime: object) -> None:
    model = models.transformer(vocabulary=50, size=16, heads=2, feed_forward=32, encoder_layers=1, decoder_layers=1)
    source, target = torch.randint(1, 50, (4, 7)), torch.randint(1, 50, (4, 6))
    sides = [{0: "batch", 1: "source_length"}, {0: "batch", 1: "target_length"}]
    path = tmp_path / "model.onnx"
    assert save_onnx(model, path, (source, target), names=("source", "target"), dynamic=sides) < 1e-5
    session = onnxruntime.InferenceSession(str(path))  # type: ignore[attr-defined]
    source, target = torch.randint(1, 50, (2, 11)), torch.randint(1, 50, (2, 3))
    source[0, 5:] = 0
    (found,) = session.run(None, {"source": source.numpy(), "target": target.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model.eval()(source, target).detach(), rtol=1e-4, atol=1e-5)


def test_onnx_that_differs_from_torch_is_not_written(
    tmp_path: Path, onnxruntime: object, net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autosparse.export import onnx

    export = onnx._export

    def other_weights(model: nn.Module, *arguments: object) -> None:
        changed = nn.Sequential(*model)
        kept = model[0].bias.data
        model[0].bias.data = kept + 1e-2
        export(changed, *arguments)  # type: ignore[arg-type]
        model[0].bias.data = kept

    monkeypatch.setattr(onnx, "_export", other_weights)
    with pytest.raises(RuntimeError, match=r"differ from torch's by .*nothing was written"):
        save_onnx(net, tmp_path / "model.onnx", (torch.randn(4, 10),))
    assert list(tmp_path.iterdir()) == []


def test_onnx_says_what_it_needs(tmp_path: Path, net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(ImportError, match=r'pip install "autosparse\[onnx\]"'):
            save_onnx(net, tmp_path / "model.onnx", (torch.randn(4, 10),))
    pytest.importorskip("onnxruntime")
    with pytest.raises(ValueError, match="at least two samples"):
        save_onnx(net, tmp_path / "model.onnx", (torch.randn(1, 10),))
    autosparse.sparsify(net, autosparse.AutoSparse(alpha=0.5), epochs=2, steps_per_epoch=2)
    with pytest.raises(ValueError, match="still being trained"):
        save_onnx(net, tmp_path / "model.onnx", (torch.randn(4, 10),))
