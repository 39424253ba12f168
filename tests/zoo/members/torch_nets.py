"""Networks of torch itself, and small ones in shapes that people write by hand: U-Net, shared modules, checkpointing, ties."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..member import Member, Task, classification, regression


class Tagger(nn.Module):
    """An embedding, one of torch's recurrent layers, and a linear layer over all of its steps."""

    def __init__(self, recurrent: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 128)
        self.recurrent = recurrent(128, 192, num_layers=2, batch_first=True, **options)
        self.output = nn.Linear(384 if options.get("bidirectional") else 192, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(tokens))
        logits: Tensor = self.output(states)
        return logits.transpose(1, 2)


def recurrent(kind: type[nn.RNNBase], **options: Any) -> Task:
    tokens = torch.randint(100, (8, 32))
    return Task(Tagger(kind, **options), (tokens,), classification(torch.randint(20, (8, 32))))


class CellLoop(nn.Module):
    """A GRU cell in a Python loop that stops once all rows of the batch have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.cell, self.write = nn.Linear(32, 96), nn.GRUCell(96, 160), nn.Linear(160, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        state = inputs.new_zeros(len(inputs), 160)
        for step in range(inputs.shape[1]):
            if bool((inputs[:, step:].abs().sum() == 0).item()):
                break
            state = self.cell(torch.tanh(self.read(inputs[:, step])), state)
        result: Tensor = self.write(state)
        return result


def cell_loop() -> Task:
    inputs = torch.randn(16, 12, 32)
    inputs[:, 9:] = 0
    return Task(CellLoop(), (inputs,), classification(torch.randint(10, (16,))))


class Translator(nn.Module):
    """torch's nn.Transformer between two embeddings and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(200, 128), nn.Embedding(200, 128)
        self.transformer = nn.Transformer(128, 4, 2, 2, 512, batch_first=True)
        self.output = nn.Linear(128, 200)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        states = self.transformer(self.source(source), self.target(target), tgt_mask=causal)
        logits: Tensor = self.output(states)
        return logits.transpose(1, 2)


def translator() -> Task:
    source, target = torch.randint(200, (8, 20)), torch.randint(200, (8, 24))
    return Task(Translator(), (source, target), classification(target))


class EncoderClassifier(nn.Module):
    """nn.TransformerEncoder whose evaluation takes torch's fused path."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 384, activation="gelu", batch_first=True, norm_first=False)
        self.embedding, self.encoder = nn.Embedding(100, 128), nn.TransformerEncoder(layer, 3)
        self.output = nn.Linear(128, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        states: Tensor = self.encoder(self.embedding(tokens))
        logits: Tensor = self.output(states.mean(1))
        return logits


def encoder() -> Task:
    return Task(EncoderClassifier(), (torch.randint(100, (8, 32)),), classification(torch.randint(10, (8,))))


def double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    """Ronneberger's shape: down, up by transposed convolutions, and joints in between."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.second = double_convolution(3, width), double_convolution(width, 2 * width)
        self.bottom = double_convolution(2 * width, 4 * width)
        self.up_second, self.up_first = (
            nn.ConvTranspose2d(4 * width, 2 * width, 2, 2),
            nn.ConvTranspose2d(2 * width, width, 2, 2),
        )
        self.join_second, self.join_first = double_convolution(4 * width, 2 * width), double_convolution(2 * width, width)
        self.output = nn.Conv2d(width, 5, 1)

    def forward(self, image: Tensor) -> Tensor:
        first = self.first(image)
        second = self.second(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(second, 2))
        second = self.join_second(torch.cat([second, self.up_second(bottom)], 1))
        first = self.join_first(torch.cat([first, self.up_first(second)], 1))
        logits: Tensor = self.output(first)
        return logits


def unet() -> Task:
    return Task(UNet(), (torch.randn(2, 3, 64, 64),), classification(torch.randint(5, (2, 64, 64))))


class MessagePassing(nn.Module):
    """A graph network: the same message and update modules at every round, along edges that are an input."""

    def __init__(self, width: int = 128, rounds: int = 4) -> None:
        super().__init__()
        self.read = nn.Linear(16, width)
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.update = nn.GRUCell(width, width)
        self.output, self.rounds = nn.Linear(width, 7), rounds

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        states = self.read(nodes)
        source, target = edges
        for _ in range(self.rounds):
            messages = self.message(torch.cat([states[source], states[target]], -1))
            states = self.update(torch.zeros_like(states).index_add(0, target, messages.to(states.dtype)), states)
        logits: Tensor = self.output(states)
        return logits


