"""GDP in numbers that can be told by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autosparse
from autosparse import GDP
from autosparse.methods.gdp import Gates
from autosparse.models import resnet20

from ..structure.test_networks import flops

TWO = torch.ones(2, 2)


def net() -> nn.Sequential:
    """2 to 4 to 2: 8 and 8 MACs."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))


def run(method: GDP, model: nn.Module | None = None) -> autosparse.Sparsifier:
    return autosparse.sparsify(model or net(), method, epochs=3, steps_per_epoch=2, example_input=TWO)


def gates_of(sp: autosparse.Sparsifier) -> Gates:
    """Of the layer that reads: it owns them."""
    part = sp.layers[1].parametrization
    assert isinstance(part, Gates)
    return part


def test_gates_and_the_price_of_flops() -> None:
    """theta^2 / (theta^2 + 0.25): 0.8 at 1, 0.5 at 0.5, 0.2 at 0.25, 0 at 0."""
    sp = run(GDP(epsilon=0.25, final_epsilon=0.01, penalty_weight=3.0))
    gates = gates_of(sp)
    assert sp.layers[0].parametrization.theta is None
    plain = sp.layers[1].weight()
    torch.testing.assert_close(sp.layers[1].effective(), plain)  # at the start the weights themselves
    gates.theta.data.copy_(torch.tensor([1.0, 0.5, 0.25, 0.0]))
    torch.testing.assert_close(gates.gates(), torch.tensor([0.8, 0.5, 0.2, 0.0]))
    torch.testing.assert_close(sp.layers[1].effective(), plain * torch.tensor([0.8, 0.5, 0.2, 0.0]) / 0.8)
    # both layers have half of their MACs times the mean gate, 1.5 / 4
    penalty = sp.penalty()
    torch.testing.assert_close(penalty, torch.tensor(3.0 * 1.5 / 4))
    penalty.backward()
    # dR/dg = 1/4; dg/dtheta = 2 theta eps / (theta^2 + eps)^2
    slopes = torch.tensor([2 * 1 * 0.25 / 1.25**2, 2 * 0.5 * 0.25 / 0.5**2, 2 * 0.25 * 0.25 / 0.3125**2, 0.0])
    torch.testing.assert_close(gates.theta.grad, 3.0 / 4 * slopes)


def test_the_price_ends_at_the_target() -> None:
    sp = run(GDP(epsilon=0.25, flops=0.9))
    assert float(sp.penalty().detach()) == 0.0
    gates_of(sp).theta.data.fill_(4.0)
    assert float(sp.penalty().detach()) == pytest.approx(16 / 16.25 - 0.9)


def test_flops_are_bilinear_in_neighbouring_gates() -> None:
    """Three layers of 4, 16 and 4 weights: the middle one has gates on both sides."""
    model = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    sp = autosparse.sparsify(model, GDP(epsilon=0.25), epochs=2, steps_per_epoch=1, example_input=torch.ones(2, 1))
    for layer in sp.layers[1:]:
        layer.parametrization.theta.data.fill_(0.5)  # gates of 0.5
    share = (4 * 0.5 + 16 * 0.25 + 4 * 0.5) / 24
    torch.testing.assert_close(sp.penalty(), torch.tensor(share))


def test_gates_close_for_good_and_epsilon_falls() -> None:
    sp = run(GDP(epsilon=0.1, final_epsilon=0.001, closed_below=0.05))
    gates = gates_of(sp)
    gates.theta.data.copy_(torch.tensor([1.0, 0.05, 0.5, 0.01]))  # 0.91, 0.024, 0.71, 0.001
    sp.method.end_epoch(sp, None)
    assert gates.open.tolist() == [True, False, True, False]
    assert float(gates.epsilon) == pytest.approx(0.01)  # half way, geometrically
    gates.theta.data.fill_(1.0)
    assert [gate > 0 for gate in gates.gates().tolist()] == [True, False, True, False]
    assert sp.densities() == [0.5, 0.5]
    weight = sp.layers[1].effective()
    model = sp.finalize(shrink=True)
    assert (model[0].out_features, model[2].in_features) == (2, 2)
    assert torch.equal(model[2].weight, weight[:, [0, 2]])  # open gates are part of the weights


def test_the_widest_gate_of_a_layer_stays_open() -> None:
    sp = run(GDP())
    gates = gates_of(sp)
    gates.theta.data.copy_(torch.tensor([0.001, 0.003, 0.002, 0.001]))
    sp.method.end_epoch(sp, None)
    assert gates.open.tolist() == [False, True, False, False]


def test_layers_joined_by_a_skip_share_gates_and_costs_equal_torchs_counter() -> None:
    torch.manual_seed(0)
    model, images = resnet20(), torch.randn(2, 3, 32, 32)
    sp = autosparse.sparsify(model, GDP(), epochs=2, steps_per_epoch=1, example_input=images)
    owners = {layer.name: layer.parametrization for layer in sp.layers}
    first = owners["layer1.0.conv1"]
    assert [source for _, source, _ in owners["layer1.1.conv1"].sources if source is first]
    with torch.no_grad():
        for part in owners.values():
            if part.theta is not None:
                part.theta[: len(part.theta) // 2] = 1e-4
    sp.method.end_epoch(sp, None)
    counted = sp.cost.test_fraction
    expected = model.eval()(images)
    sp.finalize(shrink=True)
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-4)
    assert counted < 0.4
    assert flops(model, images) / flops(resnet20(), images) == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"penalty_weight": -1}, "penalty_weight = -1"),
        ({"flops": 1.5}, "flops = 1.5; it is the share of FLOPs"),
        ({"theta_init": 0}, "theta_init = 0"),
        ({"final_epsilon": 0.2}, "epsilon = 0.1 falls to final_epsilon = 0.2"),
        ({"closed_below": 1}, "closed_below = 1"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GDP(**fields)
