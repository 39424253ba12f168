"""MobileNetV1: published counts at every width, STR's options."""

import math

import pytest
import torch
from torch import nn

from autosparse.models import mobilenet_v1

from .counting import macs, parameter_count, prunable


def test_parameters_and_macs_are_the_published_ones() -> None:
    with torch.device("meta"):
        model = mobilenet_v1()
    assert parameter_count(model) == 4_231_976
    weights = prunable(model)
    assert len(weights) == 28
    assert sum(weights.values()) == 4_209_088
    assert macs(model, 3, 224, 224) == 568_740_352


@pytest.mark.parametrize(
    ("width", "millions_of_macs", "millions_of_parameters"),
    [(1.0, 569, 4.2), (0.75, 325, 2.6), (0.5, 149, 1.3), (0.25, 41, 0.5)],
)
def test_widths_agree_with_the_table_of_the_paper(width: float, millions_of_macs: int, millions_of_parameters: float) -> None:
    with torch.device("meta"):
        model = mobilenet_v1(width)
    assert round(macs(model, 3, 224, 224) / 1e6) == pytest.approx(millions_of_macs, abs=1)
    assert round(parameter_count(model) / 1e6, 1) == millions_of_parameters


def test_conv_classifier_has_no_bias() -> None:
    with torch.device("meta"):
        model = mobilenet_v1(classifier="conv")
    assert isinstance(model.fc, nn.Conv2d)
    assert parameter_count(model) == 4_231_976 - 1000
    assert sum(prunable(model).values()) == 4_209_088
    assert macs(model, 3, 224, 224) == 568_740_352


def test_strides_groups_and_names() -> None:
    with torch.device("meta"):
        model = mobilenet_v1()
    names = list(prunable(model))
    assert names[:3] == ["conv1", "blocks.0.depthwise", "blocks.0.pointwise"]
    assert names[-2:] == ["blocks.12.pointwise", "fc"]
    depthwise = [module for name, module in model.named_modules() if name.endswith("depthwise")]
    assert [module.stride[0] for module in depthwise if isinstance(module, nn.Conv2d)] == [
        *(1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
    ]
    assert all(module.groups == module.in_channels for module in depthwise if isinstance(module, nn.Conv2d))


@pytest.mark.parametrize("classifier", ["linear", "conv"])
def test_symbolic_trace_computes_the_same(classifier: str) -> None:
    model = mobilenet_v1(0.25, classes=5, in_channels=1, classifier=classifier).eval()  # type: ignore[arg-type]
    images = torch.randn(2, 1, 64, 48)
    logits = model(images)
    assert logits.shape == (2, 5)
    assert torch.equal(torch.fx.symbolic_trace(model)(images), logits)


def test_initialisations_have_the_deviation_they_promise() -> None:
    torch_bound = 1 / math.sqrt(512)
    fan_out = mobilenet_v1()
    weights = {name: module.weight for name, module in fan_out.named_modules() if isinstance(module, nn.Conv2d)}
    assert weights["blocks.11.pointwise"].std().item() == pytest.approx(math.sqrt(2 / 1024), rel=0.01)
    # one input of a depthwise convolution feeds nine products
    assert weights["blocks.7.depthwise"].std().item() == pytest.approx(math.sqrt(2 / 9), rel=0.05)

    like_str = mobilenet_v1(classifier="conv", init="str")
    weights = {name: module.weight for name, module in like_str.named_modules() if isinstance(module, nn.Conv2d)}
    assert weights["blocks.11.pointwise"].abs().max().item() <= torch_bound
    assert weights["blocks.11.pointwise"].std().item() == pytest.approx(torch_bound / math.sqrt(3), rel=0.01)
    assert weights["fc"].std().item() == pytest.approx(math.sqrt(2 / 1024), rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"width": 0.0}, ValueError, "width must be a positive number .* got 0.0"),
        ({"width": float("nan")}, ValueError, "width must be a positive number .* got nan"),
        ({"width": float("inf")}, ValueError, "width must be a positive number .* got inf"),
        ({"classes": 0}, ValueError, "classes must be at least 1, got 0"),
        ({"in_channels": 0}, ValueError, "in_channels must be at least 1, got 0"),
        ({"classifier": "mlp"}, ValueError, "classifier must be one of 'linear', 'conv', got 'mlp'"),
        ({"init": "default"}, ValueError, "init must be one of 'fan_out', 'str', got 'default'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with torch.device("meta"), pytest.raises(error, match=message):
        mobilenet_v1(**arguments)  # type: ignore[arg-type]
