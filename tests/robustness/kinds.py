"""One small model for every kind of layer, with its MACs by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Recurrent(nn.Module):
    """A recurrent layer whose output sequence is the answer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.rnn = layer

    def forward(self, sequence: Tensor) -> Tensor:
        output: Tensor = self.rnn(sequence)[0]
        return output


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 5)

    def forward(self, sequence: Tensor) -> Tensor:
        state = (sequence.new_zeros(sequence.shape[0], 5), sequence.new_zeros(sequence.shape[0], 5))
        for position in range(sequence.shape[1]):
            state = self.cell(sequence[:, position], state)
        return state[0]


class Attending(nn.Module):
    """Attention of a sequence to itself, or to a narrower one, which needs projections of their own."""

    def __init__(self, narrow: int | None = None) -> None:
        super().__init__()
        self.narrow = narrow
        self.mha = nn.MultiheadAttention(8, 2, kdim=narrow, vdim=narrow, batch_first=True)

    def forward(self, sequence: Tensor) -> Tensor:
        source = sequence if self.narrow is None else sequence[..., : self.narrow]
        output: Tensor = self.mha(sequence, source, source, need_weights=False)[0]
        return output


class Named(nn.Module):
    """A parameter that no layer owns."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.mixing = nn.Parameter(torch.randn(8, 6))

    def forward(self, data: Tensor) -> Tensor:
        return (data * self.scale) @ self.mixing


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.head(torch.tanh(self.middle(self.embed(tokens))))
        return output


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.head(self.embed(tokens))
        return output


def dense(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(2, *shape)


def tokens() -> Tensor:
    return torch.randint(12, (2, 5))


@dataclass(frozen=True)
class Kind:
    build: Callable[[], nn.Module]
    data: Callable[[], Tensor]
    macs: dict[str, int]  # by hand, for one sample
    include: tuple[str, ...] | None = None


KINDS = {
    "root layer": Kind(lambda: nn.Linear(8, 6), dense(8), {"weight": 48}),
    "linear": Kind(lambda: nn.Sequential(nn.Linear(8, 6)), dense(8), {"0": 48}),
    # 6 positions x 4 channels x 3 inputs x 3 taps
    "conv1d": Kind(lambda: nn.Sequential(nn.Conv1d(3, 4, 3)), dense(3, 8), {"0": 6 * 4 * 9}),
    "conv2d": Kind(lambda: nn.Sequential(nn.Conv2d(3, 4, 3)), dense(3, 6, 6), {"0": 16 * 4 * 27}),
    "conv3d": Kind(lambda: nn.Sequential(nn.Conv3d(2, 3, 2)), dense(2, 4, 4, 4), {"0": 27 * 3 * 16}),
    "grouped": Kind(lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2)), dense(4, 5, 5), {"0": 9 * 6 * 2 * 9}),
    "depthwise": Kind(
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 5, 1)), dense(4, 5, 5), {"0": 9 * 4 * 9, "1": 9 * 20}
    ),
    # every input position meets all taps of all outputs
    "transposed1d": Kind(lambda: nn.Sequential(nn.ConvTranspose1d(3, 4, 3)), dense(3, 5), {"0": 15 * 12}),
    "transposed2d": Kind(lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 2)), dense(3, 5, 5), {"0": 75 * 16}),
    "transposed3d": Kind(lambda: nn.Sequential(nn.ConvTranspose3d(2, 3, 2)), dense(2, 3, 3, 3), {"0": 54 * 24}),
    "transposed grouped": Kind(
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2)), dense(4, 3, 3), {"0": 36 * 27}
    ),
    "rnn": Kind(
        lambda: Recurrent(nn.RNN(4, 5, batch_first=True)),
        dense(6, 4),
        {"rnn.weight_ih_l0": 6 * 20, "rnn.weight_hh_l0": 6 * 25},
    ),
    "gru": Kind(
        lambda: Recurrent(nn.GRU(4, 5, batch_first=True)),
        dense(6, 4),
        {"rnn.weight_ih_l0": 6 * 60, "rnn.weight_hh_l0": 6 * 75},
    ),
    "lstm": Kind(
        lambda: Recurrent(nn.LSTM(4, 5, num_layers=2, batch_first=True)),
        dense(6, 4),
        {
            "rnn.weight_ih_l0": 6 * 80,
            "rnn.weight_hh_l0": 6 * 100,
            "rnn.weight_ih_l1": 6 * 100,
            "rnn.weight_hh_l1": 6 * 100,
        },
    ),
    "bidirectional lstm": Kind(
        lambda: Recurrent(nn.LSTM(4, 5, batch_first=True, bidirectional=True)),
        dense(6, 4),
        {
            "rnn.weight_ih_l0": 6 * 80,
            "rnn.weight_hh_l0": 6 * 100,
            "rnn.weight_ih_l0_reverse": 6 * 80,
            "rnn.weight_hh_l0_reverse": 6 * 100,
        },
    ),
    "projected lstm": Kind(
        lambda: Recurrent(nn.LSTM(4, 5, proj_size=3, batch_first=True)),
        dense(6, 4),
        {"rnn.weight_ih_l0": 6 * 80, "rnn.weight_hh_l0": 6 * 60, "rnn.weight_hr_l0": 6 * 15},
    ),
    "lstm cell": Kind(Cell, dense(6, 4), {"cell.weight_ih": 6 * 80, "cell.weight_hh": 6 * 100}),
    "attention": Kind(Attending, dense(5, 8), {"mha.in_proj_weight": 3 * 5 * 64, "mha.out_proj": 5 * 64}),
    "attention to a narrower source": Kind(
        lambda: Attending(6),
        dense(5, 8),
        {"mha.q_proj_weight": 5 * 64, "mha.k_proj_weight": 5 * 48, "mha.v_proj_weight": 5 * 48, "mha.out_proj": 5 * 64},
    ),
    "encoder layer": Kind(
        lambda: nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, dropout=0.0, batch_first=True),
        dense(5, 8),
        {"self_attn.in_proj_weight": 960, "self_attn.out_proj": 320, "linear1": 640, "linear2": 640},
    ),
    "named parameter": Kind(Named, dense(8), {"mixing": 48}, include=("mixing",)),
    "tied head": Kind(Tied, tokens, {"embed": 5 * 96, "middle": 5 * 64}, include=("embed", "middle", "head")),
    # a look-up multiplies nothing
    "embedding": Kind(Embedded, tokens, {"embed": 0, "head": 5 * 32}, include=("embed", "head")),
}
