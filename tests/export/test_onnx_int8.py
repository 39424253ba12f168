"""The int8 ONNX file: onnxruntime and OpenVINO agree on it, zeros stay, wrong calibration is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")

from autosparse.export import save_onnx_int8  # noqa: E402


def net() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 64, 10),
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= torch.rand_like(parameter) < 0.5
    return model.eval()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module, Tensor, float]:
    path, model = tmp_path_factory.mktemp("onnx") / "int8.onnx", net()
    images = torch.rand(64, 1, 8, 8)
    return path, model, images, save_onnx_int8(model, path, (images[:8],), [(images[:32],), (images[32:],)])


def test_onnxruntime_gives_nearly_the_plain_outputs(written: tuple[Path, nn.Module, Tensor, float]) -> None:
    path, model, images, distance = written
    assert 0 < distance < 0.05
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch in (images, images[:1]):
        output = torch.from_numpy(session.run(None, {"input": batch.numpy()})[0])
        expected = model(batch).detach()
        assert float((output - expected).square().mean().sqrt() / expected.square().mean().sqrt()) < 0.05


def test_openvino_gives_the_same(written: tuple[Path, nn.Module, Tensor, float]) -> None:
    openvino = pytest.importorskip("openvino")
    path, model, images, _ = written
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(str(path)), "CPU", {"INFERENCE_NUM_THREADS": 1})
    output = torch.from_numpy(compiled([images.numpy()])[0])
    expected = model(images).detach()
    assert float((output - expected).square().mean().sqrt() / expected.square().mean().sqrt()) < 0.05


def test_weights_are_int8_per_channel_and_keep_their_zeros(written: tuple[Path, nn.Module, Tensor, float]) -> None:
    path, model, _, _ = written
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(str(path)).graph.initializer}
    weights = [each for each in tensors.values() if each.dtype == "int8" and each.ndim > 1]
    assert len(weights) == 3
    zeros = sorted(int((weight == 0).sum()) for weight in weights)
    plain = sorted(int((parameter == 0).sum()) for parameter in model.parameters() if parameter.ndim > 1)
    assert all(ours >= theirs for ours, theirs in zip(zeros, plain, strict=True))
    assert any(each.dtype == "float32" and each.shape == (8,) for name, each in tensors.items() if "scale" in name)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "needs calibration batches"),
        ([(torch.zeros(0, 1, 8, 8),)], "needs calibration batches"),
        ([(torch.zeros(2, 8),)], "2 sides, the model's input"),
        ([(torch.zeros(2, 1, 8, 8), torch.zeros(2))], "has 2 tensors, but the model takes 1"),
        ([(torch.full((2, 1, 8, 8), float("nan")),)], "NaN or infinite"),
    ],
)
def test_wrong_calibration_is_refused(tmp_path: Path, batches: list[tuple[Tensor, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        save_onnx_int8(net(), tmp_path / "file.onnx", (torch.rand(4, 1, 8, 8),), batches)
    assert list(tmp_path.iterdir()) == []
