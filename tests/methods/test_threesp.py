"""3SP in numbers that can be told by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import autosparse
from autosparse import ThreeSP
from autosparse.methods.families.channel_budget import ChannelBudget
from autosparse.models import resnet20, small_transformer
from autosparse.structure import CannotFollow

from ..structure.test_networks import flops

ONE = torch.ones(1, 1)


def squared(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return mse_loss(model(batch[0]), batch[1], reduction="sum")


def chain() -> nn.Sequential:
    """One input, three hidden channels with the values 1, 2 and 4, one output."""
    model = nn.Sequential(nn.Linear(1, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [2.0], [4.0]]))
        model[2].weight.copy_(torch.tensor([[3.0, -1.0, 0.5], [0.0, 1.0, 0.0]]))
    return model


def test_the_sensitivity_of_a_channel_is_the_gradient_of_its_gate() -> None:
    """Outputs 3 - 2 + 2 = 3 and 2, targets 0: dL/dz = 6 and 4; gates see 6*3, 6*(-2) + 4*2, 6*2 = 18, -4, 12."""
    sp = autosparse.sparsify(chain(), ThreeSP(sparsity=0.3), epochs=1, steps_per_epoch=1, example_input=ONE)
    sp.score([(ONE, torch.zeros(1, 2))], squared)
    # all channels cost 1 + 2 MACs: the one of 4 goes, and one is enough for 30 % of nine weights
    assert torch.equal(sp.layers[0].effective(), torch.tensor([[1.0], [0.0], [4.0]]))
    assert torch.equal(sp.layers[1].effective(), torch.tensor([[3.0, 0.0, 0.5], [0.0, 0.0, 0.0]]))
    assert sp.sparsity() == pytest.approx(3 / 9)
    model = sp.finalize(shrink=True)
    assert (model[0].out_features, model[2].in_features) == (2, 2)


class Uneven(nn.Module):
    """Two branches; channels of the wide one cost more."""

    def __init__(self) -> None:
        super().__init__()
        self.cheap, self.cheap_out = nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False)
        self.dear, self.dear_out = nn.Linear(9, 2, bias=False), nn.Linear(2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.cheap_out(self.cheap(x[:, :1])) + self.dear_out(self.dear(x))


@pytest.mark.parametrize(("per_flop", "removed"), [(True, "dear"), (False, "cheap")])
def test_a_channel_goes_for_a_small_effect_or_a_large_cost(per_flop: bool, removed: str) -> None:
    """Channels of `dear` cost 9 + 1 MACs and matter twice as much as those of `cheap`, which cost 2."""
    model = Uneven()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
        model.dear.weight.fill_(2 / 9)
    method = ThreeSP(flops=0.95, per_flop=per_flop)  # one channel is enough
    sp = autosparse.sparsify(model, method, epochs=1, steps_per_epoch=1, example_input=torch.ones(1, 9))
    sp.score([(torch.ones(1, 9), torch.zeros(1, 1))], squared)
    zeros = {layer.name for layer in sp.layers if layer.count_active() < layer.numel}
    assert zeros == {removed, f"{removed}_out"}


def test_costs_of_channels_and_what_is_left() -> None:
    """chain: 3 and 6 MACs. A channel is a third of both; without one, 6 of 9 are left."""
    sp = autosparse.sparsify(chain(), ThreeSP(), epochs=1, steps_per_epoch=1, example_input=ONE)
    budget = ChannelBudget.of(sp.parts["wiring"], sp.layers, sp.ledger.profile)
    assert budget.macs_per_channel().tolist() == [3.0, 3.0, 3.0]
    kept = budget.remove([2, 0, 1], flops=0.5)
    assert kept.tolist() == [False, True, False]
    assert budget.flops(kept) == pytest.approx(1 / 3)
    assert budget.remove([0, 1, 2], flops=0.01).sum() == 1  # one is always left


def test_residual_members_share_a_gate() -> None:
    model = resnet20()
    images, labels = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    sp = autosparse.sparsify(model, ThreeSP(flops=0.5), epochs=1, steps_per_epoch=1, example_input=images[:2])
    sp.score([(images, labels)], lambda net, batch: nn.functional.cross_entropy(net(batch[0]), batch[1]))
    dense = flops(resnet20(), images[:2])
    stage = {name: slices.dims[0].tolist() for name, slices in sp.parts["wiring"].layers.items() if name.startswith("layer1")}
    ends = [ids for name, ids in stage.items() if name.endswith("conv2")]
    assert len(ends) == 3
    assert min(ends[0]) >= 0
    assert ends[0] == ends[1] == ends[2] == sp.parts["wiring"].layers["conv1"].dims[0].tolist()
    counted = sp.cost.test_fraction
    assert 0.47 < counted <= 0.5
    sp.finalize(shrink=True)
    assert flops(model, images[:2]) / dense == pytest.approx(counted, rel=1e-12)


def test_attention_heads_are_counted_as_torch_counts_them() -> None:
    torch.manual_seed(0)

    def build() -> nn.Module:
        return small_transformer(image_size=8, rows=1, size=16, blocks=1, heads=4, feed_forward=16)

    model, images = build(), torch.randn(4, 1, 8, 8)
    sp = autosparse.sparsify(model, ThreeSP(flops=0.3), epochs=1, steps_per_epoch=1, example_input=images[:2])
    sp.score([(images, torch.tensor([0, 1, 2, 3]))], lambda net, batch: nn.functional.cross_entropy(net(batch[0]), batch[1]))
    counted = sp.cost.test_fraction
    expected = model.eval()(images)
    sp.finalize(shrink=True)
    attention = model.blocks[0].attention
    assert attention.heads < 4
    assert attention.query.out_features == 4 * attention.heads
    torch.testing.assert_close(model(images), expected)
    assert flops(model, images[:2]) / flops(build(), images[:2]) == pytest.approx(counted, rel=1e-12)


class Reads(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.detach().sum())


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="not both"):
        ThreeSP(flops=0.5, sparsity=0.5)
    with pytest.raises(ValueError, match=r"flops = 0; it is the share of FLOPs that stays"):
        ThreeSP(flops=0)
    with pytest.raises(ValueError, match="3sp follows the channels through the model: give sparsify an example_input"):
        autosparse.sparsify(chain(), ThreeSP(), epochs=1, steps_per_epoch=1)
    untraceable = nn.Sequential(nn.Linear(1, 3), Reads(), nn.Linear(3, 2))
    with pytest.raises(CannotFollow, match=r"torch.fx cannot trace 1 \(Reads\)"):
        autosparse.sparsify(untraceable, ThreeSP(), epochs=1, steps_per_epoch=1, example_input=ONE)
    pinned = nn.Sequential(nn.Linear(1, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    with pytest.raises(CannotFollow, match=r"no channel of this model that could be removed: 0: the norm 1 takes the mean"):
        autosparse.sparsify(pinned, ThreeSP(), epochs=1, steps_per_epoch=1, example_input=ONE)
    with pytest.raises(CannotFollow, match=r"2\.weight is a weight outside of the run"):
        autosparse.sparsify(chain(), ThreeSP(), epochs=1, steps_per_epoch=1, example_input=ONE, exclude="2")
