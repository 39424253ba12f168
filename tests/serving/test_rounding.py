"""What int8 does to a net: channels that are nearly constant, and nets that eight bits cannot hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autosparse
from autosparse.kernels import library
from autosparse.serving import Deployed
from autosparse.serving.quantized import capture
from autosparse.serving.quantized.region import ByteRegion

from .test_int8 import net, off, pictures
from .test_prepared import no_clock, rewrite

pytestmark = [
    pytest.mark.skipif(library.engine() is None, reason=f"no engine: {library.why_not()}"),
    pytest.mark.filterwarnings("ignore:deploy"),
    pytest.mark.filterwarnings("ignore:.*of -0.0"),
]


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch, native_wins: None) -> list[ByteRegion]:
    """Eight bits are used whatever the clock says; the regions that were measured."""
    measure, found = ByteRegion.measure, []

    def ours_first(region: ByteRegion, inputs: list[Tensor]) -> tuple[float, float]:
        found.append(region)
        measure(region, inputs)
        return -1.0, 1.0

    monkeypatch.setattr(ByteRegion, "measure", ours_first)
    return found


class Constant(nn.Module):
    """Six channels of the second layer read nothing but a constant one, so their variances are next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(16, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.third = nn.Sequential(nn.Conv2d(24, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24))
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x))
        return self.head(torch.relu(x + self.third(x)).mean((2, 3)))


@torch.no_grad()
def constant(kind: Callable[[], nn.Module] = Constant) -> nn.Module:
    torch.manual_seed(0)
    model = kind().train()
    first, second = model.first, model.second
    first[0].weight[5], first[1].bias[5] = 0.0, 0.03
    second[0].weight[:6] = 0.0
    second[0].weight[:6, 5, 1, 1] = torch.rand(6) + 0.5
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = None  # the statistics of all batches
    for batch in pictures():
        model(batch)
    second[1].running_var[:6] = 1e-9
    return model.eval()


def int8(model: nn.Module, calibration: list[Tensor] | None = None) -> Deployed:
    batches = pictures() if calibration is None else calibration
    return autosparse.deploy(model, pictures()[0][:1], threads=1, precision="int8", calibration=batches)


def precisions(deployed: Deployed) -> set[str]:
    return {layer.precision for layer in deployed.layers(pictures()[0][:1])}


def test_nearly_constant_channels_are_served_in_int8() -> None:
    model, x = constant(), pictures()[1]
    deployed = int8(model)
    assert precisions(deployed) == {"int8"}
    assert not deployed.notes
    assert off(model, deployed, x) < 0.03
    assert all(layer.error is not None and layer.error < 0.05 for layer in deployed.layers(x))


def test_channels_keep_their_means() -> None:
    model, batches = net(), pictures(1, 32)
    deployed = int8(model, batches)
    with torch.no_grad():
        expected = model(batches[0])
    lost = (deployed(batches[0]) - expected).mean(0).norm()
    assert lost < 1e-4 * expected.mean(0).norm()
    assert lost < 0.05 * (deployed(batches[0]) - expected).norm() / 32**0.5  # and what is lost of a picture is more


def test_torch_says_what_the_engine_will_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[float] = []
    computed = capture.rounding_difference

    def listen(*given: object) -> float:
        said.append(computed(*given))  # type: ignore[arg-type]
        return said[-1]

    monkeypatch.setattr(capture, "rounding_difference", listen)
    model = net()
    deployed = int8(model)
    assert said[0] == pytest.approx(deployed.difference, rel=0.02)
    assert deployed.difference == pytest.approx(off(model, deployed, pictures()[0][:1]), rel=1e-3)
    assert deployed.difference > 1e-4


