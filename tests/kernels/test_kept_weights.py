"""The memory of a large effective weight is used again, but never while anything still needs it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autosparse
from autosparse import AutoSparse, kernels
from autosparse.functional import soft_threshold
from autosparse.kernels.memory import LEAST_KEPT, kept_bytes

pytestmark = pytest.mark.skipif(not kernels.available(), reason="needs the kernels")
LARGE, SMALL = (2, LEAST_KEPT // 2), (2, LEAST_KEPT // 2 - 1)


def weight_of(shape: tuple[int, ...] = LARGE) -> nn.Parameter:
    return nn.Parameter(torch.linspace(-1, 1, LEAST_KEPT)[: shape[0] * shape[1]].reshape(shape))


def expected(weight: Tensor) -> Tensor:
    return weight.detach().sign() * (weight.detach().abs() - 0.5).relu()


def test_the_next_step_has_the_same_memory() -> None:
    weight = weight_of()
    addresses = set()
    for _ in range(3):
        effective = soft_threshold(weight, 0.5)
        assert torch.equal(effective, expected(weight))
        addresses.add(effective.data_ptr())
        effective.sum().backward()
        weight.data.mul_(0.9)
        del effective
    assert len(addresses) == 1


HOLDS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tensor": (Tensor.detach, Tensor.clone),
    "view": (lambda effective: effective[0], Tensor.clone),
    "array": (Tensor.numpy, torch.tensor),
    "storage": (Tensor.untyped_storage, lambda storage: torch.empty(0).set_(storage).clone()),
}


@pytest.mark.parametrize("name", HOLDS)
def test_what_somebody_holds_is_left_alone(name: str) -> None:
    (hold, read), weight = HOLDS[name], weight_of()
    held = hold(soft_threshold(weight, 0.5).detach())
    before = read(held)
    weight.data.mul_(2)
    assert torch.equal(soft_threshold(weight, 0.5), expected(weight))
    assert torch.equal(read(held), before)


def test_a_graph_that_waits_for_its_backward_pass_keeps_its_weight() -> None:
    weight = weight_of()
    first, second = nn.Parameter(torch.ones(LARGE)), nn.Parameter(torch.ones(LARGE))
    losses = []
    for factor in (first, second):
        losses.append((soft_threshold(weight, 0.5) * factor).sum())
        with torch.no_grad():
            assert torch.equal(soft_threshold(weight * 3, 0.5), expected(weight * 3))
    for loss in losses:
        loss.backward()
    assert torch.equal(first.grad, expected(weight))  # type: ignore[arg-type]
    assert torch.equal(second.grad, expected(weight))  # type: ignore[arg-type]


def test_other_memory_orders_and_weights_that_grow() -> None:
    weight = nn.Parameter(torch.randn(512, 64, 3, 3).to(memory_format=torch.channels_last))
    effective = soft_threshold(weight, 0.5)
    assert effective.stride() == weight.stride()
    assert torch.equal(effective, expected(weight))
    del effective
    weight.data = torch.randn(1024, 64, 3, 3)
    effective = soft_threshold(weight, 0.5)
    assert effective.is_contiguous()
    assert torch.equal(effective, expected(weight))


def test_nothing_is_kept_of_small_weights_without_gradients_and_after_the_weight() -> None:
    gc.collect()
    before = kept_bytes()
    weight, small = weight_of(), weight_of(SMALL)
    soft_threshold(small, 0.5)
    with torch.no_grad():
        soft_threshold(weight, 0.5)
    assert kept_bytes() == before
    soft_threshold(weight, 0.5)
    assert kept_bytes() == before + weight.nbytes
    del weight
    gc.collect()
    assert kept_bytes() == before


def test_threads_never_share_memory() -> None:
    weight, both = weight_of(), Barrier(2)
    wrong = []

    def work(threshold: float) -> None:
        for _ in range(20):
            both.wait()
            effective = soft_threshold(weight, threshold).detach()
            both.wait()
            if not torch.equal(effective, weight.detach().sign() * (weight.detach().abs() - threshold).relu()):
                wrong.append(threshold)

    threads = [Thread(target=work, args=(threshold,)) for threshold in (0.25, 0.75)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_layers_on_the_kernels_keep_nothing() -> None:
    gc.collect()
    before = kept_bytes()
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    sp = autosparse.sparsify(model, AutoSparse(start_sparsity=0.9), epochs=1, steps_per_epoch=9)
    x = torch.randn(8, 512)
    sp.compute("dense")
    model(x).sum().backward()
    assert kept_bytes() == before + 2 * 4 * 512 * 512
    sp.compute("sparse")
    model(x).sum().backward()
    assert kept_bytes() == before
