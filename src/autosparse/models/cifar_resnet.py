"""ResNets for 32x32 images: ResNet-20 and ResNet-32 (He et al. 2015, section 4.2), and ResNet-18 with a small stem.

Shortcuts of the first two are option A (subsample, pad with zero channels): no parameters, so 0.27 M and 0.46 M as published.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from autosparse.models.checks import whole
from autosparse.models.layers import conv, kaiming_fan_out


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around an option A shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.new_channels = outputs - inputs
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)

    def shortcut(self, images: Tensor) -> Tensor:
        """Every stride-th pixel, with half of the new zero channels on either side."""
        if self.stride == 1 and self.new_channels == 0:
            return images
        before = self.new_channels // 2
        sampled = images[:, :, :: self.stride, :: self.stride]
        return F.pad(sampled, (0, 0, 0, 0, before, self.new_channels - before))

    def forward(self, images: Tensor) -> Tensor:
        shortcut = self.shortcut(images)
        branch = self.relu(self.bn1(self.conv1(images)))
        branch = self.bn2(self.conv2(branch))
        result: Tensor = self.relu(branch + shortcut)
        return result


class ProjectedBlock(BasicBlock):
    """The same around a shortcut that is a 1x1 convolution where the shape changes; names as in torchvision."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, stride)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def shortcut(self, images: Tensor) -> Tensor:
        projected: Tensor = images if self.downsample is None else self.downsample(images)
        return projected


class CifarResNet(nn.Module):
    """A 3x3 stem without pooling, stages of blocks, of which all but the first halve the image, and the classifier `fc`."""

    def __init__(self, block: type[BasicBlock], widths: Sequence[int], blocks: int, classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = conv(whole("in_channels", in_channels), widths[0], 3)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.stages = [f"layer{number}" for number in range(1, len(widths) + 1)]
        for name, inputs, outputs in zip(self.stages, (widths[0], *widths), widths, strict=False):
            first = block(inputs, outputs, 1 if name == "layer1" else 2)
            self.add_module(name, nn.Sequential(first, *(block(outputs, outputs, 1) for _ in range(blocks - 1))))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(widths[-1], whole("classes", classes))
        kaiming_fan_out(self)

    def forward(self, images: Tensor) -> Tensor:
        features = self.relu(self.bn1(self.conv1(images)))
        for name in self.stages:
            features = getattr(self, name)(features)
        logits: Tensor = self.fc(self.avgpool(features).flatten(1))
        return logits


class WideCifarResNet(CifarResNet):
    """ResNet-18 for 32x32 images: four stages of two blocks."""


def resnet20(classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """ResNet-20 for CIFAR: three blocks per stage."""
    return CifarResNet(BasicBlock, (16, 32, 64), 3, classes, in_channels)


def resnet32(classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """ResNet-32 for CIFAR: five blocks per stage."""
    return CifarResNet(BasicBlock, (16, 32, 64), 5, classes, in_channels)


def resnet18_cifar(classes: int = 10, in_channels: int = 3, width: int = 64) -> WideCifarResNet:
    """ResNet-18 with a 3x3 stem and no pooling, for 32x32 images: 11.2 M weights; `width` is that of the first stage."""
    widths = [whole("width", width) * 2**stage for stage in range(4)]
    return WideCifarResNet(ProjectedBlock, widths, 2, classes, in_channels)
