"""Compressed weights: what they hold, when they are kept, when only their values change."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from autosparse import kernels
from autosparse.kernels import compressed
from autosparse.kernels.compressed import Compressed, CompressedWeights
from autosparse.kernels.geometry import Convolution
from autosparse.kernels.layout import Layout, layout_for
from autosparse.kernels.memory import Words

from .reference import sparse_weight

pytestmark = pytest.mark.usefixtures("native")


def layout() -> Layout:
    return layout_for(Convolution(1, 40, (1, 30), 20), channels_last=False)


def weight(seed: int = 0) -> Tensor:
    return sparse_weight((20, 40), 0.2, torch.Generator().manual_seed(seed))


def values_in(entries: Words, count: int) -> Tensor:
    """Of the first `count` entries: an offset and a value each."""
    return entries.part(0, 2 * count).tensor(torch.float32)[1::2].clone()


def values(held: Compressed) -> Tensor:
    return values_in(held.entries, held.nonzeros)


def transposed(held: Compressed, threads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Copies of row starts, offsets and values by input channel."""
    start, entries = held.transposed(threads)
    offsets = entries.part(0, 2 * held.nonzeros).tensor()[::2].clone()
    return start.part(0, 40 + 1).tensor().clone(), offsets, values_in(entries, held.nonzeros)


