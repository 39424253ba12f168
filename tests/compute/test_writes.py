"""Forwards that write into tensors beside fused steps: the same training as dense compute, and the same errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autosparse
from autosparse import AutoSparse
from autosparse.compute import fused_forward

CHANNELS, CLASSES, STEPS = 8, 5, 3


def conv_norm(inputs: int, outputs: int, kernel: int = 3, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Rewriting(nn.Module):
    """A module without children whose forward nobody can see into."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sigmoid_()


class Net(nn.Module):
    """Something happens to the value between two convolutions with batch norms; `inner` is another one for its use."""

    def __init__(self, middle: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.middle = middle
        self.first, self.inner, self.last = conv_norm(3, CHANNELS), conv_norm(CHANNELS, CHANNELS), conv_norm(CHANNELS, CHANNELS)
        self.silu, self.relu, self.rewriting = nn.SiLU(inplace=True), nn.ReLU(inplace=True), Rewriting()
        self.identity, self.no_drop = nn.Identity(), nn.Dropout(0.0, inplace=True)
        self.register_buffer("calls", torch.zeros(()))
        self.fc = nn.Linear(CHANNELS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.last(self.middle(self, self.first(x))).mean((2, 3)))
        return logits


def then(*steps: Any) -> Tensor:
    """The last of several expressions."""
    result: Tensor = steps[-1]
    return result


def add_to(x: Tensor, y: Tensor | float) -> Tensor:
    x += y
    return x


def set_channel(x: Tensor) -> Tensor:
    x[:, 1] = 0.5
    return x


def count_up(net: Net, x: Tensor) -> Tensor:
    size = rows = x.size(2)
    size += 1
    return x * (size - rows)


PATTERNS: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "module": lambda net, y: net.silu(y),
    "module whose result is dropped": lambda net, y: then(net.silu(y), y),
    "relu whose result is dropped": lambda net, y: then(net.relu(y), y),
    "identity and relu": lambda net, y: net.relu(net.identity(y)),
    "dropout of nothing": lambda net, y: net.silu(net.no_drop(y)),
    "functional": lambda net, y: F.silu(y, inplace=True),
    "functional, flag by place": lambda net, y: F.hardswish(y, True),
    "functional with underscore": lambda net, y: then(F.relu_(y), y),
    "leaky": lambda net, y: F.leaky_relu(y, 0.1, inplace=True),
    "relu6": lambda net, y: then(F.relu6(y, inplace=True), net.inner(y)),
    "method": lambda net, y: y.mul_(torch.sigmoid(y)),
    "add_ of a number": lambda net, y: y.add_(1.0).abs(),
    "add_ whose result is dropped": lambda net, y: then(z := net.inner(y), z.add_(y), z),
    "+= into a normalised value": lambda net, y: net.silu(add_to(net.inner(y), y)),
    "+= into another tensor": lambda net, y: add_to(y * 1.5, net.inner(y)),
    "+= into a tensor with two names": lambda net, y: then(z := y * 1.5, add_to(z, net.inner(y)), z.abs()),
    "+= of another type": lambda net, y: add_to(net.inner(y), y.double()),
    "+= of a count": count_up,
    "a count is added": lambda net, y: (net.inner(y) + y.size(2)).abs(),
    "item": lambda net, y: set_channel(y),
    "view": lambda net, y: then(y.view(y.size(0), 2, -1, y.size(2), y.size(3)).sigmoid_(), y),
    "slice": lambda net, y: then(y[:, 1].sigmoid_(), net.inner(y)),
    "detached": lambda net, y: then(y.detach().sigmoid_(), net.inner(y)),
    "out": lambda net, y: then(torch.sigmoid(y.detach(), out=y.detach()), net.inner(y)),
    "unknown module": lambda net, y: net.rewriting(y),
    "unknown module whose result is dropped": lambda net, y: then(net.rewriting(y), net.inner(y)),
    "written, then read twice": lambda net, y: then(net.silu(y), net.inner(y) + y),
    "sum": lambda net, y: net.silu(y + net.inner(y)),
    "sum whose result is dropped": lambda net, y: then(z := y + net.inner(y), net.silu(z), z),
    "sum under two names": lambda net, y: then(z := y + net.inner(y), net.no_drop(z).sigmoid_(), z),
    "buffer": lambda net, y: y * net.calls.add_(1).neg().exp() + net.inner(y),
}  # fmt: skip

# What torch refuses: something that is written had been kept for the backward pass, or does not fit.
ERRORS: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "read, then written": lambda net, y: then(z := net.inner(y), net.silu(y), z + y),
    "sum is read, then written": lambda net, y: then(z := y + net.inner(y), r := net.inner(z), net.silu(z), z + r),
    "after relu": lambda net, y: net.silu(net.relu(y)),
    "relu twice": lambda net, y: net.relu(net.relu(y)),
    "+= after relu": lambda net, y: then(z := net.relu(y), add_to(z, net.inner(z))),
    "written before the batch norm": lambda net, y: then(x := y * 1, z := net.inner[0](x), x.sigmoid_(), net.inner[1](z)),
    "+= of a larger tensor": lambda net, y: add_to(net.inner(y.mean((2, 3), keepdim=True)), y),
}


def block(activation: Callable[..., nn.Module], excite: bool) -> nn.Module:
    """An inverted bottleneck as in MobileNetV2, or with squeeze and excitation as in EfficientNet."""

    class Excite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Sequential(nn.Conv2d(16, 4, 1), activation(inplace=True), nn.Conv2d(4, 16, 1), nn.Sigmoid())

        def forward(self, x: Tensor) -> Tensor:
            return x * self.gate(x.mean((2, 3), keepdim=True))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            wide = conv_norm(CHANNELS, 16, 1), activation(inplace=True), conv_norm(16, 16, 3, 16), activation(inplace=True)
            self.layers = nn.Sequential(*wide, Excite() if excite else nn.Identity(), conv_norm(16, CHANNELS, 1))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.layers(x)

    return Block()


