"""ResNets for CIFAR: published sizes, the option A shortcut of ResNet-20 and ResNet-32, the small stem of ResNet-18."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from autosparse.models import resnet18_cifar, resnet20, resnet32
from autosparse.models.cifar_resnet import BasicBlock

from .counting import macs, parameter_count, prunable


def by_hand(blocks: int) -> int:
    """9 * in * out a convolution, two numbers a channel of batch norm, the classifier with bias; shortcuts are free."""
    layers = [(3, 16)] + [(16, 16)] * 2 * blocks
    layers += [(16, 32)] + [(32, 32)] * (2 * blocks - 1) + [(32, 64)] + [(64, 64)] * (2 * blocks - 1)
    return sum(9 * inputs * outputs + 2 * outputs for inputs, outputs in layers) + 64 * 10 + 10


@pytest.mark.parametrize(
    ("model", "blocks", "depth", "parameters", "millions"),
    [(resnet20, 3, 20, 269_722, 0.27), (resnet32, 5, 32, 464_154, 0.46)],
)
def test_parameters_are_the_published_ones(
    model: Callable[[], nn.Module], blocks: int, depth: int, parameters: int, millions: float
) -> None:
    with torch.device("meta"):
        net = model()
    assert parameter_count(net) == by_hand(blocks) == parameters
    assert round(parameters / 1e6, 2) == millions
    assert len(prunable(net)) == depth


def test_macs_of_resnet20() -> None:
    with torch.device("meta"):
        net = resnet20()
    stem = 432 * 1024
    stages = 6 * 2304 * 1024 + (4608 + 5 * 9216) * 256 + (18432 + 5 * 36864) * 64
    assert macs(net, 3, 32, 32) == stem + stages + 640 == 40_551_040


def test_resnet18_for_small_images() -> None:
    with torch.device("meta"):
        net = resnet18_cifar()
    assert parameter_count(net) == 11_173_962
    assert macs(net, 3, 32, 32) == 555_422_720
    assert len(prunable(net)) == 21
    narrow = resnet18_cifar(classes=7, in_channels=1, width=4)
    assert narrow(torch.randn(2, 1, 32, 32)).shape == (2, 7)
    assert narrow.layer4(narrow.layer3(narrow.layer2(torch.randn(1, 4, 32, 32)))).shape == (1, 32, 4, 4)


def test_shortcut_samples_pixels_and_pads_channels_on_both_sides() -> None:
    block = BasicBlock(2, 4, stride=2)
    images = torch.arange(32.0).reshape(1, 2, 4, 4)
    shortcut = block.shortcut(images)
    assert shortcut.shape == (1, 4, 2, 2)
    assert shortcut[0, 0].count_nonzero() == shortcut[0, 3].count_nonzero() == 0
    assert shortcut[0, 1].tolist() == [[0.0, 2.0], [8.0, 10.0]]
    assert shortcut[0, 2].tolist() == [[16.0, 18.0], [24.0, 26.0]]


def test_output_shape_names_and_classes() -> None:
    net = resnet32(classes=100, in_channels=1)
    assert net(torch.randn(2, 1, 32, 32)).shape == (2, 100)
    assert {"conv1", "layer1.4.conv2", "layer3.0.conv1", "fc"} <= set(prunable(net))


def test_symbolic_trace_computes_the_same() -> None:
    net = resnet20().eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(torch.fx.symbolic_trace(net)(images), net(images))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="classes must be at least 1, got 0"):
        resnet20(classes=0)
    with pytest.raises(ValueError, match="in_channels must be at least 1, got 0"):
        resnet32(in_channels=0)


def test_convolutions_start_from_fan_out() -> None:
    weight = resnet20().get_submodule("layer3.1.conv1").weight
    assert isinstance(weight, torch.Tensor)
    assert weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)
