"""Pieces that several convolutional networks share: convolutions without bias, the classifier, initialisation."""

import math
from typing import Literal

from torch import Tensor, nn

from autosparse.models.checks import one_of, whole

Classifier = Literal["linear", "conv"]
Init = Literal["fan_out", "str"]


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias whose padding keeps the size at stride 1."""
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)


def classifier_layer(kind: Classifier, features: int, classes: int) -> nn.Module:
    """Linear with bias, or STR's 1x1 convolution without bias, whose weight is the only tensor left to count."""
    one_of("classifier", kind, ("linear", "conv"))
    whole("classes", classes)
    return nn.Linear(features, classes) if kind == "linear" else conv(features, classes, 1)


def classify(layer: nn.Module, pooled: Tensor, kind: Classifier) -> Tensor:
    """Logits (batch, classes) from pooled features (batch, channels, 1, 1)."""
    logits: Tensor = layer(pooled.flatten(1)) if kind == "linear" else layer(pooled).flatten(1)
    return logits


def kaiming_fan_out(model: nn.Module) -> None:
    """He normal initialisation of every convolution from the weights that one input feeds, groups accounted for."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan = module.out_channels * math.prod(module.kernel_size) / module.groups
            nn.init.normal_(module.weight, std=math.sqrt(2.0 / fan))


def kaiming_fan_in(module: nn.Module) -> None:
    """He normal initialisation, gain of ReLU, of one weight or of every convolution and linear layer below."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu")
