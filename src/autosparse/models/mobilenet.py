"""MobileNetV1 (Howard et al. 2017): depthwise separable convolutions, with a width multiplier."""

from torch import Tensor, nn

from autosparse.models.checks import one_of, whole
from autosparse.models.layers import Classifier, Init, classifier_layer, classify, conv, kaiming_fan_in, kaiming_fan_out

# (output channels at width 1, stride) of the thirteen separable convolutions
SEPARABLE = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


class Separable(nn.Module):
    """A 3x3 depthwise convolution, then a 1x1 pointwise one, each with batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.depthwise = conv(inputs, inputs, 3, stride, groups=inputs)
        self.depthwise_bn = nn.BatchNorm2d(inputs)
        self.pointwise = conv(inputs, outputs, 1)
        self.pointwise_bn = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        features = self.relu(self.depthwise_bn(self.depthwise(images)))
        result: Tensor = self.relu(self.pointwise_bn(self.pointwise(features)))
        return result


class MobileNetV1(nn.Module):
    """A 3x3 stem, thirteen separable convolutions, global average pooling and the classifier `fc`."""

    def __init__(self, width: float, classes: int, in_channels: int, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier
        channels = _scaled(32, width)
        self.conv1 = conv(whole("in_channels", in_channels), channels, 3, stride=2)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.blocks = nn.Sequential()
        for base, stride in SEPARABLE:
            self.blocks.append(Separable(channels, _scaled(base, width), stride))
            channels = _scaled(base, width)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = classifier_layer(classifier, channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.blocks(self.relu(self.bn1(self.conv1(images))))
        return classify(self.fc, self.avgpool(features), self.classifier)


def _scaled(channels: int, width: float) -> int:
    return max(1, int(channels * width))


def mobilenet_v1(
    width: float = 1.0,
    classes: int = 1000,
    in_channels: int = 3,
    classifier: Classifier = "linear",
    init: Init = "fan_out",
) -> MobileNetV1:
    """MobileNetV1; init "str" leaves PyTorch's default on all but the classifier, which gets fan_in, as STR does.

    `classifier="conv"` is STR's 1x1 convolution without bias.
    """
    if not 0.0 < width < float("inf"):
        raise ValueError(f"width must be a positive number such as 1.0 or 0.5, got {width}")
    one_of("init", init, ("fan_out", "str"))
    model = MobileNetV1(width, classes, in_channels, classifier)
    if init == "str":
        kaiming_fan_in(model.fc)
    else:
        kaiming_fan_out(model)
    return model
