"""Sparse compute: the same numbers as dense torch, for every weight gradient that a method may want."""

from __future__ import annotations

import copy
from typing import ClassVar

import pytest
import torch
from torch import nn

import autosparse
from autosparse import DNW, STR, AutoSparse, RigL, TopKAST, kernels
from autosparse.compute import compute, overrides, routing
from autosparse.compute.planner import DENSE, Passes

needs_kernels = pytest.mark.skipif(not kernels.available(), reason=f"no native kernels: {kernels.why_not()}")


class Net(nn.Module):
    """Convolutions, a strided one, a grouped one that stays dense, and linear layers with any leading shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.strided = nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False)
        self.grouped = nn.Conv2d(24, 24, 3, padding=1, groups=4)
        self.mix = nn.Linear(24, 40)
        self.out = nn.Linear(40, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.grouped(torch.tanh(self.strided(torch.tanh(self.first(x)))))
        return self.out(torch.tanh(self.mix(x.permute(0, 2, 3, 1)))).mean((1, 2))


def trained(method, mode: str, steps: int = 4):
    torch.manual_seed(0)
    model = Net()
    sp = autosparse.sparsify(model, method, epochs=2, steps_per_epoch=steps // 2)
    sp.compute(mode)
    optimizer = torch.optim.SGD(sp.param_groups(weight_decay=1e-3), lr=0.05, momentum=0.9)
    sp.bind(optimizer)
    x, y = torch.randn(6, 3, 10, 10), torch.randint(5, (6,))
    gradients = []
    for step in range(steps):
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(x), y) + sp.penalty()).backward()
        gradients.append([layer.stored.grad.clone() for layer in sp.layers if layer.stored.grad is not None])
        optimizer.step()
        if (step + 1) % (steps // 2) == 0:
            sp.end_epoch()
    return sp, gradients, model(x)


METHODS = [
    STR(start_sparsity=0.8),
    AutoSparse(start_sparsity=0.8),
    AutoSparse(start_sparsity=0.8, backward_sparsity=0.5),
    AutoSparse(start_sparsity=0.8, dense_grad_every=2),
    AutoSparse(start_sparsity=0.8, threshold="channel", zero_epoch=1),
    TopKAST(sparsity=0.8, backward_sparsity=0.4),
    DNW(sparsity=0.8),
    RigL(sparsity=0.8, update_every=100, update_end=1.0),
    autosparse.GMP(sparsity=0.8, start_sparsity=0.8, begin=0.0),
    autosparse.Random(sparsity=0.8),
    autosparse.DST(),
]


@needs_kernels
@pytest.mark.parametrize("method", METHODS, ids=[f"{each.about.name}-{place}" for place, each in enumerate(METHODS)])
def test_sparse_compute_trains_like_dense(method):
    dense, dense_gradients, expected = trained(method, "dense")
    sparse, gradients, output = trained(method, "sparse")
    assert "skip the zeros" in str(sparse.report())
    for ours, theirs in zip(gradients, dense_gradients, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)
    assert torch.allclose(output, expected, atol=1e-4)
    assert sparse.sparsity() == pytest.approx(dense.sparsity(), abs=0.005)


@needs_kernels
def test_which_layers_a_kernel_serves():
    sp = autosparse.sparsify(Net(), STR(), epochs=1, steps_per_epoch=1)
    assert [layer.name for layer in sp.layers if routing.fits(layer)] == ["first", "strided", "mix", "out"]
    attention = autosparse.sparsify(nn.MultiheadAttention(8, 2), STR(), epochs=1, steps_per_epoch=1)
    assert not any(routing.fits(layer) for layer in attention.layers)
    with pytest.raises(RuntimeError, match="nothing can run sparse"):
        attention.compute("sparse")
    double = autosparse.sparsify(nn.Linear(4, 4).double(), STR(), epochs=1, steps_per_epoch=1)
    assert not routing.fits(double.layers[0])


@needs_kernels
def test_auto_follows_the_planner_and_says_what_it_chose(monkeypatch):
    asked = []

    class Planned:
        seconds_spent = 0.25
        decisions: ClassVar[dict[str, object]] = {}

        def considers(self, workload, density):
            return True

        def decide(self, layer, workload, density, entries, mask_density):
            asked.append((layer, workload.linear, workload.conv.out_size, round(density, 1), entries))
            return Passes(True, False, False) if layer == "mix" else DENSE

        def fusing_pays(self, layers, are_fused):
            return True

    monkeypatch.setattr(compute, "Planner", Planned)
    sp, _, _ = trained(STR(start_sparsity=0.8), "auto")
    assert ("strided", False, (5, 5), 0.2, "active") in asked
    assert ("mix", True, (1, 128), 0.2, "active") in asked
    assert len(asked) == 4 * (1 + 2), "after the second step, when shapes are known, then once an epoch"
    assert "1 of 12 passes of 4 layers skip the zeros" in str(sp.report())
    assert "measuring took 0.2 s" in str(sp.report())


@needs_kernels
def test_copies_and_finalize_keep_working():
    sp, _, expected = trained(STR(start_sparsity=0.8), "sparse")
    torch.manual_seed(0)
    Net()  # the same draws as in `trained`, up to the data
    x = torch.randn(6, 3, 10, 10)
    twin = copy.deepcopy(sp.model)
    assert torch.equal(twin(x), sp.model(x))
    overrides.follow(twin.first).passes = DENSE
    assert all(overrides.follow(sp.model.first).passes), "a copy has an override of its own"
    model = sp.finalize()
    assert "forward" not in vars(model.first)
    assert overrides.override_of(model.first) is None
    assert torch.allclose(model(x), expected, atol=1e-5)


@needs_kernels
def test_back_to_dense_takes_the_overrides_off():
    sp = autosparse.sparsify(Net(), STR(), epochs=1, steps_per_epoch=1)
    sp.compute("sparse")
    sp.compute("dense")
    assert "forward" not in vars(sp.model.first)
    assert str(sp.report()).count("counted, not skipped") == 1


def test_bad_modes_and_absent_kernels(monkeypatch):
    sp = autosparse.sparsify(Net(), STR(), epochs=1, steps_per_epoch=1)
    with pytest.raises(ValueError, match="allowed: auto, dense, sparse"):
        sp.compute("fast")
    monkeypatch.setattr(kernels, "available", lambda: False)
    monkeypatch.setattr(kernels, "why_not", lambda: "no library was built")
    with pytest.raises(RuntimeError, match="cannot run here: no library was built"):
        sp.compute("sparse")
    sp.compute("auto")
    assert "counted, not skipped (no library was built)" in str(sp.report())
    assert "forward" not in vars(sp.model.first)