def rebuilt(held: Compressed, shape: tuple[int, int]) -> Tensor:
    """The dense weight again, from rows, offsets and values; for a plan of one block."""
    dense, offsets = torch.zeros(shape), held.entries.part(0, 2 * held.nonzeros).tensor()[::2].long()
    columns = held.layout.slots[offsets // held.layout.forward_group.window.lanes, 0].long()
    for row in range(shape[0]):
        begin, end = held.row_start.tensor()[row : row + 2].tolist()
        dense[row, columns[begin:end]] = values(held)[begin:end]
    return dense


@pytest.mark.parametrize("threads", [1, 3])
def test_it_holds_the_nonzeros(threads: int) -> None:
    held = Compressed(layout(), weight(), threads)
    assert held.nonzeros == int((weight() != 0).sum())
    assert torch.equal(rebuilt(held, (20, 40)), weight())


def test_the_transposed_form_holds_the_same_values() -> None:
    one, many = Compressed(layout(), weight(), 1), Compressed(layout(), weight(), 4)
    start, _, found = transposed(one, 1)
    assert torch.equal(start.diff(), (weight() != 0).sum(0))
    assert torch.equal(found, weight().t()[weight().t() != 0])
    for ours, theirs in zip(transposed(one, 1), transposed(many, 4), strict=True):
        assert torch.equal(ours, theirs)


def test_refresh_takes_new_values_and_notices_a_new_pattern() -> None:
    held = Compressed(layout(), weight(), 1)
    held.transposed(1)
    for factor in (3, 4, 5):  # made in scratch memory, then kept, then refreshed
        assert held.refresh(factor * weight(), 2)
        assert torch.equal(rebuilt(held, (20, 40)), factor * weight())
        for ours, theirs in zip(transposed(held, 1), transposed(Compressed(layout(), factor * weight(), 1), 1), strict=True):
            assert torch.equal(ours, theirs)
    moved = weight()
    place = tuple((moved != 0).nonzero()[0])
    moved[place] = 0
    assert not held.refresh(moved, 1)
    gained = weight()
    gained[tuple((gained == 0).nonzero()[0])] = 1.0
    assert not Compressed(layout(), weight(), 1).refresh(gained, 1)
    swapped = moved.clone()
    swapped[tuple((weight() == 0).nonzero()[-1])] = 1.0
    assert not Compressed(layout(), weight(), 1).refresh(swapped, 1)


def test_one_weight_is_compressed_once() -> None:
    kept, dense = CompressedWeights(), weight()
    first = kept.find(layout(), dense)
    assert kept.find(layout(), dense) is first
    assert kept.find(layout(), dense.detach()) is first
    assert len(kept) == 1


def test_a_change_in_place_is_seen() -> None:
    kept, dense = CompressedWeights(), weight()
    first = kept.find(layout(), dense)
    dense.mul_(2)
    second = kept.find(layout(), dense)
    assert second is first, "the pattern is the same"
    assert torch.equal(rebuilt(second, (20, 40)), 2 * weight())
    dense[0] = 0
    assert torch.equal(rebuilt(kept.find(layout(), dense), (20, 40)), dense)


def test_a_new_weight_in_old_memory_is_a_new_weight() -> None:
    kept = CompressedWeights()
    for seed in range(20):
        dense = weight(seed)
        assert torch.equal(rebuilt(kept.find(layout(), dense), (20, 40)), dense)
        del dense
    gc.collect()
    assert len(kept) <= 4, "forms of weights that are gone are dropped"


def test_layers_of_one_shape_find_their_own_patterns_again() -> None:
    kept = CompressedWeights()
    first = [weight(seed) for seed in range(3)]
    patterns = [kept.find(layout(), each).entries.data_ptr() for each in first]
    second = [2 * each for each in first]
    del first
    assert [kept.find(layout(), each).entries.data_ptr() for each in second] == patterns


def test_another_pattern_goes_into_the_same_memory_if_it_fits() -> None:
    held = Compressed(layout(), weight(), 1)
    held.transposed(1)
    memory = held.entries.data_ptr()
    fewer = weight()
    fewer[:2] = 0
    held.fill(fewer, 1)
    assert held.entries.data_ptr() == memory
    assert torch.equal(rebuilt(held, (20, 40)), fewer)
    assert torch.equal(transposed(held, 1)[2], fewer.t()[fewer.t() != 0])
    for other in (torch.ones(20, 40), torch.zeros(20, 40), weight(7)):
        held.fill(other, 2)
        assert torch.equal(rebuilt(held, (20, 40)), other)


def test_a_form_in_use_is_not_lent_although_its_weight_is_gone() -> None:
    class User:
        pass

    kept, user = CompressedWeights(), User()
    first = kept.find(layout(), dense := weight())
    first.users.add(user)
    kept.drop_dense_weight(first)
    del dense
    for seed in range(5):  # which may well lie where the first weight lay
        other = kept.find(layout(), weight(seed))
        assert other is not first
    assert torch.equal(rebuilt(first, (20, 40)), weight())
    del user
    assert kept.find(layout(), weight(9)) is first, "the oldest that nobody uses"


def test_weights_that_were_let_go_find_their_forms_again() -> None:
    """As a vocabulary layer does for every chunk of tokens, and a layer whose weight nobody makes anew."""
    kept, weights = CompressedWeights(), [weight(seed) for seed in range(3)]
    forms = [kept.find(layout(), each) for each in weights]
    for _ in range(3):
        for dense, form in zip(weights, forms, strict=True):
            kept.drop_dense_weight(form)
            assert kept.find(layout(), dense) is form
            assert torch.equal(rebuilt(form, (20, 40)), dense)
    assert len(kept) == 3


def test_tensors_without_a_version_are_not_kept() -> None:
    kept = CompressedWeights()
    with torch.inference_mode():
        dense = weight()
        assert torch.equal(rebuilt(kept.find(layout(), dense), (20, 40)), dense)
    assert len(kept) == 0


def test_forward_and_backward_share_one_compressed_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = Compressed.__init__

    def counted(self: Compressed, *args: object) -> None:
        made.append(self)
        original(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Compressed, "__init__", counted)
    stored, x = weight().requires_grad_(), torch.randn(30, 40, requires_grad=True)
    kernels.sparse_linear(x, stored * 1.0, None, "active").sum().backward()
    assert len(made) == 1
    assert len(compressed.WEIGHTS) == 1
