"""The order, the shares of ranks and the random numbers: functions of (seed, epoch, sample) and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosparse.data.batches import check_ranks, check_training, evaluation_share, permutation, training_share, uniform

seeds = st.integers(0, 2**31)
epochs = st.integers(0, 500)


@given(count=st.integers(1, 200), seed=seeds, epoch=epochs)
def test_an_order_holds_every_sample_once_and_comes_again(count: int, seed: int, epoch: int) -> None:
    order = permutation(count, seed, epoch)
    assert sorted(order.tolist()) == list(range(count))
    assert (permutation(count, seed, epoch) == order).all()


def test_orders_differ_between_epochs_and_seeds() -> None:
    orders = [tuple(permutation(50, seed, epoch).tolist()) for seed in range(4) for epoch in range(4)]
    assert len(set(orders)) == 16


@given(seed=seeds, epoch=epochs, draws=st.integers(1, 41), picked=st.lists(st.integers(0, 2_000_000), min_size=1, max_size=20))
def test_the_numbers_of_a_sample_do_not_depend_on_its_company(seed: int, epoch: int, draws: int, picked: list[int]) -> None:
    together = uniform(np.array(picked), draws, seed, epoch)
    alone = np.concatenate([uniform(np.array([index]), draws, seed, epoch) for index in picked])
    assert (together == alone).all()
    assert (together >= 0).all()
    assert (together < 1).all()


def test_the_numbers_are_those_of_splitmix64() -> None:
    """The stream written out number by number, in Python's own integers."""
    key = int(np.random.SeedSequence([3, 7, 1]).generate_state(1, np.uint64)[0])
    whole, state = [], key
    for _ in range(20):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
        whole.append(((mixed ^ (mixed >> 31)) >> 11) / 2**53)
    assert uniform(np.arange(5), 4, seed=3, epoch=7).ravel().tolist() == whole


def test_the_numbers_are_evenly_spread_and_unrelated() -> None:
    numbers = uniform(np.arange(40_000), 3, seed=0, epoch=0)
    assert np.abs(numbers.mean(0) - 0.5).max() < 0.01
    shares = np.histogram(numbers[:, 0], 10, (0, 1))[0] / 40_000
    assert np.abs(shares - 0.1).max() < 0.01
    next_epoch = uniform(np.arange(40_000), 3, seed=0, epoch=1)
    columns = np.column_stack([numbers, next_epoch, np.roll(numbers, 1, 0)])
    assert np.abs(np.corrcoef(columns, rowvar=False) - np.eye(9)).max() < 0.03


@given(samples=st.integers(1, 100), part=st.integers(1, 8), world=st.integers(1, 4), data=st.data())
def test_ranks_take_their_parts_of_the_same_batches(samples: int, part: int, world: int, data: st.DataObject) -> None:
    order, batch_size = permutation(samples, 1, 2), part * world
    whole = [order[begin : begin + batch_size] for begin in range(0, samples - samples % batch_size, batch_size)]
    shares = [training_share(order, batch_size, rank, world) for rank in range(world)]
    assert {len(share) for share in shares} == {samples // batch_size}
    for batch, *parts in zip(whole, *shares, strict=True):
        assert {len(own) for own in parts} == {part}
        assert np.concatenate(parts).tolist() == batch.tolist()
    skip = data.draw(st.integers(0, len(whole) + 1))
    late = training_share(order, batch_size, 0, world, skip)
    assert [own.tolist() for own in late] == [own.tolist() for own in shares[0][skip:]]


@given(samples=st.integers(1, 100), batch_size=st.integers(1, 32), world=st.integers(1, 4), skip=st.integers(0, 9))
def test_ranks_evaluate_every_sample_once(samples: int, batch_size: int, world: int, skip: int) -> None:
    shares = [evaluation_share(samples, batch_size, rank, world) for rank in range(world)]
    seen = [int(index) for share in shares for batch in share for index in batch]
    assert sorted(seen) == list(range(samples))
    late = evaluation_share(samples, batch_size, 0, world, skip)
    assert [batch.tolist() for batch in late] == [batch.tolist() for batch in shares[0][skip:]]


def test_impossible_shares_are_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="5 processes for 3 training samples: start at most 3"):
        check_ranks(3, 0, 5, "training")
    with pytest.raises(ValueError, match="rank 2 of 2"):
        check_ranks(30, 2, 2, "training")
    with pytest.raises(ValueError, match="batch_size = 64 does not split over 3 processes; take a multiple, such as 63"):
        check_training(100, 64, 3)
    with pytest.raises(ValueError, match="batch_size = 64, but there are only 50 training samples"):
        check_training(50, 64, 2)
