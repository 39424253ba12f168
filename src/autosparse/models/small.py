"""Two small image classifiers that a CPU trains in seconds: a plain convolutional net and a Transformer over rows."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from autosparse.models.attention import Attention, FeedForward
from autosparse.models.checks import whole
from autosparse.models.layers import conv


class SmallConv(nn.Sequential):
    """Six 3x3 convolutions with batch norm and ReLU, global average pooling, a linear classifier; no biases."""

    def __init__(self, classes: int, in_channels: int, width: int) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        whole("width", width)
        channels = whole("in_channels", in_channels)
        shape = ((width, 2), (width, 1), (2 * width, 2), (2 * width, 1), (4 * width, 2), (4 * width, 1))
        for number, (outputs, stride) in enumerate(shape, start=1):
            layers[f"conv{number}"] = conv(channels, outputs, 3, stride)
            layers[f"bn{number}"] = nn.BatchNorm2d(outputs)
            layers[f"relu{number}"] = nn.ReLU(inplace=True)
            channels = outputs
        layers["avgpool"] = nn.AdaptiveAvgPool2d((1, 1))
        layers["flatten"] = nn.Flatten()
        layers["fc"] = nn.Linear(channels, whole("classes", classes), bias=False)
        super().__init__(layers)


class SmallBlock(nn.Module):
    """A pre-norm Transformer block."""

    def __init__(self, size: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size)
        self.attention = Attention(size, heads)
        self.feed_forward_norm = nn.LayerNorm(size)
        self.feed_forward = FeedForward(size, feed_forward)

    def forward(self, states: Tensor) -> Tensor:
        inner = self.attention_norm(states)
        states = states + self.attention(inner, inner)
        result: Tensor = states + self.feed_forward(self.feed_forward_norm(states))
        return result


class SmallTransformer(nn.Module):
    """Tokens are groups of adjacent rows of the image; learned positions, pre-norm blocks, mean over tokens."""

    def __init__(
        self,
        classes: int,
        in_channels: int,
        image_size: int,
        rows: int,
        size: int,
        blocks: int,
        heads: int,
        feed_forward: int,
    ) -> None:
        super().__init__()
        whole("rows", rows)
        if whole("image_size", image_size) % rows:
            raise ValueError(f"image_size must be a multiple of rows, got {image_size} and {rows} rows per token")
        self.image_shape = (whole("in_channels", in_channels), image_size, image_size)
        self.token_shape = (image_size // rows, in_channels * rows * image_size)
        self.embed = nn.Linear(self.token_shape[1], whole("size", size))
        self.positions = nn.Parameter(0.02 * torch.randn(self.token_shape[0], size))
        self.blocks = nn.Sequential(*(SmallBlock(size, heads, feed_forward) for _ in range(whole("blocks", blocks))))
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, whole("classes", classes))

    def forward(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self.image_shape:
            raise ValueError(f"images must be (batch, {', '.join(map(str, self.image_shape))}), got {tuple(images.shape)}")
        tokens = images.transpose(1, 2).reshape(images.shape[0], *self.token_shape)
        states = self.blocks(self.embed(tokens) + self.positions)
        logits: Tensor = self.head(self.norm(states).mean(dim=1))
        return logits


def small_conv(classes: int = 10, in_channels: int = 1, width: int = 16) -> SmallConv:
    """Channels 1, 1, 2, 2, 4, 4 times `width`, stride 2 in every other layer; 72,208 weights for grey images."""
    return SmallConv(classes, in_channels, width)


def small_transformer(
    classes: int = 10,
    in_channels: int = 1,
    image_size: int = 28,
    rows: int = 2,
    size: int = 64,
    blocks: int = 2,
    heads: int = 4,
    feed_forward: int = 128,
) -> SmallTransformer:
    """14 tokens of two rows for 28x28 images; for 8x8 digits use image_size=8, rows=1 (eight tokens)."""
    return SmallTransformer(classes, in_channels, image_size, rows, size, blocks, heads, feed_forward)
