"""Small networks make their effective weights together: every bit is that of the layers' own way, in every kind of loop."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import autosparse
from autosparse import AutoSparse, Sparsifier, kernels
from autosparse.compute.small_layers import SmallLayers
from autosparse.layer import TOGETHER
from autosparse.sparsifier import sparsifier as sparsifier_module

pytestmark = pytest.mark.skipif(not kernels.available(), reason="needs the native kernels")
Loss = Callable[[nn.Module, Tensor], Tensor]
STEPS = 5


@pytest.fixture(autouse=True)
def nothing_was_compiled() -> None:
    """Whatever other tests have done in this process."""
    counters.clear()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 4))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 10, num_layers=2, bidirectional=True, batch_first=True)
        self.output = nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        first, _ = self.rnn(x.unsqueeze(0))
        again, _ = self.rnn(x.flip(0).unsqueeze(0))
        return self.output(first + again)


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1))
        self.up, self.to_image = nn.ConvTranspose2d(8, 4, 2), nn.Linear(6, 36)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.convs(self.to_image(x).view(-1, 1, 6, 6)))


class Shared(nn.Module):
    """One layer three times, an unused head, and two layers under activation checkpoints of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(6, 8), nn.Linear(8, 8)
        self.unused, self.output = nn.Linear(8, 3), nn.Linear(8, 4)
        self.old, self.new = nn.Linear(8, 8), nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states = self.first(x)
        for _ in range(3):
            states = torch.tanh(self.again(states))
        states = checkpoint(self.new, checkpoint(self.old, states, use_reentrant=True), use_reentrant=False)
        states = states + self.attention(states[None], states[None], states[None])[0][0]
        return self.output(states)


