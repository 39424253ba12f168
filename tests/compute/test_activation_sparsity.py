"""Modules whose weight gradient sees only the largest inputs: the forward pass and all other gradients stay as they were."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autosparse import sparsify
from autosparse.compute import activation_sparsity
from autosparse.compute.activation_sparsity import InputBound
from autosparse.methods.swat import SWAT
from autosparse.sparsifier import Sparsifier

MODULES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 4), (5, 6)),
    "linear on sequences": (lambda: nn.Linear(6, 4, bias=False), (2, 3, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1, groups=2), (2, 4, 8)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), (2, 4, 7, 7)),
    "conv2d same": (lambda: nn.Conv2d(3, 4, 4, padding="same", dilation=2), (2, 3, 8, 8)),
    "conv2d circular": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 5, 5)),
    "conv2d one image": (lambda: nn.Conv2d(3, 4, 3), (3, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 3, 3, 3)),
}


def sparsified(module: nn.Module, **fields: Any) -> Sparsifier:
    method = SWAT(**{"sparsity": 0.5, "activation_sparsity": 0.6, "dense_first": False, **fields})
    return sparsify(module, method, epochs=1, steps_per_epoch=10)


def bound_of(run: Sparsifier) -> InputBound:
    found = run.layers[0].parametrization
    assert isinstance(found, InputBound)
    return found


@pytest.mark.parametrize("name", MODULES)
def test_gradients_are_those_at_the_largest_inputs(name: str) -> None:
    make, shape = MODULES[name]
    torch.manual_seed(0)
    module = make().double()
    run = sparsified(module)
    plain = make().double()
    plain.load_state_dict(run.dense_state_dict())
    inputs = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    output = module(inputs)
    expected = plain(inputs)
    assert torch.equal(output, expected)
    direction = torch.randn(output.shape, dtype=torch.float64)
    grads = torch.autograd.grad(output, [inputs, *module.parameters()], direction)
    bound = bound_of(run).bound
    kept = torch.where(inputs.abs() >= bound, inputs, 0).detach()
    assert int((kept != 0).sum()) == inputs.numel() - round(0.6 * inputs.numel())
    (at_inputs,) = torch.autograd.grad(expected, inputs, direction, retain_graph=True)
    at_kept = torch.autograd.grad(plain(kept), plain.parameters(), direction)
    others = dict(zip(dict(plain.named_parameters()), at_kept, strict=True))
    torch.testing.assert_close(grads[0], at_inputs)
    for (key, _), grad in zip(module.named_parameters(), grads[1:], strict=True):
        torch.testing.assert_close(grad, others["weight" if "original" in key else key])


def linear(weight: list[list[float]], **fields: Any) -> tuple[nn.Linear, Sparsifier]:
    module = nn.Linear(len(weight[0]), len(weight), bias=False)
    module.weight.data.copy_(torch.tensor(weight))
    return module, sparsified(module, **fields)


def weight_gradient(module: nn.Linear, inputs: Tensor) -> list[list[float]]:
    stored = module.parametrizations["weight"].original  # type: ignore[index,union-attr]
    (grad,) = torch.autograd.grad(module(inputs).sum(), stored)
    return grad.tolist()  # type: ignore[no-any-return]


def test_by_hand_and_the_bound_is_absolute_until_renewed() -> None:
    module, run = linear([[1.0, 2.0, 3.0, 4.0, 5.0]])
    assert weight_gradient(module, torch.tensor([[5.0, -4.0, 3.0, 2.0, 1.0]])) == [[5.0, -4.0, 0.0, 0.0, 0.0]]
    assert weight_gradient(module, torch.tensor([[5.0, -6.0, 7.0, 8.0, 1.0]])) == [[5.0, -6.0, 7.0, 8.0, 0.0]]
    bound_of(run).renew()
    assert weight_gradient(module, torch.tensor([[5.0, -6.0, 7.0, 8.0, 1.0]])) == [[0.0, 0.0, 7.0, 8.0, 0.0]]


def test_evaluation_does_not_measure() -> None:
    module, run = linear([[1.0, 2.0]])
    with torch.no_grad():
        module(torch.ones(1, 2))
    module.eval()
    assert weight_gradient(module, torch.tensor([[1.0, 2.0]])) == [[1.0, 2.0]]
    assert bound_of(run).bound.item() == -1


def test_inputs_that_are_mostly_zero_keep_what_they_have() -> None:
    module, _ = linear([[1.0, 2.0, 3.0, 4.0, 5.0]], activation_sparsity=0.4)
    assert weight_gradient(module, torch.tensor([[0.0, 0.0, 0.0, 0.0, 2.0]])) == [[0.0, 0.0, 0.0, 0.0, 2.0]]


def test_a_loaded_state_continues_with_its_bound() -> None:
    module, _ = linear([[1.0, 2.0, 3.0, 4.0, 5.0]])
    weight_gradient(module, torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0]]))
    other, _ = linear([[0.0, 1.0, 1.0, 1.0, 1.0]])
    other.load_state_dict(module.state_dict())
    assert weight_gradient(other, torch.tensor([[9.0, 9.0, 9.0, 9.0, 1.0]])) == [[9.0, 9.0, 9.0, 9.0, 0.0]]


def test_a_copy_has_a_forward_of_its_own() -> None:
    module, run = linear([[1.0, 2.0, 3.0, 4.0, 5.0]])
    twin = copy.deepcopy(module)
    assert getattr(twin.forward, "__self__", None) is twin
    with torch.no_grad():
        run.layers[0].stored.zero_()
    assert module(torch.ones(1, 5)).item() == 0
    assert twin(torch.ones(1, 5)).item() == 12  # the top 3 of 5 weights
    run.finalize()
    assert activation_sparsity.is_attached(twin)
    assert not activation_sparsity.is_attached(module)
    assert type(module) is nn.Linear


def test_what_is_left_alone() -> None:
    class Own(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    assert not activation_sparsity.supports(Own(2, 2))
    assert not activation_sparsity.supports(nn.ConvTranspose2d(2, 2, 2))
    assert not activation_sparsity.supports(nn.MultiheadAttention(4, 2).out_proj)
    attention = nn.MultiheadAttention(4, 2)
    run = sparsified(attention)
    assert len(run.layers) == 2
    density = torch.full((2,), 0.5, dtype=torch.float64)
    assert torch.stack(run.method.passes(density, run)).tolist() == [[0.5, 0.5], [0.5, 0.5], [1.0, 1.0]]


@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_autocast(name: str) -> None:
    make, shape = MODULES[name]
    module = make()
    run = sparsified(module)
    with torch.autocast("cpu", torch.bfloat16):
        output = module(torch.randn(shape))
    assert output.dtype == torch.bfloat16
    output.float().square().sum().backward()
    grad = run.layers[0].stored.grad
    assert grad is not None
    assert grad.dtype == torch.float32
    assert grad.abs().sum() > 0


def test_compiled_equals_eager() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    sparsified(net)
    twin = copy.deepcopy(net)
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
    for scale in (1.0, 2.0):
        inputs = scale * torch.randn(4, 2, 5, 5)
        net.zero_grad()
        twin.zero_grad()
        net(inputs).square().sum().backward()
        compiled(inputs).square().sum().backward()
        for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
