"""Every method gives a channels_last net the masks and weights that it gives the same net in the default memory format."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import autosparse
from autosparse.methods.families.base import LooksAtData
from tests.sparse_nets import example_for, prepare_for

FIELDS = {"rigl": {"update_every": 2}, "dsr": {"update_every": 2}, "gmp": {"begin": 0.0, "update_every": 1}}


def train(name: str, memory_format: torch.memory_format) -> list[tuple[Tensor, Tensor]]:
    """Five steps in float64; the effective weight and the active set of every layer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.ReLU(), nn.Conv2d(12, 6, 3), nn.Flatten(), nn.Linear(24, 5)
    )
    prepare_for(name, model).to(torch.float64).to(memory_format=memory_format)
    images = torch.randn(6, 3, 8, 8, dtype=torch.float64).to(memory_format=memory_format)
    labels = torch.randint(5, (6,))
    run = autosparse.sparsify(
        model, autosparse.method(name, **FIELDS.get(name, {})), epochs=1, steps_per_epoch=5, **example_for(name, images)
    )
    if isinstance(run.method, LooksAtData):
        run.score([(images, labels)], lambda net, batch: cross_entropy(net(batch[0]), batch[1]))
    optimizer = torch.optim.SGD(run.param_groups(weight_decay=1e-3), lr=0.05, momentum=0.9)
    run.bind(optimizer)
    for _ in range(5):
        loss = cross_entropy(model(images), labels) + run.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    run.end_epoch(loss=1.0)
    return [(layer.effective(), layer.active()) for layer in run.layers]


@pytest.mark.parametrize("name", autosparse.list_methods())
def test_channels_last_changes_nothing(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", autosparse.SparsityWarning)
        plain, last = (train(name, each) for each in (torch.contiguous_format, torch.channels_last))
    for (weight, active), (other_weight, other_active) in zip(plain, last, strict=True):
        assert torch.equal(active, other_active)
        torch.testing.assert_close(weight, other_weight, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["rigl", "topkast", "gmp", "optg", "cs", "ltp", "scl", "swat"])
def test_masks_and_scores_lie_in_memory_as_the_weight_does(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3), nn.Conv2d(12, 6, 3)).to(memory_format=torch.channels_last)
    run = autosparse.sparsify(model, autosparse.method(name), epochs=3, steps_per_epoch=5)
    middle = next(layer for layer in run.layers if layer.name == "1")
    tensors = [*middle.parametrization.buffers(), *middle.parametrization.parameters()]
    of_its_shape = [each for each in tensors if each.shape == middle.shape]
    assert of_its_shape
    assert all(each.stride() == middle.stored.stride() for each in of_its_shape)
