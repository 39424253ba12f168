"""Models in int8 and bfloat16 in a folder: the same integers and outputs without calibration and without measuring."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autosparse
from autosparse.export.reader import SparseFile
from autosparse.kernels import library
from autosparse.serving import Deployed, deploy, load_deployed, prepared
from autosparse.serving.native import NativeRegion
from autosparse.serving.quantized.linear import ByteLinear
from autosparse.serving.quantized.region import ByteRegion

from .test_int8 import Net, net, pictures, sparse
from .test_prepared import Branching, no_clock, outputs, pruned, rewrite, rows

pytestmark = [
    pytest.mark.skipif(library.engine() is None, reason=f"no engine: {library.why_not()}"),
    pytest.mark.filterwarnings("ignore:deploy"),
    pytest.mark.filterwarnings("ignore:.*of -0.0"),
]


@pytest.fixture(autouse=True)
def _bytes_win(monkeypatch: pytest.MonkeyPatch, native_wins: None) -> None:
    """Eight bits are used whatever the clock says."""
    measure = ByteRegion.measure

    def ours_first(region: ByteRegion, inputs: list[Tensor]) -> tuple[float, float]:
        measure(region, inputs)
        return -1.0, 1.0

    monkeypatch.setattr(ByteRegion, "measure", ours_first)


class Sequences(nn.Module):
    """Convolutions over sequences, a norm with a negative and one with no gain, and one module at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(4, 12, 3, padding=1, bias=False), nn.BatchNorm1d(12), nn.ReLU())
        self.shared = nn.Conv1d(12, 12, 3, padding=1)
        self.norm_a, self.norm_b = nn.BatchNorm1d(12), nn.BatchNorm1d(12)
        self.head = nn.Linear(12, 9)
        self.again = self.head

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = torch.relu(self.norm_a(self.shared(x)))
        x = torch.relu(self.norm_b(self.shared(x)))
        return self.again(x.transpose(1, 2))


def sequences() -> nn.Module:
    torch.manual_seed(0)
    model = sparse(Sequences(), 0.5)
    for norm in (part for part in model.modules() if isinstance(part, nn.BatchNorm1d)):
        norm.weight.data = torch.linspace(-1, 1.2, 12)
        norm.weight.data[3] = 0.0
        norm.running_var = torch.rand(12) + 0.5
        norm.running_mean = torch.randn(12) / 4
    return model


def bert(**changes: Any) -> nn.Module:
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(0)
    return sparse(transformers.BertModel(transformers.BertConfig(vocab_size=100, **sizes | changes)))


def gpt2() -> nn.Module:
    """Its weights have their output channels last."""
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32, "vocab_size": 60, "use_cache": False}
    torch.manual_seed(0)
    return sparse(transformers.GPT2Model(transformers.GPT2Config(**sizes)))


def resnet() -> nn.Module:
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    torch.manual_seed(0)
    return sparse(transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes, num_labels=7)))


def words(length: int = 24) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 60, (2, length))}


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], list[Any]]]] = {
    "residual": (net, pictures),
    "parts": (lambda: pruned(Branching), lambda: [torch.randn(8, 3, 8, 8) for _ in range(3)]),
    "sequences": (sequences, lambda: [torch.randn(2, 4, 20) for _ in range(3)]),
    "bert": (bert, lambda: [words(), words(31)]),
    "gpt2": (gpt2, lambda: [words(), words(31)]),
    "resnet": (resnet, lambda: [torch.randn(1, 3, 32, 32) for _ in range(2)]),
}


