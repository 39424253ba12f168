"""`deploy`: the same outputs as the plain model, whatever the model looks like, and clear refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autosparse
from autosparse import models
from autosparse.kernels import library
from autosparse.serving import Deployed, decoders, deploy, register_decoder
from autosparse.serving.linear import PackedLinear
from autosparse.serving.native import NativeRegion

CLOSE = 1e-5


def prepared(model: nn.Module, sparsity: float = 0.9) -> nn.Module:
    """Magnitude-pruned, with batch-norm statistics as after training."""
    torch.manual_seed(0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear) and getattr(module, "groups", 1) == 1:
                weight = module.weight
                weight *= weight.abs() > weight.abs().flatten().kthvalue(max(1, int(sparsity * weight.numel()))).values
            elif isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
                module.running_mean.normal_(0, 0.2)  # type: ignore[union-attr]
                module.running_var.uniform_(0.3, 2.0)  # type: ignore[union-attr]
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, 0, 0.2)
    return model.eval()


def assert_same(deployed: nn.Module, model: nn.Module, *inputs: Tensor) -> None:
    with torch.no_grad():
        expected = model(*inputs)
    result = deployed(*inputs)
    assert result.shape == expected.shape
    assert float((result - expected).abs().max()) <= CLOSE * float(expected.abs().max())


def parts(deployed: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    return [part for part in deployed.modules() if isinstance(part, kind)]


needs_engine = pytest.mark.skipif(library.engine() is None, reason=f"no engine: {library.why_not()}")


class Branches(nn.Module):
    """Four branches side by side, joined, with functional ReLU and pools: shaped like Inception."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.one = nn.Conv2d(16, 8, 1)
        self.three = nn.Conv2d(16, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.five = nn.Conv2d(16, 8, 5, padding="same")
        self.after_pool = nn.Conv2d(16, 8, 1)
        self.head = nn.Linear(32, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        pooled = self.after_pool(F.max_pool2d(x, 3, stride=1, padding=1))
        joined = torch.cat([self.one(x), F.relu(self.norm(self.three(x))), torch.relu(self.five(x)), pooled], dim=1)
        return self.head(F.adaptive_avg_pool2d(joined, 1).flatten(1))


class UsedTwice(nn.Module):
    """One convolution and one norm at two places, a ReLU that changes what a sum reads later."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 12, 3, padding=1)
        self.shared = nn.Conv2d(12, 12, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Conv2d(12, 12, 2, 2)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.norm(self.shared(self.relu(x)))  # x itself is changed here
        y = self.norm(self.shared(y)) + x
        y += x
        return self.head(self.down(y).mean((2, 3)))


class BeforeActivation(nn.Module):
    """Norms before convolutions, swish in between, a projection by slicing: parts that the engine has no step for."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.drop = nn.Dropout(0.5)
        self.wide = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16 * 64, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.drop(self.conv(F.silu(self.norm(x))))
        return self.head(self.wide(x) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 4, 4)))


@pytest.mark.usefixtures("native_wins")
@pytest.mark.filterwarnings("ignore:deploy")
@pytest.mark.parametrize("kind", [Branches, UsedTwice, BeforeActivation])
@pytest.mark.parametrize("batch", [1, 3])
def test_models_shaped_like_other_peoples(kind: type[nn.Module], batch: int) -> None:
    model = prepared(kind(), 0.7)
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(batch, 3, 16, 16)
    deployed = deploy(model, x, threads=1)
    assert_same(deployed, model, x)
    assert_same(deployed, model, torch.randn(5, 3, 16, 16))  # another batch
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    if library.engine() is not None:
        assert parts(deployed, NativeRegion)


@pytest.mark.parametrize(
    ("name", "shape"), [("small_conv", (2, 1, 28, 28)), ("resnet20", (1, 3, 32, 32)), ("small_transformer", (2, 1, 28, 28))]
)
@pytest.mark.filterwarnings("ignore:deploy")
def test_our_small_models(name: str, shape: tuple[int, ...]) -> None:
    model = prepared(models.build(name))
    x = torch.randn(shape)
    assert_same(deploy(model, x, threads=1), model, x)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v1"])
def test_our_large_models(name: str) -> None:
    model = prepared(models.build(name))
    x = torch.randn(1, 3, 96, 96)
    deployed = deploy(model, x, threads=1)
    assert_same(deployed, model, x)
    assert_same(deployed, model, torch.randn(2, 3, 96, 96))
    assert_same(deployed, model, torch.randn(1, 3, 65, 120))  # another size


@pytest.mark.filterwarnings("ignore:deploy")
def test_the_transformer_keeps_its_methods() -> None:
    model = prepared(models.transformer(vocabulary=50, size=32, heads=4, feed_forward=64, encoder_layers=1, decoder_layers=2))
    source, target = torch.randint(1, 50, (2, 7)), torch.randint(1, 50, (2, 5))
    deployed = deploy(model, (source, target), threads=1)
    assert_same(deployed, model, source, target)
    with torch.no_grad():
        memory = model.encode(source)
        assert torch.allclose(deployed.encode(source), memory, rtol=1e-5, atol=1e-5)
        assert torch.allclose(deployed.decode(target, memory), model.decode(target, memory), rtol=1e-5, atol=1e-5)
        assert torch.equal(deployed.generate(source, 1, 2, 6), model.generate(source, 1, 2, 6))


