"""ResNets for 32x32 images: ResNet-20 and ResNet-32 (He et al. 2015, section 4.2), and ResNet-18 with a small stem.

Shortcuts of the first two are option A (subsample, pad with zero channels): no parameters, so 0.27 M and 0.46 M as published.
"""

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
        branch = self.relu(self.bn1(self.conv1(images)))
        branch = self.bn2(self.conv2(branch))
        result: Tensor = self.relu(branch + self.shortcut(images))
        return result


class ProjectedBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut that is a 1x1 convolution where the shape changes; names as in torchvision."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        shortcut = images if self.downsample is None else self.downsample(images)
        branch = self.relu(self.bn1(self.conv1(images)))
        branch = self.bn2(self.conv2(branch))
        result: Tensor = self.relu(branch + shortcut)
        return result


class WideCifarResNet(nn.Module):
    """ResNet-18 for 32x32 images: a 3x3 stem without pooling, four stages of two blocks, and the classifier `fc`."""

    def __init__(self, width: int, classes: int, in_channels: int) -> None:
        super().__init__()
        widths = [whole("width", width) * 2**stage for stage in range(4)]
        self.conv1 = conv(whole("in_channels", in_channels), widths[0], 3)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = _projected_stage(widths[0], widths[0], stride=1)
        self.layer2 = _projected_stage(widths[0], widths[1], stride=2)
        self.layer3 = _projected_stage(widths[1], widths[2], stride=2)
        self.layer4 = _projected_stage(widths[2], widths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(widths[-1], whole("classes", classes))
        kaiming_fan_out(self)

    def forward(self, images: Tensor) -> Tensor:
        features = self.relu(self.bn1(self.conv1(images)))
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        logits: Tensor = self.fc(self.avgpool(features).flatten(1))
        return logits


class CifarResNet(nn.Module):
    """6n + 2 layers: a 3x3 stem, three stages of n blocks with 16, 32 and 64 channels, and the classifier `fc`."""

    def __init__(self, blocks: int, classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = conv(whole("in_channels", in_channels), 16, 3)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(64, whole("classes", classes))
        kaiming_fan_out(self)

    def forward(self, images: Tensor) -> Tensor:
        features = self.relu(self.bn1(self.conv1(images)))
        features = self.layer3(self.layer2(self.layer1(features)))
        logits: Tensor = self.fc(self.avgpool(features).flatten(1))
        return logits


def _projected_stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(ProjectedBlock(inputs, outputs, stride), ProjectedBlock(outputs, outputs, 1))


def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    rest = [BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1)]
    return nn.Sequential(BasicBlock(inputs, outputs, stride), *rest)


def resnet20(classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """ResNet-20 for CIFAR: three blocks per stage."""
    return CifarResNet(3, classes, in_channels)


def resnet32(classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """ResNet-32 for CIFAR: five blocks per stage."""
    return CifarResNet(5, classes, in_channels)


def resnet18_cifar(classes: int = 10, in_channels: int = 3, width: int = 64) -> WideCifarResNet:
    """ResNet-18 with a 3x3 stem and no pooling, for 32x32 images: 11.2 M weights; `width` is that of the first stage."""
    return WideCifarResNet(width, classes, in_channels)
