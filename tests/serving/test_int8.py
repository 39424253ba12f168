"""`deploy(precision="int8")`: calibrated nets of many kinds, what they hold and say, and wrong use."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import autosparse
from autosparse.kernels import library
from autosparse.quantization.affine import quantize_weight, weight_scales
from autosparse.serving.quantized.linear import DOTS, ByteLinear
from autosparse.serving.quantized.region import ByteRegion
from autosparse.serving.quantized.steps import Affine

from .byte_reference import multiply_add, quantize
from .test_decoding import small

NEAR = 0.06


@pytest.fixture(autouse=True)
def _bytes_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight bits are used whatever the clock says."""
    if not library.available():
        pytest.skip(f"no engine: {library.why_not()}")
    measure = ByteRegion.measure

    def ours_first(region: ByteRegion, inputs: list[Tensor]) -> tuple[float, float]:
        measure(region, inputs)
        return 0.0, 1.0

    monkeypatch.setattr(ByteRegion, "measure", ours_first)


class Net(nn.Module):
    """Residual, strided, depthwise, pooled, joined, and with an operation between that the engine does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.wide = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.ReLU6())
        self.narrow = nn.Sequential(nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16))
        self.after = nn.Conv2d(32, 24, 3, padding=1)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.relu(x + self.narrow(self.wide(x)))
        x = torch.cat([x, torch.sigmoid(x)], 1)
        return self.head(self.after(x).relu().mean((2, 3)))


def sparse(model: nn.Module, density: float = 0.3) -> nn.Module:
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= torch.rand_like(parameter) < density
    return model.eval()


def net() -> nn.Module:
    torch.manual_seed(0)
    model = sparse(Net())
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_var = torch.rand(part.num_features) + 0.5
            part.running_mean = torch.randn(part.num_features) / 4
    return model


def pictures(count: int = 4, batch: int = 4) -> list[Tensor]:
    torch.manual_seed(5)
    return [torch.randn(batch, 3, 40, 36) for _ in range(count)]


def off(model: nn.Module, deployed: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        expected = model(x)
    return float((deployed(x) - expected).norm() / expected.norm())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("ranges", ["minmax", "percentile", "mse"])
def test_a_net_in_int8(threads: int, ranges: str) -> None:
    model = net()
    x = pictures()[0][:1]
    deployed = autosparse.deploy(model, x, threads=threads, precision="int8", calibration=pictures(), ranges=ranges)
    assert not deployed.notes
    for batch in (1, 2, 5, 64):
        assert off(model, deployed, torch.randn(batch, 3, 40, 36)) < NEAR
    assert off(model, deployed, torch.randn(2, 3, 33, 50)) < NEAR  # another size of picture


def test_layers_say_what_they_do() -> None:
    model, x = net(), pictures()[0]
    deployed = autosparse.deploy(model, x, threads=1, precision="int8", calibration=pictures())
    layers = {layer.name: layer for layer in deployed.layers(x)}
    assert set(layers) == {"stem.0", "wide.0", "narrow.0", "after", "head"}
    for layer in layers.values():
        assert layer.precision == "int8"
        assert layer.range is not None
        assert layer.range[0] <= 0 < layer.range[1]
        assert layer.error is not None
        assert 0 < layer.error < NEAR
    assert layers["narrow.0"].range[0] == 0  # behind a ReLU
    assert layers["narrow.0"].range[1] <= 6.001
    assert all(layer.microseconds for layer in layers.values())


def test_no_float_weights_are_held() -> None:
    model, x = net(), pictures()[0]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    deployed = autosparse.deploy(model, x, threads=1, precision="int8", calibration=pictures())
    weights = {tuple(p.shape) for p in model.parameters() if p.dim() > 1}
    held = [t for part in deployed.modules() for t in vars(part).values() if isinstance(t, Tensor)]
    held += list(deployed.parameters()) + list(deployed.module.plain.parameters())
    assert not [t.shape for t in held if t.is_floating_point() and tuple(t.shape) in weights]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())  # the user's own stay
    with pytest.raises(ValueError, match="keeps no float32 weights"):
        deployed(x, x)
    assert deployed.prepared is not None
    saved = deployed.prepared.served.state  # what `save` writes
    assert not [name for name, value in saved.items() if isinstance(value, Tensor) and value.dim() > 1]


def test_an_int8_encoder_leaves_no_float_weight_in_memory() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "hidden_size": 26, "intermediate_size": 58, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False).eval()
    shapes = [tuple(layer.weight.shape) for layer in model.modules() if isinstance(layer, nn.Linear)]
    x = torch.randint(3, 50, (1, 40))
    deployed = autosparse.deploy(model, (x,), threads=1, precision="int8", calibration=[(x,)])
    del model
    gc.collect()
    in_memory = [tensor for tensor in gc.get_objects() if type(tensor) in (Tensor, nn.Parameter)]
    assert not [tensor.shape for tensor in in_memory if tensor.is_floating_point() and tuple(tensor.shape) in shapes]
    assert deployed(x).last_hidden_state.shape == (1, 40, 26)


def test_auto_is_int8_with_calibration_alone() -> None:
    model, x = net(), pictures()[0]
    plain = autosparse.deploy(model, x, threads=1, precision="auto")
    assert {layer.precision for layer in plain.layers()} == {"float32"}
    quantized = autosparse.deploy(model, x, threads=1, precision="auto", calibration=pictures())
    assert {layer.precision for layer in quantized.layers(x)} == {"int8"}


@pytest.mark.parametrize("name", library.INSTRUCTION_SETS)
def test_every_instruction_set_gives_the_same(name: str, choose_kernels: Callable[[str], None]) -> None:
    model, x = net(), pictures()[0]
    expected = _on_portable()
    choose_kernels(name)
    deployed = autosparse.deploy(model, x, threads=1, precision="int8", calibration=pictures())
    assert torch.allclose(deployed(x), expected, atol=1e-5)


@cache
def _on_portable() -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(library.VARIABLE, "portable")
        library.load.cache_clear()
        x = pictures()[0]
        result: Tensor = autosparse.deploy(net(), x, threads=1, precision="int8", calibration=pictures())(x)
    library.load.cache_clear()
    return result


@pytest.mark.parametrize("threads", [1, 2])
def test_a_net_in_bfloat16(threads: int) -> None:
    model, x = net(), pictures()[0][:1]
    deployed = autosparse.deploy(model, x, threads=threads, precision="bfloat16")
    engine = library.engine()
    if engine is None or engine.halves is None:
        assert "no bfloat16" in deployed.notes[0]
        return
    assert {layer.name for layer in deployed.layers(x) if layer.precision == "bfloat16"} == {
        "stem.0",
        "wide.0",
        "narrow.0",
        "after",
    }
    for batch in (1, 3, 16):
        assert off(model, deployed, torch.randn(batch, 3, 40, 36)) < 0.01


def test_bfloat16_without_its_instructions_is_float32(choose_kernels: Callable[[str], None]) -> None:
    choose_kernels("avx2")
    model, x = net(), pictures()[0][:1]
    deployed = autosparse.deploy(model, x, threads=1, precision="bfloat16")
    assert "this processor multiplies no bfloat16" in deployed.notes[-1]
    assert {layer.precision for layer in deployed.layers(x)} == {"float32"}
    assert off(model, deployed, x) < 1e-4


# ---- wrong use ----------------------------------------------------------------------------------------------------------


def test_wrong_use_is_refused() -> None:
    model, x = net(), pictures()[0]

    def refused(match: str, error: type[Exception] = ValueError, **options: object) -> None:
        with pytest.raises(error, match=match):
            autosparse.deploy(model, x, threads=1, **{"precision": "int8", "calibration": pictures()} | options)

    refused("precision='int9' is unknown; allowed: float32", precision="int9")
    refused("ranges='best' is unknown", ranges="best")
    refused("needs calibration data", calibration=None)
    refused("calibration has no batches", calibration=[])
    refused("put a single batch into a list", TypeError, calibration=x)
    refused(r"calibration batch 1 has a tensor of shape \(4, 3, 32, 36\)", calibration=[x, torch.randn(4, 3, 32, 36)])
    refused("without labels", calibration=[(x, torch.zeros(4))])
    refused("torch.float64", calibration=[x.double()])
    refused("the calibration data give NaN here", calibration=[x, torch.full_like(x, float("nan"))])
    refused("infinite values here", calibration=[torch.full_like(x, float("inf"))])
    refused("give evaluate and max_drop together", max_drop=0.1)
    refused("max_drop=-1", max_drop=-1, evaluate=lambda model: 0.0)
    model.train()
    refused("the model is in training mode")


def test_a_calibration_without_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="no range"):
        autosparse.deploy(net(), pictures()[0], threads=1, precision="int8", calibration=[torch.empty(0, 3, 40, 36)])


# ---- sensitive layers -----------------------------------------------------------------------------------------------------


def test_sensitive_layers_stay_in_float32() -> None:
    model, batches = net(), pictures()
    with torch.no_grad():
        model.after.weight[0, 0, 0, 0] = 1000.0  # the other weights of its row become zeros
        expected = model(batches[0])

    def score(candidate: nn.Module) -> float:
        with torch.no_grad():
            return -float((candidate(batches[0]) - expected).norm() / expected.norm())

    free = autosparse.deploy(model, batches[0], threads=1, precision="int8", calibration=batches)
    limit = -score(free) * 0.9
    kept = autosparse.deploy(
        model, batches[0], threads=1, precision="int8", calibration=batches, evaluate=score, max_drop=limit
    )
    assert -score(kept) <= limit
    precisions = {layer.name: layer.precision for layer in kept.layers(batches[0])}
    assert "float32" in precisions.values()
    assert "int8" in precisions.values()


# ---- linear layers ----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(library.INSTRUCTION_SETS),
    rows=st.integers(1, 70),
    columns=st.integers(1, 150),
    tokens=st.integers(1, 200),
    threads=st.integers(1, 2),
    density=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
    added=st.booleans(),
    positive=st.booleans(),
)
def test_linear_gives_the_integers_of_numpy(
    name: str, rows: int, columns: int, tokens: int, threads: int, density: float, added: bool, positive: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(library.VARIABLE, name)
        library.load.cache_clear()
        engine = library.engine()
    library.load.cache_clear()
    if engine is None:
        return
    torch.manual_seed(rows * columns)
    layer = nn.Linear(columns, rows)
    layer.weight.data *= torch.rand(rows, columns) < density
    x, other = torch.rand(tokens, columns) - (0.0 if positive else 0.4), torch.randn(tokens, rows)
    limits = (float(x.min()), float(x.max()))
    packed = ByteLinear("layer", layer, engine, threads, limits, 0.0)
    affine, scales = Affine.covering(*limits), weight_scales(layer.weight)
    integers = quantize_weight(layer.weight, scales).numpy().astype(np.int64)
    sums = quantize(x.numpy(), affine) @ integers.T
    scale = scales.double().numpy() * affine.scale
    bias = layer.bias.detach().double().numpy() - affine.zero_point * integers.sum(1) * scale
    expected = multiply_add(sums.astype(np.float32), scale.astype(np.float32), bias.astype(np.float32))
    expected = np.maximum(expected + other.numpy() if added else expected, 0)
    assert packed.ways(tokens)
    for way in packed.ways(tokens):
        found = packed.compute(way, x, other if added else None).numpy()
        assert np.allclose(found, expected, rtol=1e-6, atol=1e-6 * max(1.0, np.abs(expected).max())), way
        if not added:
            assert np.array_equal(found, expected), way


def test_an_encoder_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    torch.manual_seed(0)
    model = sparse(transformers.BertModel(transformers.BertConfig(vocab_size=100, **sizes)))
    batches = [{"input_ids": torch.randint(0, 100, (2, length))} for length in (24, 31)]
    deployed = autosparse.deploy(model, batches[0], threads=1, precision="int8", calibration=batches)
    with torch.no_grad():
        expected = model(**batches[1]).last_hidden_state
    found = deployed(**batches[1]).last_hidden_state
    assert float((found - expected).norm() / expected.norm()) < NEAR
    layers = [layer for layer in deployed.layers() if layer.name.startswith("encoder")]
    assert len(layers) == 12
    assert {layer.precision for layer in layers} == {"int8"}
    assert all(layer.error is not None and layer.error < NEAR for layer in layers)


def test_a_vision_transformer() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    torch.manual_seed(0)
    model = sparse(transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **sizes)))
    x = torch.randn(1, 3, 32, 32)
    batches = [torch.randn(2, 3, 32, 32) for _ in range(3)]
    deployed = autosparse.deploy(model, x, threads=1, precision="int8", calibration=batches)
    with torch.no_grad():
        expected = model(x).last_hidden_state
    found = deployed(x).last_hidden_state
    assert float((found - expected).norm() / expected.norm()) < NEAR
    linears = [layer for layer in deployed.layers() if layer.kind == "linear" and "pooler" not in layer.name]
    assert len(linears) == 12
    assert {layer.precision for layer in linears} == {"int8"}


def test_models_that_write_tokens_stay_in_float32() -> None:
    model = small("pre").eval()
    source, target = torch.randint(4, 30, (2, 9)), torch.randint(4, 30, (2, 7))
    with pytest.warns(match="tokens are written one at a time"):
        deployed = autosparse.deploy(model, (source, target), threads=1, precision="int8", calibration=[(source, target)])
    assert {layer.precision for layer in deployed.layers()} == {"float32"}
    assert torch.equal(deployed.generate(source, 1, 2, 6), model.generate(source, 1, 2, 6))
    linears = [layer for layer in deployed.layers() if layer.kind == "linear"]
    assert linears
    assert all(layer.precision == "float32" and "float32, since" in layer.reason for layer in linears)


def test_few_tokens_use_dense_rows() -> None:
    engine = library.engine()
    assert engine is not None
    packed = ByteLinear("layer", nn.Linear(40, 30), engine, 1, (-1.0, 1.0))
    assert packed.ways(1) == [DOTS]
    assert DOTS not in packed.ways(1000)