def flat(result: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(result)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def same(first: Any, second: Any) -> bool:
    """To the last bit."""
    pairs = list(zip(flat(first), flat(second), strict=True))
    return bool(pairs) and all(torch.equal(a, b) for a, b in pairs)


def integers(deployed: Deployed) -> list[Tensor]:
    found = [part.integers for part in deployed.modules() if isinstance(part, ByteLinear)]
    steps = [step for part in deployed.modules() if isinstance(part, ByteRegion) for step in part.region.steps]
    return found + [step.weight for step in steps if hasattr(step, "scales")]


@pytest.mark.parametrize("name", KINDS)
def test_int8_is_the_same_again_without_calibration_and_measuring(name: str, tmp_path: Path) -> None:
    build, inputs = KINDS[name]
    batches = inputs()
    deployed = deploy(build(), batches[0], threads=1, precision="int8", calibration=batches)
    assert integers(deployed)
    deployed.save(tmp_path / "saved")
    fresh = build()
    for parameter in fresh.parameters():
        parameter.data.zero_()
    with no_clock():
        again = load_deployed(tmp_path / "saved", fresh)
    for example in (*batches, *inputs()):
        assert same(outputs(again, example), outputs(deployed, example))
    assert all(torch.equal(a, b) for a, b in zip(integers(again), integers(deployed), strict=True))
    assert again.notes == deployed.notes
    assert rows(again) == rows(deployed)
    facts = [[(row.precision, row.range, row.error) for row in each.layers()] for each in (again, deployed)]
    assert facts[0] == facts[1]
    again.save(tmp_path / "again")
    for file in ("deployment.json", "model.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "saved" / file).read_bytes()


def test_the_file_holds_integers_and_the_model_is_filled(tmp_path: Path) -> None:
    model, batches = net(), pictures()
    deploy(model, batches[0], threads=1, precision="int8", calibration=batches).save(tmp_path / "saved")
    loaded = autosparse.load_sparse(tmp_path / "saved" / "model.safetensors", Net()).eval()
    for name, value in model.state_dict().items():
        off = (loaded.state_dict()[name] - value).abs().max()
        step = value.abs().max() / 127 if value.dim() > 1 else 0.0
        assert off <= 0.51 * step, name
    held = SparseFile(tmp_path / "saved" / "model.safetensors").layout.tensors
    assert {name for name, entry in held.items() if entry.quantized} == {
        f"{layer}.weight" for layer in ("stem.0", "wide.0", "narrow.0", "after", "head")
    }


def test_layers_that_stay_in_float32_are_saved_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteRegion, "measure", lambda region, inputs: (1e9, 1.0))
    model, batches = net(), pictures()
    deployed = deploy(model, batches[0], threads=1, precision="int8", calibration=batches)
    assert {row.precision for row in deployed.layers(batches[0]) if row.name != "head"} == {"float32"}
    deployed.save(tmp_path / "saved")
    fresh = Net()
    with no_clock():
        again = load_deployed(tmp_path / "saved", fresh)
    assert same(again(batches[1]), deployed(batches[1]))
    assert torch.equal(fresh.after.weight, model.after.weight)


def test_kept_layers_stay_kept(tmp_path: Path) -> None:
    model, batches = net(), pictures()
    with torch.no_grad():
        model.after.weight[0, 0, 0, 0] = 1000.0
    scores = iter([1.0, 0.0, 1.0])  # of the plain model, in int8, and with the worst layer in float32
    deployed = deploy(
        model, batches[0], threads=1, precision="int8", calibration=batches, evaluate=lambda _: next(scores), max_drop=0.1
    )
    deployed.save(tmp_path / "saved")
    again = load_deployed(tmp_path / "saved", Net())
    assert same(again(batches[1]), deployed(batches[1]))
    precisions = [{row.name: row.precision for row in each.layers(batches[0])} for each in (again, deployed)]
    assert precisions[0] == precisions[1]
    assert set(precisions[0].values()) == {"int8", "float32"}


@pytest.mark.parametrize("name", ["residual", "parts", "resnet"])
def test_bfloat16_is_the_same_again(name: str, tmp_path: Path) -> None:
    build, inputs = KINDS[name]
    batches, model = inputs(), build()
    deployed = deploy(model, batches[0], threads=1, precision="bfloat16")
    deployed.save(tmp_path / "saved")
    fresh = build()
    with no_clock():
        again = load_deployed(tmp_path / "saved", fresh)
    assert same(again(batches[0]), deployed(batches[0]))
    assert rows(again) == rows(deployed)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in fresh.state_dict().items())


def test_auto_is_saved_as_what_it_became(tmp_path: Path) -> None:
    batches = pictures()
    deploy(net(), batches[0], threads=1, precision="auto", calibration=batches).save(tmp_path / "bytes")
    deploy(net(), batches[0], threads=1, precision="auto").save(tmp_path / "floats")
    said = [json.loads((tmp_path / name / "deployment.json").read_text())["precision"] for name in ("bytes", "floats")]
    assert said == ["int8", "float32"]


