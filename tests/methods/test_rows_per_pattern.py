"""Output channels that share their zeros: numbers by hand, and runs whose patterns agree row by row."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import autosparse
import autosparse.kernels
from autosparse.common.tensors import threshold_under_ties
from autosparse.functional import shared_norm, shared_threshold, soft_threshold

from ..conftest import Loop
from ..states import differences

METHODS = [
    autosparse.AutoSparse(alpha=0.75, target_sparsity=0.7, rows_per_pattern=2),
    autosparse.AutoSparse(alpha=0.75, target_sparsity=0.7, rows_per_pattern=3),
    autosparse.AutoSparse(alpha=0.75, target_sparsity=0.7, threshold="shared", rows_per_pattern=2, backward_sparsity=0.3),
    autosparse.AutoSparse(alpha=0.75, target_sparsity=0.7, shape=3.0, rescale=True, rows_per_pattern=2),
    autosparse.STR(target_sparsity=0.7, rows_per_pattern=2),
    autosparse.GMP(sparsity=0.7, update_every=2, begin=0.0, end=0.6, last_sparsity=None, dense_first=False, rows_per_pattern=2),
    autosparse.DPF(sparsity=0.7, update_every=2, dense_last=False, rows_per_pattern=2),
    autosparse.DNW(sparsity=0.7, rows_per_pattern=2),
    autosparse.SWAT(sparsity=0.7, update_every=2, dense_first=False, rows_per_pattern=4),
]


def test_norms_by_hand():
    weight = torch.tensor([[3.0, 0.0], [4.0, 1.0], [0.5, -2.0]])
    pair, alone = math.sqrt(12.5), math.sqrt(0.5)
    expected = [[pair, alone], [pair, alone], [0.5, 2.0]]  # the last channel is a group of its own
    assert shared_norm(weight, 2, 0).tolist() == [pytest.approx(row) for row in expected]
    assert shared_norm(weight.T, 2, 1).T.tolist() == [pytest.approx(row) for row in expected]
    convolution = torch.randn(4, 3, 2, 2)
    assert torch.allclose(shared_norm(convolution, 4, 0)[1], convolution.square().mean(0).sqrt())
    assert torch.equal(shared_norm(convolution, 1, 0), convolution.square().sqrt())


def test_values_and_gradients_by_hand():
    weight = torch.tensor([[3.0, 0.1], [4.0, -0.2]], requires_grad=True)
    threshold = torch.tensor([1.0], requires_grad=True)
    norm = math.sqrt(12.5)
    effective = shared_threshold(weight, threshold, torch.tensor([0.25]), None, 2, 0)
    assert effective.tolist() == [pytest.approx([3 * (1 - 1 / norm), 0]), pytest.approx([4 * (1 - 1 / norm), 0])]
    (effective * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
    assert weight.grad.tolist() == [[1, 0.5], [3, 1]]  # G on the active pair, a quarter of it on the pruned one
    assert threshold.grad.tolist() == pytest.approx([-(3 * 1 + 4 * 3) / norm])  # the active pair alone


def test_groups_of_one_are_the_soft_threshold():
    weight = torch.randn(6, 5, 3)
    threshold = torch.tensor([0.6])
    one = shared_threshold(weight, threshold, torch.tensor([0.5]), None, 1, 0)
    assert torch.allclose(one, soft_threshold(weight, threshold, 0.5), atol=1e-6)
    assert torch.equal(one == 0, soft_threshold(weight, threshold) == 0)


def test_with_reach_only_large_pruned_groups_receive():
    weight = torch.tensor([[3.0, 0.5, 0.1], [3.0, 0.5, 0.1]], requires_grad=True)
    shared_threshold(weight, torch.tensor([1.0]), torch.tensor([1.0]), torch.tensor([0.3]), 2, 0).sum().backward()
    assert weight.grad.tolist() == [[1, 1, 0], [1, 1, 0]]


def test_a_floor_among_ties_keeps_at_least_the_density():
    magnitudes = torch.tensor([1.0, 1.0, 2.0, 2.0, 3.0, 3.0])
    assert float(threshold_under_ties(magnitudes, 0.1)) == 2.5
    assert float(threshold_under_ties(magnitudes, 0.5)) == 1.5  # three of six: the pair of twos stays whole
    assert float(threshold_under_ties(magnitudes, 1.0)) == 0.5


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 9, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(81, 3)
    )


def share(mask: torch.Tensor, rows: int) -> bool:
    return all(bool((group == group[:1]).all()) for group in mask.split(rows))


@pytest.mark.filterwarnings("ignore::autosparse.SparsityWarning")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.about.name}-{method.rows_per_pattern}")
def test_patterns_agree_at_every_epoch_and_in_the_finished_model(method):
    torch.manual_seed(0)
    loop = Loop(net(), method, epochs=4, steps=5, shape=(1, 8, 8), lr=0.05)
    rows = method.rows_per_pattern
    for _ in range(4):
        loop.epoch()
        assert all(share(layer.active(), rows) for layer in loop.sp.layers)
        for layer in loop.sp.layers:
            assert torch.equal(layer.effective() != 0, layer.active())
    assert loop.sp.sparsity() == pytest.approx(0.7, abs=0.01)
    model = loop.sp.finalize()
    for module in model:
        if isinstance(module, nn.Conv2d | nn.Linear):
            assert share(module.weight != 0, rows)


@pytest.mark.filterwarnings("ignore::autosparse.SparsityWarning")
@pytest.mark.parametrize("method", [METHODS[0], METHODS[2], METHODS[5]], ids=["learned", "shared", "gmp"])
def test_resume_is_exact(method):
    def begun(seed):
        torch.manual_seed(seed)
        return Loop(net(), method, epochs=4, steps=5, shape=(1, 8, 8), lr=0.05)

    whole = begun(0)
    whole.epoch()
    whole.epoch()
    saved = copy.deepcopy((whole.model.state_dict(), whole.opt.state_dict(), whole.sp.state_dict()))
    expected = [whole.epoch(), whole.epoch()]
    resumed = begun(1)
    for target, state in zip((resumed.model, resumed.opt, resumed.sp), saved, strict=True):
        target.load_state_dict(state)
    assert [resumed.epoch(), resumed.epoch()] == expected
    assert differences(resumed.sp.dense_state_dict(), whole.sp.dense_state_dict()) == []


def test_sparse_kernels_give_the_same_patterns_and_nearly_the_same_weights():
    weights = {}
    for mode in ("dense", "sparse"):
        torch.manual_seed(0)
        loop = Loop(net(), METHODS[0], epochs=2, steps=3, shape=(1, 8, 8), lr=0.05)
        if mode == "sparse" and not autosparse.kernels.available():
            pytest.skip("no native kernels here")
        loop.sp.compute(mode)
        loop.epoch()
        weights[mode] = loop.sp.dense_state_dict()
    for name, weight in weights["dense"].items():
        assert torch.allclose(weight, weights["sparse"][name], atol=1e-4), name


def test_the_guard_keeps_its_floor():
    torch.manual_seed(0)
    method = autosparse.AutoSparse(alpha=0.5, s_init=5.0, rows_per_pattern=2)  # prunes everything
    with pytest.warns(autosparse.SparsityWarning):
        loop = Loop(net(), method, epochs=2, steps=3, shape=(1, 8, 8), density_floor=0.05)
    assert min(loop.sp.densities()) >= 0.05
    assert all(share(layer.active(), 2) for layer in loop.sp.layers)


def test_transposed_weights_share_along_their_output_dimension():
    model = nn.Sequential(nn.ConvTranspose2d(1, 4, 2), nn.Flatten(), nn.Linear(324, 3))
    loop = Loop(model, autosparse.STR(start_sparsity=0.6, rows_per_pattern=2), shape=(1, 8, 8))
    active = loop.sp.layers[0].active()
    assert share(active.transpose(0, 1), 2)
    assert 0 < int(active.sum()) < active.numel()


@pytest.mark.parametrize("rows", [0, -1, 1.5, True])
@pytest.mark.parametrize("kind", [autosparse.AutoSparse, autosparse.GMP])
def test_wrong_numbers_are_refused(kind, rows):
    with pytest.raises(ValueError, match=r"rows_per_pattern = .*; it is how many output channels share their zeros"):
        kind(rows_per_pattern=rows)


def test_thresholds_per_channel_are_refused():
    with pytest.raises(ValueError, match="rows_per_pattern lets output channels share"):
        autosparse.AutoSparse(threshold="channel", rows_per_pattern=2)