def square(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def with_a_penalty(model: nn.Module, x: Tensor) -> Tensor:
    """Reads a weight before and after the forward pass."""
    before = model[0].weight.abs().sum()
    return square(model, x) + 1e-3 * (before + model[4].weight.square().sum())


def with_gradients_of_gradients(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    output = model(x).square().sum()
    (slope,) = torch.autograd.grad(output, x, create_graph=True)
    return output + slope.square().sum()


def through_functional_call(model: nn.Module, x: Tensor) -> Tensor:
    held = {name: 0.9 * parameter for name, parameter in model.named_parameters()}
    return functional_call(model, held, (x,)).square().mean() + square(model, x)


def in_one_process(build: Callable[[], nn.Module], optimizer: str, loss: Loss, method: AutoSparse, calls: int = 1) -> Any:
    """Everything that training has made after a few steps."""
    torch.manual_seed(0)
    model = build()
    sp = autosparse.sparsify(model, method, epochs=2, steps_per_epoch=STEPS, seed=3)
    settings = {"momentum": 0.9} if optimizer == "SGD" else {}
    trainer: Any = getattr(torch.optim, optimizer)(sp.param_groups(weight_decay=0.01), lr=0.03, **settings)
    sp.bind(trainer)
    losses = []
    for step in range(STEPS):
        trainer.zero_grad()
        for _ in range(calls):
            value = loss(model, torch.randn(7, 6))
            value.backward()
            losses.append(value.item())
        trainer.step()
        with torch.no_grad():
            sp.layers[0].stored.data.clamp_(-0.2, 0.2)  # torch does not notice it
            losses.append(model(torch.randn(2, 6)).sum().item())
        if step == 1:
            sp.end_epoch()
    values = [*model.state_dict().values(), *(each for state in trainer.state.values() for each in state.values())]
    return sp, losses, [value for value in values if isinstance(value, Tensor)], sp.ledger.state_dict(), sp.densities()


@pytest.fixture
def by_themselves(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From here on torch's own property reads every layer, and nothing is made together."""

    def switch() -> None:
        monkeypatch.setattr(sparsifier_module, "gather_small_layers", lambda sp: SmallLayers())
        monkeypatch.setattr("autosparse.layer._quick_property", lambda module, tensor: None)

    return switch


CASES = {
    "mlp": (mlp, square),
    "penalty": (mlp, with_a_penalty),
    "gradients of gradients": (mlp, with_gradients_of_gradients),
    "functional_call": (mlp, through_functional_call),
    "recurrent": (Recurrent, square),
    "convolutional": (Convolutional, square),
    "shared": (Shared, square),
}


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("case", CASES)
def test_training_is_the_same_to_the_last_bit(case: str, optimizer: str, by_themselves: Callable[[], None]) -> None:
    build, loss = CASES[case]
    method = AutoSparse(start_sparsity=0.5, alpha=0.6)
    sp, *together = in_one_process(build, optimizer, loss, method)
    assert len(sp._together) >= 2
    by_themselves()
    sp, *alone = in_one_process(build, optimizer, loss, method)
    assert len(sp._together) == 0
    assert together[0] == alone[0]
    assert all(torch.equal(*pair) for pair in zip(together[1], alone[1], strict=True))
    assert together[2:] == alone[2:]


@pytest.mark.parametrize(
    "method",
    [
        AutoSparse(start_sparsity=0.5, alpha=0.6, backward_sparsity=0.3, g="exp"),
        AutoSparse(start_sparsity=0.5, alpha=0.6, g="identity", dense_grad_every=2),
        AutoSparse(alpha=0.0, target_sparsity=0.8),
    ],
)
def test_so_it_is_with_other_settings_and_when_gradients_accumulate(
    method: AutoSparse, by_themselves: Callable[[], None]
) -> None:
    sp, *together = in_one_process(mlp, "SGD", square, method, calls=2)
    assert len(sp._together) == 3
    by_themselves()
    _, *alone = in_one_process(mlp, "SGD", square, method, calls=2)
    assert together[0] == alone[0]
    assert all(torch.equal(*pair) for pair in zip(together[1], alone[1], strict=True))
    assert together[2:] == alone[2:]


def trained(build: Callable[[], nn.Module] = mlp) -> tuple[nn.Module, Sparsifier, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = build()
    sp = autosparse.sparsify(model, AutoSparse(start_sparsity=0.5, alpha=0.6), epochs=1, steps_per_epoch=9)
    optimizer = torch.optim.SGD(sp.param_groups(weight_decay=0.01), lr=0.03)
    sp.bind(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        square(model, torch.randn(7, 6)).backward()
        optimizer.step()
    return model, sp, optimizer


def nodes(value: Tensor) -> list[str]:
    """The names of the functions behind a tensor."""
    names, waiting = [], [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None:
            names.append(type(node).__name__)
            waiting += [following for following, _ in node.next_functions]
    return names


def test_there_is_one_node_for_all_layers() -> None:
    model, _, _ = trained()
    behind = nodes(square(model, torch.randn(7, 6)))
    assert "_ThresholdsBackward" in behind
    assert "_NativeSoftThresholdBackward" not in behind


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.outputs = self.left(x), self.right(x)
        return torch.stack(self.outputs)


def test_two_losses_may_go_back_one_after_the_other() -> None:
    model, sp, optimizer = trained(TwoHeads)
    optimizer.zero_grad()
    model(torch.randn(7, 6))
    left, right = model.outputs
    assert len(sp._together) == 2
    left.sum().backward()
    assert sp.layers[0].stored.grad.abs().sum() > 0
    assert sp.layers[1].stored.grad is None
    right.sum().backward()
    assert sp.layers[1].stored.grad.abs().sum() > 0


def test_a_weight_that_changes_between_the_passes_is_refused() -> None:
    model, sp, _ = trained()
    loss = square(model, torch.randn(7, 6))
    with torch.no_grad():
        sp.layers[1].stored.add_(1.0)
    with pytest.raises(RuntimeError, match="modified"):
        loss.backward()


def test_what_changes_after_the_call_has_begun_is_seen() -> None:
    model, sp, _ = trained()

    def change(module: nn.Module, args: Any) -> None:
        with torch.no_grad():
            sp.layers[2].stored.mul_(2.0)

    before = model(torch.ones(1, 6))
    handle = model[3].register_forward_pre_hook(change)
    after = model(torch.ones(1, 6))
    handle.remove()
    assert not torch.equal(before, after)
    with torch.no_grad():
        assert torch.equal(after, model(torch.ones(1, 6)))


def test_copies_read_their_own_weights() -> None:
    model, sp, _ = trained()
    twin, twins_sp = copy.deepcopy((model, sp))
    with torch.no_grad():
        twins_sp.layers[0].stored.mul_(3.0)
    assert not torch.equal(twin(torch.ones(1, 6)), model(torch.ones(1, 6)))
    assert twins_sp._together is None
    optimizer = torch.optim.SGD(twins_sp.param_groups(weight_decay=0.01), lr=0.03)
    twins_sp.bind(optimizer)
    square(twin, torch.randn(7, 6)).backward()
    optimizer.step()
    assert len(twins_sp._together) == 3
    assert len(pickle.loads(pickle.dumps(sp._together))) == 0


def test_no_gradient_no_graph() -> None:
    model, _, _ = trained()
    with torch.no_grad():
        assert not model[0].weight.requires_grad
        assert model(torch.ones(1, 6)).grad_fn is None


def test_nothing_is_left_after_finalize() -> None:
    model, sp, _ = trained()
    assert model._forward_pre_hooks
    parts = [layer.parts for layer in sp.layers]
    assert sp.finalize() is model
    assert not model._forward_pre_hooks
    assert not any(TOGETHER in vars(each) for each in parts)


def test_layers_that_a_call_does_not_read_make_their_own_from_then_on() -> None:
    model, sp, _ = trained(Shared)
    square(model, torch.randn(7, 6))
    named = {layer.name: TOGETHER in vars(layer.parts) for layer in sp.layers}
    assert not named["unused"]
    assert named["first"]


def test_a_network_for_the_kernels_keeps_to_them() -> None:
    model, sp, optimizer = trained()
    sp.compute("sparse")
    assert not model._forward_pre_hooks
    square(model, torch.randn(7, 6)).backward()
    optimizer.step()
    assert len(sp._together) == 0


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_network_gets_no_new_hook(fullgraph: bool) -> None:
    torch.manual_seed(0)
    model = mlp()
    sp = autosparse.sparsify(model, AutoSparse(start_sparsity=0.5), epochs=1, steps_per_epoch=9)
    compiled = torch.compile(model, fullgraph=fullgraph, backend="eager")
    optimizer = torch.optim.SGD(sp.param_groups(weight_decay=0.01), lr=0.03)
    sp.bind(optimizer)
    square(compiled, torch.randn(7, 6)).backward()
    optimizer.step()
    assert len(sp._together) == 0