class DataDependent(nn.Module):
    """What torch.fx cannot capture: a branch on a value, around a convolutional part that it can."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.sum()) > 1e9:
            x = -x
        return self.head(self.body(x).flatten(1))


@needs_engine
@pytest.mark.usefixtures("native_wins")
def test_a_model_that_cannot_be_captured_keeps_its_structure_and_says_so() -> None:
    model = prepared(DataDependent(), 0.6)
    x = torch.randn(2, 3, 12, 12)
    with pytest.warns(UserWarning, match="keeps its structure and its layers are replaced one by one"):
        deployed = deploy(model, x, threads=1)
    assert isinstance(deployed, Deployed)
    assert isinstance(deployed.module, DataDependent)
    assert any("torch.fx cannot capture it" in note for note in deployed.notes)
    assert_same(deployed, model, x)
    assert parts(deployed, NativeRegion)
    assert parts(deployed, PackedLinear)


@needs_engine
def test_attention_that_reads_its_layers_is_left_alone() -> None:
    model = prepared(nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1), 0.5)
    x = torch.randn(2, 5, 16)
    with pytest.warns(UserWarning, match="deploy"):
        deployed = deploy(model, x, threads=1)
    assert_same(deployed, model, x)


def test_without_the_library_everything_is_dense(choose_kernels: Callable[[str], None]) -> None:
    choose_kernels("off")
    model = prepared(Branches(), 0.7)
    x = torch.randn(2, 3, 16, 16)
    with pytest.warns(UserWarning, match="dense torch: switched off by AUTOSPARSE_KERNELS=off"):
        deployed = deploy(model, x)
    assert_same(deployed, model, x)
    assert not parts(deployed, NativeRegion)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in deployed.modules())  # still folded


def test_it_is_for_evaluation_on_the_cpu_in_float32() -> None:
    deployed = deploy(prepared(models.small_conv()), torch.randn(1, 1, 28, 28), threads=1)
    assert not deployed.training
    assert deployed.eval() is deployed
    with pytest.raises(RuntimeError, match="cannot be trained"):
        deployed.train()
    with pytest.raises(RuntimeError, match="stays on the CPU in float32"):
        deployed.half()
    assert not deployed(torch.randn(1, 1, 28, 28, requires_grad=True)).requires_grad


def test_refusals() -> None:
    x = torch.randn(2, 1, 28, 28)
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module, got str"):
        deploy("model", x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads=0"):
        deploy(models.small_conv(), x, threads=0)
    sparse = models.small_conv()
    autosparse.sparsify(sparse, autosparse.AutoSparse(), epochs=1, steps_per_epoch=1)
    with pytest.raises(ValueError, match=r"call sparsifier\.finalize\(\) first"):
        deploy(sparse, x)
    deployed = deploy(prepared(models.small_conv()), x, threads=1)
    with pytest.raises(TypeError, match="deployed already"):
        deploy(deployed, x)


@needs_engine
@pytest.mark.usefixtures("native_wins")
def test_the_table_names_every_layer() -> None:
    model = prepared(models.small_conv())
    x = torch.randn(1, 1, 28, 28)
    deployed = deploy(model, x, threads=1)
    assert isinstance(deployed, Deployed)
    rows = deployed.layers(x)
    assert [row.name for row in rows] == ["conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "fc"]
    assert all(row.density <= 0.11 for row in rows)
    assert all(row.microseconds is not None and row.microseconds > 0 for row in rows[:6])


@needs_engine
def test_packed_linear_for_any_number_of_tokens() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(50, 37)
    with torch.no_grad():
        layer.weight *= torch.rand_like(layer.weight) < 0.2
    packed = PackedLinear("layer", layer, library.engine(), 1, low=0.0)
    for shape in ((50,), (1, 50), (3, 50), (2, 40, 50), (0, 50)):
        x, other = torch.randn(shape), torch.randn(*shape[:-1], 37)
        with torch.no_grad():
            expected = F.relu(layer(x) + other)
            assert torch.allclose(packed(x, other), expected, rtol=1e-5, atol=1e-5)
            if x.numel():
                for way in packed.ways(x.numel() // 50):
                    assert torch.allclose(packed.compute(way, x, other), expected, rtol=1e-5, atol=1e-5)


def test_a_registered_decoder_serves_its_class_and_subclasses(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(Deployed):
        """Has a method of its own, as decoders do."""

        def count(self, x: Tensor) -> int:
            return len(self(x))

    class Writer(nn.Linear):
        """Cannot be captured, so that its class survives."""

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if float(x.sum()) < 1e9 else x

    class Narrow(Writer):
        pass

    monkeypatch.setattr(decoders, "DECODERS", dict(decoders.DECODERS))
    register_decoder(Writer, Counting)
    for kind in (Writer, Narrow):
        with pytest.warns(UserWarning, match="deploy"):
            deployed = deploy(kind(4, 2).eval(), torch.randn(3, 4), threads=1)
        assert isinstance(deployed, Counting)
        assert deployed.count(torch.randn(3, 4)) == 3


class MisleadingName(nn.Module):
    """A submodule that is named like a ReLU and is none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.last = nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.relu(self.first(x)))


def test_a_module_is_what_its_class_says() -> None:
    model = prepared(MisleadingName(), 0.5)
    x = torch.randn(4, 6)
    deployed = deploy(model, x, threads=1)
    assert isinstance(deployed, Deployed)
    assert not any("something else" in note for note in deployed.notes)
    assert_same(deployed, model, x)
