"""Small networks for the rows of a table and for short texts."""

import torch
from torch import Tensor, nn

from autosparse.models.checks import whole
from autosparse.models.small import SmallBlock


def mlp(in_features: int = 64, classes: int = 2, width: int = 256, layers: int = 3) -> nn.Sequential:
    """Linear layers with ReLU and layer norm between, for rows of numbers."""
    sizes = [whole("in_features", in_features), *[whole("width", width)] * (whole("layers", layers) - 1)]
    parts: list[nn.Module] = []
    for inputs in sizes[:-1]:
        parts += [nn.Linear(inputs, width), nn.LayerNorm(width), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(sizes[-1], whole("classes", classes)))


class TextClassifier(nn.Module):
    """Embedded words, learned positions, pre-norm blocks, mean over the words that are there; id 0 is none."""

    def __init__(self, classes: int, vocabulary: int, length: int, size: int, blocks: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(whole("vocabulary", vocabulary), whole("size", size), padding_idx=0)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(whole("length", length), size))
        self.blocks = nn.Sequential(*(SmallBlock(size, heads, 4 * size) for _ in range(whole("blocks", blocks))))
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, whole("classes", classes))

    def forward(self, words: Tensor) -> Tensor:
        if words.ndim != 2 or words.shape[1] > len(self.positions):
            raise ValueError(f"words must be (batch, up to {len(self.positions)} ids), got {tuple(words.shape)}")
        there = (words != 0).unsqueeze(-1).to(self.positions.dtype)
        states = self.norm(self.blocks((self.embed(words) + self.positions[: words.shape[1]]) * there))
        logits: Tensor = self.head((states * there).sum(dim=1) / there.sum(dim=1).clamp(min=1))
        return logits


def text_classifier(
    classes: int = 2, vocabulary: int = 20_000, length: int = 64, size: int = 64, blocks: int = 2, heads: int = 4
) -> TextClassifier:
    """A small Transformer over the words of a text."""
    return TextClassifier(classes, vocabulary, length, size, blocks, heads)
