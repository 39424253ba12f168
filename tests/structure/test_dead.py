"""When a channel is dead: small networks with numbers that can be told by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import autosparse
from autosparse.structure import CannotFollow, Shrinkage

X = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(1))


def shrunk(model: nn.Module, example: Tensor = X) -> Shrinkage:
    """Shrink, and compare both modes with the model as it was."""
    before = copy.deepcopy(model)
    report = autosparse.shrink(model, example)
    for training in (False, True):
        one, other = copy.deepcopy(before).train(training), copy.deepcopy(model).train(training)
        torch.testing.assert_close(other(example), one(example), rtol=1e-5, atol=1e-5)
        other(example).sum().backward()
    return report


def reasons(report: Shrinkage) -> str:
    return " ".join(layer.reason for layer in report.layers)


def pair(between: list[nn.Module], padding: int = 0, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), *between, nn.Conv2d(4, 3, 3, padding=padding, bias=bias))


def test_zeros_that_a_layer_reads_are_removed_with_the_layer_that_makes_them() -> None:
    model = pair([nn.ReLU()])
    with torch.no_grad():
        model[0].weight[1] = 0
        model[0].bias[1] = -2.0  # the ReLU makes it 0
    report = shrunk(model)
    assert report.removed == 1
    assert model[0].weight.shape == (3, 2, 3, 3)
    assert model[2].weight.shape == (3, 3, 3, 3)
    assert (model[0].out_channels, model[2].in_channels, model[2].out_channels) == (3, 3, 3)
    # 4*2*9 + 4 + 3*4*9 + 3 parameters before; a filter with its bias and a ninth of 27 weights go
    assert (report.parameters_before, report.parameters_after) == (187, 187 - 19 - 27)


def test_a_constant_folds_into_the_bias_of_the_reader() -> None:
    model = pair([nn.Identity()])
    with torch.no_grad():
        model[0].weight[1] = 0
        model[0].bias[1] = 0.5
    expected = model[2].bias + 0.5 * model[2].weight[:, 1].sum((1, 2))
    assert shrunk(model).removed == 1
    torch.testing.assert_close(model[2].bias, expected)


def test_a_constant_does_not_fold_across_zero_padding() -> None:
    model = pair([nn.Identity()], padding=1)
    with torch.no_grad():
        model[0].weight[1] = 0
        model[0].bias[1] = 0.5
    report = shrunk(model)
    assert report.removed == 0
    assert "2 reads the constant 0.5 and zeros around it" in reasons(report)
    with torch.no_grad():
        model[0].bias[1] = 0
    assert shrunk(model).removed == 1


def test_a_reader_without_a_bias_gets_one_or_its_norm_takes_the_constant() -> None:
    model = pair([nn.Identity()], bias=False)
    normed = nn.Sequential(*copy.deepcopy(model), nn.BatchNorm2d(3))
    for each in (model, normed):
        with torch.no_grad():
            each[0].weight[1] = 0
            each[0].bias[1] = 0.5
    shift = 0.5 * model[2].weight[:, 1].sum((1, 2))
    assert shrunk(model).removed == shrunk(normed).removed == 1
    torch.testing.assert_close(model[2].bias, shift)
    assert normed[2].bias is None
    torch.testing.assert_close(normed[3].running_mean, -shift)


def test_modes_that_differ_keep_a_channel() -> None:
    """A batch norm gives its bias in training; in evaluation its running mean counts."""
    model = pair([nn.BatchNorm2d(4), nn.ReLU()])
    with torch.no_grad():
        model[0].weight[1] = 0
        model[0].bias[1] = 0
        model[1].bias[1] = 0.25
        model[1].running_mean[1] = -1.0
    report = shrunk(model)
    assert report.removed == 0
    assert "3 reads 1.25 in evaluation mode and 0.25 in training mode" in reasons(report)
    with torch.no_grad():
        model[1].running_mean[1] = 0
    assert shrunk(model).removed == 1
    assert (model[1].num_features, len(model[1].running_var)) == (3, 3)


def test_a_norm_that_multiplies_by_zero_makes_a_constant() -> None:
    model = pair([nn.BatchNorm2d(4)])
    with torch.no_grad():
        model[1].weight[2] = 0
        model[1].bias[2] = 0
    assert shrunk(model).removed == 1


def test_what_nobody_reads_goes() -> None:
    model = pair([nn.ReLU()], padding=1)
    with torch.no_grad():
        model[2].weight[:, 3] = 0
    assert shrunk(model).removed == 1


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last = nn.Conv2d(2, 4, 1), nn.Conv2d(2, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.one(x) + self.other(x)).relu())


def test_residual_sums_tie_channels() -> None:
    torch.manual_seed(0)
    model = Residual()
    with torch.no_grad():
        model.one.weight[0] = model.one.bias[0] = 0
    report = shrunk(model)
    assert report.removed == 0
    assert "last reads a value that is not constant" in reasons(report)
    with torch.no_grad():
        model.other.weight[0] = model.other.bias[0] = 0
    assert shrunk(model).removed == 2  # one channel of two layers
    assert model.one.out_channels == model.other.out_channels == model.last.in_channels == 3


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last = nn.Conv2d(2, 3, 1), nn.Conv2d(2, 2, 1), nn.Conv2d(7, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([self.one(x), x, self.other(x)], 1))


def test_concatenations_keep_track_of_places() -> None:
    torch.manual_seed(0)
    model = Joined()
    with torch.no_grad():
        model.other.weight[0] = model.other.bias[0] = 0
        model.one.weight[2] = model.one.bias[2] = 0
    kept = model.last.weight.detach()[:, [0, 1, 3, 4, 6]]
    assert shrunk(model).removed == 2
    assert torch.equal(model.last.weight, kept)


def test_depthwise_and_grouped_convolutions_lose_whole_groups() -> None:
    torch.manual_seed(0)
    depthwise = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 8, 3, padding=1, groups=4, bias=False), nn.Conv2d(8, 2, 1))
    grouped = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.Conv2d(6, 2, 1))
    with torch.no_grad():
        depthwise[0].weight[1] = depthwise[0].bias[1] = 0
        grouped[0].weight[1] = grouped[0].bias[1] = 0
    assert shrunk(depthwise).removed == 1 + 2
    assert (depthwise[1].groups, depthwise[1].in_channels, depthwise[1].out_channels) == (3, 3, 6)
    assert shrunk(grouped).removed == 0  # the other channel of its group lives
    with torch.no_grad():
        grouped[0].weight[:2] = grouped[0].bias[:2] = 0
    assert shrunk(grouped).removed == 2 + 3
    assert (grouped[1].groups, grouped[1].in_channels, grouped[1].out_channels) == (1, 2, 3)


def test_group_norms_lose_whole_groups_and_layer_norms_none() -> None:
    torch.manual_seed(0)
    model = pair([nn.GroupNorm(2, 4), nn.ReLU()])
    with torch.no_grad():
        model[0].weight[2:] = model[0].bias[2:] = 0
        model[1].bias[2:] = -1
    assert shrunk(model).removed == 2
    assert (model[1].num_groups, model[1].num_channels) == (1, 2)
    layered = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    with torch.no_grad():
        layered[0].weight[0] = layered[0].bias[0] = 0
    report = shrunk(layered)
    assert report.removed == 0
    assert "the norm 1 takes the mean over it" in reasons(report)


def test_flattened_channels_take_all_their_columns_along() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    with torch.no_grad():
        model[0].weight[1] = 0
        model[0].bias[1] = 0.5  # folds into the linear layer
    assert shrunk(model).removed == 1
    assert model[4].in_features == 12


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.last = nn.Linear(6, 8), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.wide(x).chunk(2, dim=-1)
        return self.last(value * gate.sigmoid())


def test_halves_of_a_chunk_go_together() -> None:
    torch.manual_seed(0)
    model = Gated()
    with torch.no_grad():
        model.wide.weight[1] = model.wide.bias[1] = 0
    assert shrunk(model).removed == 2
    assert (model.wide.out_features, model.last.in_features) == (6, 3)


class Sorts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.strange, self.last = nn.Linear(6, 4), Strange(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.strange(self.first(x)))


class Strange(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sort(-1).values


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x


def test_what_cannot_be_followed_stays_with_its_module_in_the_reason() -> None:
    torch.manual_seed(0)
    model = Sorts()
    with torch.no_grad():
        model.first.weight[1] = model.first.bias[1] = 0
    report = shrunk(model)
    assert report.removed == 0
    assert "strange" in reasons(report)
    untraceable = nn.Sequential(nn.Linear(6, 4), Branching(), nn.Linear(4, 2))
    with pytest.raises(CannotFollow, match=r"cannot be followed: torch.fx cannot trace 1 \(Branching\)"):
        autosparse.shrink(untraceable, X)


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        hidden[:, :, 0].add_(1.0)
        return self.last(hidden)


def test_what_is_written_into_a_view_is_noticed() -> None:
    torch.manual_seed(0)
    model = Writes()
    with torch.no_grad():
        model.first.weight[1] = model.first.bias[1] = 0
    report = shrunk(model)
    assert report.removed == 0
    assert "writes into a part of it" in reasons(report)


def test_a_layer_keeps_its_last_channel() -> None:
    model = pair([nn.ReLU()])
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    report = shrunk(model)
    assert (report.removed, model[0].out_channels) == (3, 1)
    assert "a layer would have no channel left" in reasons(report)


def test_outputs_of_the_model_stay() -> None:
    model = nn.Linear(6, 4)
    with torch.no_grad():
        model.weight[0] = 0
    report = shrunk(model)
    assert (report.removed, report.layers[0].zero_but_kept) == (0, 1)
    assert "it is an output of the model" in str(report)


def test_a_sparsified_model_is_refused() -> None:
    model = pair([nn.ReLU()])
    autosparse.sparsify(model, autosparse.STR(), epochs=1, steps_per_epoch=1)
    with pytest.raises(ValueError, match=r"0 has parametrizations: call sp\.finalize"):
        autosparse.shrink(model, X)


def test_tied_weights_are_cut_once_and_stay_tied() -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(6, 4), nn.Linear(4, 4)
    again = nn.Linear(4, 4)
    again.weight = last.weight
    model = nn.Sequential(first, nn.ReLU(), last, nn.ReLU(), again, nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        for layer in (first, last, again):
            layer.weight[1] = 0
            layer.bias[1] = 0
        last.weight[:, 1] = 0
    assert shrunk(model).removed == 2  # of `first` and of the tied weight
    assert model[4].weight is model[2].weight
    assert model[4].weight.shape == (3, 3)
