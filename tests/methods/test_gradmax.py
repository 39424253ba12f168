"""GradMax in numbers that can be told by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import autosparse
from autosparse import GradMax
from autosparse.methods.gradmax import _Listener, direct_gradient, outgoing
from autosparse.structure import CannotFollow

from ..structure.test_networks import flops


def test_the_direct_gradient_of_linear_layers_is_an_outer_product() -> None:
    """M = sum over samples of dL/dz x^T; its right singular vectors are those of the outputs."""
    maker, reader = nn.Linear(3, 4), nn.Linear(4, 2)
    data, gradient = torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[3.0, -4.0]])
    direct = direct_gradient(maker, reader, data, gradient)
    assert torch.equal(direct, torch.tensor([[3.0, 0.0, 6.0], [-4.0, 0.0, -8.0]]))
    # of rank one: the direction of the gradient, of length 1, its largest entry positive
    torch.testing.assert_close(outgoing(direct, maker, reader, 1), torch.tensor([[-0.6, 0.8]]))


@pytest.mark.parametrize(("strides", "paddings"), [((1, 1), (1, 1)), ((2, 1), (1, 0)), ((1, 2), (0, 1))])
def test_new_channels_of_convolutions_have_the_largest_gradient(strides: tuple[int, int], paddings: tuple[int, int]) -> None:
    """The gradient of a zero incoming filter through outgoing weights v is M v: no other v of length 1 has a larger one."""
    torch.manual_seed(0)
    maker = nn.Conv2d(2, 3, 3, stride=strides[0], padding=paddings[0], bias=False)
    reader = nn.Conv2d(3, 4, 3, stride=strides[1], padding=paddings[1], bias=False)
    data = F.pad(torch.randn(5, 2, 8, 8), (2, 2, 2, 2))  # zeros at the edge: where both paddings meet nothing is cut off
    gradient = torch.randn_like(reader(maker(data)))

    def norm(vector: torch.Tensor) -> float:
        incoming = torch.zeros(1, 2, 3, 3, requires_grad=True)
        hidden = F.conv2d(data, incoming, stride=strides[0], padding=paddings[0])
        output = F.conv2d(hidden, vector.reshape(4, 1, 3, 3), stride=strides[1], padding=paddings[1])
        return float(torch.autograd.grad(output, incoming, gradient)[0].norm())

    best = outgoing(direct_gradient(maker, reader, data, gradient), maker, reader, 2)
    assert best.shape == (2, 4, 3, 3)
    others = [each / each.norm() for each in torch.randn(50, 36)]
    assert norm(best[0]) > norm(best[1]) > 0.5 * max(norm(each) for each in others)
    assert norm(best[0]) > max(norm(each) for each in others)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


DATA = torch.randn(6, 3, generator=torch.Generator().manual_seed(2))
FIELDS = {"start_width": 0.25, "begin": 0.5, "end": 0.5, "growths": 1, "final_width": 0.75}


def start(method: GradMax, model: nn.Module) -> tuple[autosparse.Sparsifier, torch.optim.Optimizer]:
    sp = autosparse.sparsify(model, method, epochs=1, steps_per_epoch=4, example_input=DATA)
    opt = torch.optim.SGD(sp.param_groups(), lr=0.1, momentum=0.9)
    sp.bind(opt)
    return sp, opt


def step(model: nn.Module, opt: torch.optim.Optimizer) -> None:
    opt.zero_grad()
    model(DATA).square().sum().backward()
    opt.step()


def test_layers_start_narrow_and_grow_along_the_singular_vectors() -> None:
    model = net()
    sp, opt = start(GradMax(**FIELDS, scale=0.5, epsilon=0.01), model)
    wide = [int(layer.active().any(1 - side).sum()) for layer, side in zip(sp.layers, (0, 1), strict=True)]
    assert wide == [2, 2]
    assert sp.densities() == [0.25, 0.25]
    step(model, opt)
    assert any(isinstance(getattr(hook, "__self__", None), _Listener) for hook in model[0]._forward_pre_hooks.values())
    norm = sp.layers[1].weight()[:, :2].norm(dim=0)  # as the step that grows will find them, but for that step
    step(model, opt)
    assert not model[0]._forward_pre_hooks
    assert sp.densities() == [0.75, 0.75]
    weight = sp.layers[1].weight()
    found = weight[:, 2:6].norm(dim=0)
    torch.testing.assert_close(found, (0.5 * weight[:, :2].norm(dim=0).mean()).expand(4))
    assert float((found - 0.5 * norm.mean()).abs().max()) > 0  # those after the step
    incoming = sp.layers[0].weight()  # in front of a batch norm, whatever epsilon is
    torch.testing.assert_close(incoming[2:6].norm(dim=1), incoming[:2].norm(dim=1).mean().expand(4))
    assert not sp.layers[0].weight()[6:].any()
    assert torch.equal(model[1].weight[2:6], torch.ones(4))
    assert torch.equal(model[1].bias[2:6], torch.zeros(4))
    assert torch.equal(model[1].running_var[2:6], torch.ones(4))
    momentum = opt.state[sp.layers[1].stored]["momentum_buffer"]
    assert not momentum[:, 2:].any()  # new channels start without
    step(model, opt)
    assert momentum[:, 2:6].all()
    assert not momentum[:, 6:].any()


def test_costs_follow_the_width_and_equal_torchs_counter() -> None:
    model = net()
    sp, opt = start(GradMax(**FIELDS), model)
    for _ in range(4):
        step(model, opt)
    sp.end_epoch(loss=1.0)
    # two steps at a quarter, two at three quarters of 24 + 16 MACs
    assert sp.cost.train_fraction == pytest.approx(0.5)
    assert sp.cost.test_fraction == 0.75
    expected = model.eval()(DATA)
    sp.finalize(shrink=True)
    torch.testing.assert_close(model(DATA), expected)
    assert flops(model, DATA) / flops(net(), DATA) == 0.75
    assert model[0].out_features == 6


def test_the_schedule_counts_steps() -> None:
    assert GradMax(begin=0.1, end=0.5, growths=5).schedule(100) == [10, 20, 30, 40, 50]
    assert GradMax(begin=0.5, end=0.5, growths=3).schedule(10) == [5]
    sp, _ = start(GradMax(start_width=0.25, final_width=1.0, begin=0.25, end=0.75, growths=3), net())
    assert [sp.method.width(sp, each) for each in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_channels_between_layers_of_other_kinds_grow_at_random() -> None:
    model = nn.Sequential(nn.Conv1d(1, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    sp = autosparse.sparsify(model, GradMax(**FIELDS), epochs=1, steps_per_epoch=4, example_input=DATA.unsqueeze(1))
    opt = torch.optim.SGD(sp.param_groups(), lr=0.1)
    sp.bind(opt)
    for _ in range(2):
        opt.zero_grad()
        model(DATA.unsqueeze(1)).square().sum().backward()
        opt.step()
    weight = sp.layers[1].weight().reshape(2, 4, 3)
    assert sp.densities() == [0.75, 0.75]
    assert (weight[:, 1:3] > 0).all()  # the authors draw from [0, 1)
    torch.testing.assert_close(weight[:, 1].norm(), 0.5 * weight[:, 0].norm())
    incoming = sp.layers[0].weight().reshape(4)
    torch.testing.assert_close(incoming[1:3].abs(), (1e-3 * incoming[0].abs()).expand(2))


def test_a_finalized_model_keeps_no_hooks() -> None:
    model = net()
    sp, opt = start(GradMax(**FIELDS), model)
    step(model, opt)
    assert model[0]._forward_pre_hooks
    sp.finalize()
    assert not model[0]._forward_pre_hooks
    assert not model[3]._forward_hooks


def test_bad_input() -> None:
    for fields, message in (
        ({"start_width": 0.0}, "start_width = 0.0 grows to"),
        ({"begin": 0.8}, "begin = 0.8, end = 0.5"),
        ({"growths": 0}, "growths = 0"),
        ({"scale": 0}, "scale = 0"),
        ({"epsilon": -1}, "epsilon = -1"),
    ):
        with pytest.raises(ValueError, match=message):
            GradMax(**fields)
    shared = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    with pytest.raises(CannotFollow, match="gradmax finds no channel of this model"):
        start(GradMax(), shared)