class CrossStage(nn.Module):
    """As in YOLO: halves of a value go different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.split = nn.Sequential(conv_norm(CHANNELS, 16, 1), nn.SiLU(inplace=True))
        self.inner = nn.Sequential(conv_norm(8, 8), nn.SiLU(inplace=True))
        self.merge = nn.Sequential(conv_norm(24, CHANNELS, 1), nn.SiLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.split(x).chunk(2, 1))
        parts.append(self.inner(parts[-1]))
        merged: Tensor = self.merge(torch.cat(parts, 1))
        return merged


class Residual(nn.Module):
    """As in timm: nothing between the batch norm and its ReLU, by nn.Identity."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.bn2 = conv_norm(CHANNELS, CHANNELS), conv_norm(CHANNELS, CHANNELS)
        self.drop, self.act1, self.act2 = nn.Identity(), nn.ReLU(inplace=True), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.act1(self.drop(self.bn1(x))))
        y += x
        result: Tensor = self.act2(y)
        return result


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "mobilenet_v2": lambda: block(nn.ReLU6, excite=False),
    "mobilenet_v3": lambda: block(nn.Hardswish, excite=True),
    "efficientnet": lambda: block(nn.SiLU, excite=True),
    "yolo": CrossStage,
    "resnet": Residual,
}


def stack(of: Callable[[], nn.Module]) -> nn.Sequential:
    stem = conv_norm(3, CHANNELS), nn.LeakyReLU(0.1, inplace=True)
    return nn.Sequential(*stem, of(), of(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, CLASSES))


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield torch.randn(4, 3, 6, 6, generator=generator), torch.randint(CLASSES, (4,), generator=generator)


def prepare(build: Callable[[], nn.Module], mode: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = build()
    method = AutoSparse(alpha=0.0, schedule="constant", start_sparsity=0.5)
    sp = autosparse.sparsify(model, method, epochs=1, steps_per_epoch=STEPS)
    optimizer = torch.optim.SGD(sp.param_groups(weight_decay=1e-4), lr=0.05)
    sp.bind(optimizer)
    sp.compute(mode)
    return model, optimizer


def train(build: Callable[[], nn.Module], mode: str) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    """Every step's loss and gradients, and the buffers behind it; the first step is not fused, since hooks watch it."""
    model, optimizer = prepare(build, mode)
    seen = []
    for x, y in batches():
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        buffers = dict(model.named_buffers())
        seen.append({name: each.detach().clone() for name, each in {"loss": loss, **gradients, **buffers}.items()})
        optimizer.step()
    return model, seen


def train_both_ways(build: Callable[[], nn.Module]) -> nn.Module:
    """The model after training with fused steps, which has gone as with dense compute."""
    _, expected = train(build, "dense")
    model, seen = train(build, "sparse")
    for ours, theirs in zip(seen, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert torch.allclose(ours[name], value, rtol=1e-3, atol=1e-5), name
    return model


def norms_in(model: nn.Module) -> int:
    return sum(isinstance(each, nn.BatchNorm2d) for each in model.modules())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_writes_are_followed(native: None, pattern: str) -> None:
    model = train_both_ways(lambda: Net(PATTERNS[pattern]))
    assert fused_forward.count_fused(model) >= 2


@pytest.mark.parametrize("pattern", ERRORS)
def test_what_torch_refuses_is_refused(native: None, pattern: str) -> None:
    for mode in ("dense", "sparse"):
        model, _ = prepare(lambda: Net(ERRORS[pattern]), mode)
        model(torch.randn(4, 3, 1, 1))  # hooks watch the first forward, in which all sizes are one
        for x, y in batches():
            with pytest.raises(RuntimeError, match=r"modified by an inplace operation|doesn't match the broadcast shape"):
                F.cross_entropy(model(x), y).backward()
    assert fused_forward.count_fused(model) >= 2


@pytest.mark.parametrize("of", BLOCKS)
def test_blocks_with_activations_in_place_are_fused_whole(native: None, of: str) -> None:
    model = train_both_ways(lambda: stack(BLOCKS[of]))
    assert fused_forward.count_fused(model) == norms_in(model)


def steps_behind(result: Tensor) -> list[str]:
    """The names of all backward steps."""
    waiting, seen = [result.grad_fn], set()
    while waiting:
        step = waiting.pop()
        if step is not None and step not in seen:
            seen.add(step)
            waiting.extend(before for before, _ in step.next_functions)
    return [type(each).__name__ for each in seen]


def test_writes_that_nobody_else_sees_cost_no_pass(native: None) -> None:
    model, _ = train(lambda: stack(Residual), "sparse")
    steps = steps_behind(model(next(batches())[0]))
    assert steps.count("_JoinConvNormBackward") == 1, "the first block's end and the second's first convolution are one step"
    assert not [name for name in steps if name.startswith("Relu")]


def test_a_module_that_begins_to_write_is_followed(native: None) -> None:
    results = []
    for mode in ("dense", "sparse"):
        model, _ = train(lambda: Net(lambda net, y: then(net.silu(y), net.inner(y))), mode)
        assert isinstance(model, Net)
        model.silu.inplace = False
        x, _ = next(batches())
        model(x)
        model.silu.inplace = True
        results.append(model(x))
    assert torch.allclose(*results, atol=1e-4)
