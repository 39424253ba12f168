"""ResNet-50 v1.5 (He et al. 2015, the stride in the 3x3 convolution); modules are named as in torchvision."""

from torch import Tensor, nn

from autosparse.models.checks import one_of, whole
from autosparse.models.layers import Classifier, Init, classifier_layer, classify, conv, kaiming_fan_in, kaiming_fan_out

EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride), 1x1 around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.conv1 = conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        shortcut = images if self.downsample is None else self.downsample(images)
        branch = self.relu(self.bn1(self.conv1(images)))
        branch = self.relu(self.bn2(self.conv2(branch)))
        branch = self.bn3(self.conv3(branch))
        result: Tensor = self.relu(branch + shortcut)
        return result


class ResNet(nn.Module):
    """A 7x7 stem, four stages of bottlenecks, global average pooling and the classifier `fc`."""

    def __init__(self, blocks: tuple[int, int, int, int], classes: int, in_channels: int, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier
        self.conv1 = conv(whole("in_channels", in_channels), 64, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = _stage(64, 64, blocks[0], stride=1)
        self.layer2 = _stage(256, 128, blocks[1], stride=2)
        self.layer3 = _stage(512, 256, blocks[2], stride=2)
        self.layer4 = _stage(1024, 512, blocks[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = classifier_layer(classifier, 2048, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        return classify(self.fc, self.avgpool(features), self.classifier)


def _stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    rest = [Bottleneck(width * EXPANSION, width, 1) for _ in range(blocks - 1)]
    return nn.Sequential(Bottleneck(inputs, width, stride), *rest)


def resnet50(
    classes: int = 1000,
    in_channels: int = 3,
    classifier: Classifier = "linear",
    init: Init = "fan_out",
    zero_init_residual: bool = False,
) -> ResNet:
    """ResNet-50 v1.5; init "fan_out" is torchvision's, "str" is STR's (fan_in, the classifier too).

    `classifier="conv"` is STR's 1x1 convolution without bias; `zero_init_residual` starts every block as its shortcut.
    """
    one_of("init", init, ("fan_out", "str"))
    model = ResNet((3, 4, 6, 3), classes, in_channels, classifier)
    if init == "str":
        kaiming_fan_in(model)
    else:
        kaiming_fan_out(model)
    if zero_init_residual:
        for module in model.modules():
            if isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)
    return model