@cache
def files() -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        deploy(net(), pictures()[0], threads=1, precision="int8", calibration=pictures()).save(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    for name, content in files().items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_another_processor_measures_again_without_calibration(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_deployed(saved, Net())
    monkeypatch.setattr(prepared, "cpu_model", lambda: "Another One")
    with pytest.warns(UserWarning, match=r"measured again: it was saved on .* this is Another One"):
        again = load_deployed(saved, Net())
    x = pictures()[1]
    assert same(again(x), expected(x))  # integers do not depend on how they are summed
    again.save(saved, force=True)
    with no_clock():
        assert same(load_deployed(saved, Net())(x), expected(x))


@pytest.mark.parametrize("kernels", ["portable", "off"])
def test_other_kernels_and_none(saved: Path, kernels: str, choose_kernels: Callable[[str], None]) -> None:
    x = pictures()[1]
    expected = load_deployed(saved, Net())(x)
    choose_kernels(kernels)
    with pytest.warns(UserWarning, match="measured again"):
        again = load_deployed(saved, Net())
    off = float((again(x) - expected).norm() / expected.norm())
    assert off < (1e-5 if kernels == "portable" else 0.06)


def test_float32_may_win_elsewhere(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = pictures()[1]
    expected = load_deployed(saved, Net())(x)
    monkeypatch.setattr(ByteRegion, "measure", lambda region, inputs: (1e9, 1.0))
    with pytest.warns(UserWarning, match="saved for 1 threads, and this is for 2"):
        again = load_deployed(saved, Net(), threads=2)
    assert not any(isinstance(part, ByteRegion) for part in again.modules())
    assert any(isinstance(part, NativeRegion) for part in again.modules())
    assert float((again(x) - expected).norm() / expected.norm()) < 0.06


def blocks(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(choice for choice in content["choices"] if "blocks" in choice)
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda content: blocks(content)["blocks"].update({"0": [3, 4]}),
        lambda content: blocks(content)["blocks"].update({"0": [1, 10**6]}),
        lambda content: blocks(content)["blocks"].clear(),
        lambda content: blocks(content).update(images=7),
        lambda content: blocks(content).update(layers=["elsewhere"]),
        lambda content: content["choices"][-1]["ways"].update({"4": "int8, of 3 rows"}),
        lambda content: content["choices"][-1].update(tiles={"int8, quads": 10**6}),
        lambda content: content["choices"].clear(),
    ],
)
def test_impossible_choices_never_reach_the_engine(saved: Path, change: Callable[[dict[str, Any]], object]) -> None:
    x = pictures()[1]
    expected = load_deployed(saved, Net())(x)
    rewrite(saved, change)
    with pytest.warns(UserWarning, match="measured again: what was saved does not fit this model"):
        assert same(load_deployed(saved, Net())(x), expected)


def quantization(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = content["quantization"]
    return found


def first_correction(content: dict[str, Any]) -> list[float]:
    found: list[float] = next(iter(quantization(content)["corrections"].values()))
    return found


REFUSED: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda content: content.pop("quantization"), "int8 needs one"),
    (lambda content: content.update(precision="float32"), "belongs to int8"),
    (lambda content: content.update(precision="bfloat16"), "belongs to int8"),
    (lambda content: content.update(precision="int4"), "precision"),
    (lambda content: quantization(content)["ranges"].update({":x": [1.0, 0.0]}), "the range of :x is empty"),
    (lambda content: quantization(content)["ranges"].update({":x": [0.0]}), "quantization.ranges"),
    (lambda content: quantization(content)["ranges"].update({":x": [0.0, 1e999]}), "quantization.ranges"),
    (lambda content: quantization(content)["ranges"].clear(), r"another model \(no range of"),
    (lambda content: quantization(content)["corrections"].update({":x": [1e999]}), "quantization.corrections"),
    (lambda content: first_correction(content).pop(), r"another model \(the correction of .* is for 15 channels, it has 16"),
    (lambda content: quantization(content).update(keep="all"), "quantization.keep"),
    (lambda content: quantization(content).update(more=1), "quantization.more"),
    (lambda content: blocks(content)["blocks"].update({"0": [0, 4]}), "choices"),
    (lambda content: blocks(content)["blocks"].update({"x": [1, 4]}), "not a number"),
]


@pytest.mark.parametrize(("change", "because"), REFUSED, ids=range(len(REFUSED)))
def test_hostile_descriptions_are_refused(saved: Path, change: Callable[[dict[str, Any]], object], because: str) -> None:
    rewrite(saved, change)
    with pytest.raises(ValueError, match=rf"deployment\.json is refused: .*{because}"):
        load_deployed(saved, Net())


def test_damaged_files_are_refused(saved: Path) -> None:
    for file in ("deployment.json", "model.safetensors"):
        whole = (saved / file).read_bytes()
        for place in range(100, len(whole), len(whole) // 20):
            changed = bytearray(whole)
            changed[place] ^= 8
            (saved / file).write_bytes(changed)
            with pytest.raises(ValueError, match=r"is (refused|damaged)"):
                load_deployed(saved, Net())
        (saved / file).write_bytes(whole)
    load_deployed(saved, Net())