def test_corrected_biases_are_saved(tmp_path: Path) -> None:
    deployed, x = int8(constant()), pictures()[1]
    deployed.save(tmp_path / "saved")
    with no_clock():
        again = autosparse.load_deployed(tmp_path / "saved", Constant())
    assert torch.equal(again(x), deployed(x))
    assert again.difference == deployed.difference
    rewrite(tmp_path / "saved", lambda content: content["quantization"].pop("corrections"))  # as earlier releases wrote it
    earlier = autosparse.load_deployed(tmp_path / "saved", Constant())
    assert not torch.allclose(earlier(x), deployed(x), rtol=0.1)


def test_what_eight_bits_cannot_hold_is_float32_before_anything_is_measured(measured: list[ByteRegion]) -> None:
    model, x = net(), pictures()[1]
    deployed = int8(model, [*pictures(), 1e5 * x])  # the range is one picture's
    assert not measured
    assert deployed.notes[0].startswith("float32 is used, since in int8 its outputs differ by ")
    assert "ranges='mse'" in deployed.notes[0]
    assert precisions(deployed) == {"float32"}
    assert deployed.prepared is not None
    assert deployed.prepared.served.route.name == "graph"
    assert off(model, deployed, x) < 1e-4
    assert deployed.difference < 1e-4


def test_a_score_keeps_the_layer_that_eight_bits_cannot_hold_in_float32() -> None:
    model, batches = net(), pictures()
    with torch.no_grad():
        model.narrow[1].bias[0] = -100.0  # a dead channel, with weights so large that all others become zeros
        model.after.weight[:, 0] = 1000.0
        model.head.bias -= torch.cat([model(batch) for batch in batches]).mean(0)
    assert "float32 is used" in int8(model).notes[0]

    def score(candidate: nn.Module) -> float:
        return -off(model, candidate, batches[0])

    kept = autosparse.deploy(
        model, batches[0][:1], threads=1, precision="int8", calibration=batches, evaluate=score, max_drop=0.2
    )
    layers = {layer.name: layer.precision for layer in kept.layers(batches[0])}
    assert layers["after"] == "float32"
    assert layers["stem.0"] == "int8"
    assert score(kept) > -0.2


def test_a_refused_int8_is_saved_as_float32(tmp_path: Path) -> None:
    x = pictures()[1]
    deployed = int8(net(), [*pictures(), 1e5 * x])
    deployed.save(tmp_path)
    assert json.loads((tmp_path / "deployment.json").read_text())["precision"] == "float32"
    with no_clock():
        again = autosparse.load_deployed(tmp_path, type(net())())
    assert again.notes == deployed.notes
    assert torch.equal(again(x), deployed(x))


def test_kernels_are_judged_by_their_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = ByteRegion.forward
    monkeypatch.setattr(ByteRegion, "forward", lambda region, *inputs: 1.2 * forward(region, *inputs))
    deployed = int8(constant())
    assert "the kernels differ by 20 % from their own numbers in torch: please report" in deployed.notes[0]
    assert precisions(deployed) == {"float32"}


class Twice(nn.Module):
    """Two parts that torch.fx captures, and between them a branch that it cannot."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.good, self.bad = _part(3), _part(8)
        self.head = nn.Linear(8, 5)
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        x = self.good(x)
        return self.head(self.bad(x * 1e5 if float(x.mean()) > self.limit else x).mean((2, 3)))


def _part(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())


def test_a_part_that_eight_bits_cannot_hold_is_float32_as_a_whole(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Twice(0.0).eval(), pictures()[1][:1]
    with torch.no_grad():
        model.limit = 2 * float(model.good(x).mean())
    deployed = autosparse.deploy(model, x, threads=1, precision="int8", calibration=[*pictures(), 4 * x])
    layers = {layer.name: layer.precision for layer in deployed.layers(x)}
    assert {layers["bad.0"], layers["bad.2"]} == {"float32"}
    assert {layers["good.0"], layers["good.2"]} == {"int8"}
    assert any("bad stays in float32, since in int8 it computes something else" in note for note in deployed.notes)
    deployed.save(tmp_path)
    with no_clock():
        again = autosparse.load_deployed(tmp_path, Twice(model.limit))
    assert torch.equal(again(x), deployed(x))
    assert again.notes == deployed.notes
