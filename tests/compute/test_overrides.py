"""Who may take a module's forward, and how it comes back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import autosparse
from autosparse import AutoSparse
from autosparse.compute import overrides
from autosparse.compute.overrides import LARGEST_INPUTS, SPARSE, USER, owner_of, release, take


def doubled(self: nn.Linear, input: Tensor) -> Tensor:
    return 2 * nn.Linear.forward(self, input)


def start(model: nn.Module) -> autosparse.Sparsifier:
    sp = autosparse.sparsify(model, AutoSparse(start_sparsity=0.5), epochs=1, steps_per_epoch=1)
    sp.compute("sparse")
    return sp


def test_a_forward_is_taken_copied_and_given_back() -> None:
    module, x = nn.Linear(3, 2), torch.ones(1, 3)
    plain = module(x)
    take(module, SPARSE, doubled)
    assert owner_of(module) == SPARSE
    assert torch.equal(module(x), 2 * plain)
    twin = copy.deepcopy(module)
    release(module, LARGEST_INPUTS)
    assert owner_of(module) == SPARSE, "another owner cannot release it"
    release(module, SPARSE)
    assert owner_of(module) is None
    assert torch.equal(module(x), plain)
    assert vars(module).keys() == vars(nn.Linear(3, 2)).keys()
    assert owner_of(twin) == SPARSE
    assert torch.equal(twin(x), 2 * plain)


def test_a_taken_forward_is_not_taken_again() -> None:
    module = nn.Linear(3, 2)
    take(module, LARGEST_INPUTS, doubled)
    with pytest.raises(RuntimeError, match="taken by the largest inputs, not free for the sparse layer"):
        take(module, SPARSE, doubled)


def test_the_largest_shape_stays_when_the_forward_is_given_back() -> None:
    module = nn.Linear(3, 2)
    record = take(module, SPARSE, doubled)
    for rows in (2, 5, 4):
        record.note_shape(torch.Size([rows, 3]))
    release(module, SPARSE)
    assert overrides.follow(module).input_shape == torch.Size([5, 3])
    overrides.forget(module)
    assert overrides.override_of(module) is None


def test_a_forward_that_the_user_puts_over_ours_stays(native: None) -> None:
    model, x = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), torch.ones(1, 3)
    sp = start(model)
    before, ours = model(x), model[1].forward
    model[1].forward = lambda input: 2 * ours(input)  # type: ignore[method-assign]
    assert owner_of(model[1]) == USER
    sp.compute("dense")
    assert owner_of(model[0]) is None
    torch.testing.assert_close(model(x), 2 * before)


def test_layers_with_a_forward_of_their_own_are_left_alone(native: None) -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), Doubled(4, 2)), torch.randn(5, 3)
    sp = autosparse.sparsify(model, AutoSparse(start_sparsity=0.5), epochs=1, steps_per_epoch=1)
    sp.compute("dense")
    dense = model(x)
    sp.compute("sparse")
    assert [owner_of(module) for module in model] == [SPARSE, None]
    torch.testing.assert_close(model(x), dense)
