"""ResNet-50 v1.5: published counts, torchvision's names, STR's options."""

import math

import pytest
import torch
from torch import nn

from autosparse.models import resnet50
from autosparse.models.resnet import Bottleneck

from .counting import macs, parameter_count, prunable

BLOCK = "conv1 bn1 conv2 bn2 conv3 bn3"
FIRST = BLOCK + " downsample.0 downsample.1"
TORCHVISION = {
    "layer1.0": FIRST,
    "layer1.1": BLOCK,
    "layer1.2": BLOCK,
    "layer2.0": FIRST,
    "layer2.1": BLOCK,
    "layer2.2": BLOCK,
    "layer2.3": BLOCK,
    "layer3.0": FIRST,
    "layer3.1": BLOCK,
    "layer3.2": BLOCK,
    "layer3.3": BLOCK,
    "layer3.4": BLOCK,
    "layer3.5": BLOCK,
    "layer4.0": FIRST,
    "layer4.1": BLOCK,
    "layer4.2": BLOCK,
}


@pytest.fixture
def on_meta() -> nn.Module:
    with torch.device("meta"):
        return resnet50()


def test_parameters_and_macs_are_the_published_ones(on_meta: nn.Module) -> None:
    assert parameter_count(on_meta) == 25_557_032
    weights = prunable(on_meta)
    assert len(weights) == 54
    assert sum(weights.values()) == 25_502_912
    assert macs(on_meta, 3, 224, 224) == 4_089_184_256


def test_conv_classifier_leaves_only_prunable_weights_and_batch_norm() -> None:
    with torch.device("meta"):
        model = resnet50(classifier="conv")
    assert isinstance(model.fc, nn.Conv2d)
    assert model.fc.bias is None
    assert parameter_count(model) == 25_557_032 - 1000
    weights = prunable(model)
    assert len(weights) == 54
    assert sum(weights.values()) == 25_502_912
    assert macs(model, 3, 224, 224) == 4_089_184_256


def test_modules_with_parameters_are_named_as_in_torchvision(on_meta: nn.Module) -> None:
    expected = ["conv1", "bn1"]
    for block, members in TORCHVISION.items():
        expected += [f"{block}.{member}" for member in members.split()]
    expected.append("fc")
    named = [name for name, module in on_meta.named_modules() if list(module.parameters(recurse=False))]
    assert named == expected


def test_state_keys_have_torchvision_shapes(on_meta: nn.Module) -> None:
    shapes = {name: tuple(value.shape) for name, value in on_meta.state_dict().items()}
    assert len(shapes) == 320
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["layer1.0.downsample.0.weight"] == (256, 64, 1, 1)
    assert shapes["layer2.0.conv2.weight"] == (128, 128, 3, 3)
    assert shapes["layer4.2.bn3.running_var"] == (2048,)
    assert shapes["fc.weight"] == (1000, 2048)
    assert shapes["fc.bias"] == (1000,)


def test_stride_is_in_the_three_by_three_convolution(on_meta: nn.Module) -> None:
    first = on_meta.get_submodule("layer2.0")
    assert isinstance(first, Bottleneck)
    assert [first.conv1.stride, first.conv2.stride, first.conv3.stride] == [(1, 1), (2, 2), (1, 1)]


@pytest.mark.parametrize("classifier", ["linear", "conv"])
def test_output_shape_follows_classes_and_channels(classifier: str) -> None:
    with torch.device("meta"):
        model = resnet50(classes=7, in_channels=1, classifier=classifier)  # type: ignore[arg-type]
        assert model(torch.empty(2, 1, 64, 48)).shape == (2, 7)


def test_initialisations_have_the_deviation_they_promise() -> None:
    torchvision, like_str = resnet50(), resnet50(init="str", classifier="conv")
    for name, fan_in, fan_out in (("layer1.0.conv3", 64, 256), ("layer2.0.conv1", 256, 128), ("conv1", 147, 3136)):
        for model, fan in ((torchvision, fan_out), (like_str, fan_in)):
            weight = model.get_submodule(name).weight
            assert isinstance(weight, torch.Tensor)
            assert weight.std().item() == pytest.approx(math.sqrt(2 / fan), rel=0.03)
    assert isinstance(like_str.fc.weight, torch.Tensor)
    assert like_str.fc.weight.std().item() == pytest.approx(math.sqrt(2 / 2048), rel=0.01)
    assert isinstance(torchvision.fc.weight, torch.Tensor)
    assert torchvision.fc.weight.abs().max().item() <= 1 / math.sqrt(2048)  # torch's own uniform initialisation


def test_zero_init_residual_makes_a_block_its_shortcut() -> None:
    model = resnet50(zero_init_residual=True).eval()
    images = torch.rand(1, 256, 4, 4)
    block = model.get_submodule("layer1.1")
    assert torch.equal(block(images), images)
    assert not torch.equal(resnet50().eval().get_submodule("layer1.1")(images), images)


@pytest.mark.parametrize("classifier", ["linear", "conv"])
def test_symbolic_trace_computes_the_same(classifier: str) -> None:
    model = resnet50(classes=5, classifier=classifier).eval()  # type: ignore[arg-type]
    images = torch.randn(1, 3, 32, 32)
    traced = torch.fx.symbolic_trace(model)
    with torch.no_grad():
        assert torch.equal(traced(images), model(images))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"classes": 0}, ValueError, "classes must be at least 1, got 0"),
        ({"classes": 2.5}, TypeError, "classes must be a whole number, got 2.5"),
        ({"in_channels": -1}, ValueError, "in_channels must be at least 1, got -1"),
        ({"classifier": "mlp"}, ValueError, "classifier must be one of 'linear', 'conv', got 'mlp'"),
        ({"init": "xavier"}, ValueError, "init must be one of 'fan_out', 'str', got 'xavier'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with torch.device("meta"), pytest.raises(error, match=message):
        resnet50(**arguments)  # type: ignore[arg-type]
