"""The peak of what torch allocates."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autosparse import kernels
from autosparse.bench.allocations import peak_of
from autosparse.functional import soft_threshold

MB = 2**20


def test_the_peak_counts_what_is_alive_together_and_not_what_was_before() -> None:
    before = torch.zeros(MB)

    def call() -> float:
        total = 0.0
        for _ in range(3):  # one after the other
            total += float(torch.ones(MB).sum() + before[0])
        both = torch.ones(MB), torch.ones(2 * MB)
        return total + float(both[0][0] + both[1][0])

    assert 12 * MB <= peak_of(call) < 13 * MB


@pytest.mark.skipif(not kernels.available(), reason="needs the kernels")
def test_effective_weights_that_are_kept_count() -> None:
    weight = nn.Parameter(torch.randn(1024, 1024))
    peak = peak_of(lambda: soft_threshold(weight, 0.5).sum())
    assert 4 * MB <= peak < 5 * MB