def message_passing() -> Task:
    edges = torch.randint(200, (2, 1000))
    return Task(MessagePassing(), (torch.randn(200, 16), edges), classification(torch.randint(7, (200,))))


class CheckpointedResNet(nn.Module):
    """Residual blocks whose activations are computed again in the backward pass."""

    def __init__(self, width: int = 64, blocks: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.blocks = nn.ModuleList(double_convolution(width, width) for _ in range(blocks))
        self.output = nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        states = self.stem(image)
        for block in self.blocks:
            change = checkpoint(block, states, use_reentrant=False) if self.training else block(states)
            states = states + change
        logits: Tensor = self.output(states.mean((2, 3)))
        return logits


def checkpointed() -> Task:
    return Task(CheckpointedResNet(), (torch.randn(4, 3, 32, 32),), classification(torch.randint(10, (4,))))


class TiedAutoencoder(nn.Module):
    """Decodes with the encoder's weights transposed by a functional call; two of its linear layers share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.middle, self.again = nn.Linear(256, 128), nn.Linear(128, 128), nn.Linear(128, 128)
        self.again.weight = self.middle.weight

    def forward(self, inputs: Tensor) -> Tensor:
        code = self.again(torch.relu(self.middle(torch.relu(self.encode(inputs)))))
        return F.linear(torch.relu(code), self.encode.weight.T)


def tied() -> Task:
    inputs = torch.randn(32, 256)
    return Task(TiedAutoencoder(), (inputs,), regression(inputs))


class Router(nn.Module):
    """A mixture of experts: which modules run is decided by the data, and some may not run at all."""

    def __init__(self, width: int = 96, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(experts)
        )
        self.output = nn.Linear(width, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        scores = self.gate(inputs).softmax(-1)
        best = scores.argmax(-1)
        result = torch.zeros_like(inputs)
        for number, expert in enumerate(self.experts):
            chosen = best == number
            if bool(chosen.any()):
                result = result.index_put((chosen,), (expert(inputs[chosen]) * scores[chosen, number, None]).to(result.dtype))
        logits: Tensor = self.output(inputs + result)
        return logits


def router() -> Task:
    return Task(Router(), (torch.randn(64, 96),), classification(torch.randint(10, (64,))))


class YoloBlock(nn.Module):
    """Convolution, batch norm and in-place SiLU, split and joined as in the detectors of that family."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.stem = self._layer(3, width, 2)
        self.left, self.right = self._layer(width, width), self._layer(width, width)
        self.join = self._layer(2 * width, 2 * width)
        self.head = nn.Conv2d(2 * width, 6, 1)

    @staticmethod
    def _layer(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
        conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03), nn.SiLU(inplace=True))

    def forward(self, image: Tensor) -> Tensor:
        states = self.stem(image)
        left = self.left(states)
        logits: Tensor = self.head(self.join(torch.cat([left, self.right(left)], 1)))
        return logits


def yolo() -> Task:
    return Task(YoloBlock(), (torch.randn(4, 3, 64, 64),), regression(torch.randn(4, 6, 32, 32)))


MEMBERS = [
    Member("LSTM, two layers", "torch", "recurrence", lambda: recurrent(nn.LSTM), 0.5, 3e-3, all_precisions=True),
    Member("GRU, bidirectional", "torch", "recurrence", lambda: recurrent(nn.GRU, bidirectional=True), 0.5, 3e-3),
    Member("RNN with tanh", "torch", "recurrence", lambda: recurrent(nn.RNN), 0.1, 1e-3),
    Member("GRU cell in a Python loop", "torch", "recurrence", cell_loop, 0.1),
    Member("nn.Transformer", "torch", "attention", translator, 0.05, all_precisions=True, in_two_processes=True),
    Member("nn.TransformerEncoder", "torch", "attention", encoder, 0.02, compiles="aot_eager"),
    Member("U-Net", "torch", "convolution", unet, 0.05, compiles="aot_eager", in_two_processes=True, all_precisions=True),
    Member("message passing, shared modules", "torch", "other", message_passing, 0.05, compiles="aot_eager"),
    Member("gradient checkpointing", "torch", "convolution", checkpointed, 0.02),
    Member("weight tying", "torch", "other", tied, 0.5, compiles="inductor"),
    Member("mixture of experts, data-dependent", "torch", "other", router, 0.05),
    Member("YOLO block, in-place SiLU", "torch", "convolution", yolo, 0.02, compiles="aot_eager", in_two_processes=True),
]
