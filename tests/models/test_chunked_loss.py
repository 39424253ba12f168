"""Cross-entropy by chunks of tokens against torch's own on all logits."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import autosparse
from autosparse import AutoSparse, kernels
from autosparse.models import chunked_cross_entropy

needs_kernels = pytest.mark.skipif(not kernels.available(), reason=f"no native kernels: {kernels.why_not()}")


def pieces(tokens, size=6, vocabulary=11, bias=True, dtype=torch.float64, ignored=0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(size, vocabulary, bias=bias, dtype=dtype)
    with torch.no_grad():
        for each in layer.parameters():
            each.copy_(torch.randn(each.shape, generator=generator, dtype=dtype))
    hidden = torch.randn(tokens, size, generator=generator, dtype=dtype, requires_grad=True)
    targets = torch.randint(1, vocabulary, (tokens,), generator=generator)
    targets[:ignored] = 0
    return hidden, layer, targets


def gradients(loss, hidden, layer):
    return torch.autograd.grad(loss, [hidden, *layer.parameters()])


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 9),
    chunk=st.integers(1, 10),
    ignored=st.integers(0, 3),
    smoothing=st.sampled_from([0.0, 0.1, 0.7]),
    reduction=st.sampled_from(["mean", "sum"]),
    bias=st.booleans(),
    seed=st.integers(0, 9),
)
def test_loss_and_gradients_are_those_of_all_logits(tokens, chunk, ignored, smoothing, reduction, bias, seed):
    hidden, layer, targets = pieces(tokens, bias=bias, ignored=min(ignored, tokens - 1), seed=seed)
    options = {"ignore_index": 0, "label_smoothing": smoothing, "reduction": reduction}
    ours = chunked_cross_entropy(hidden, layer, targets, chunk=chunk, **options)
    theirs = F.cross_entropy(layer(hidden), targets, **options)
    torch.testing.assert_close(ours, theirs)
    for mine, other in zip(gradients(3 * ours, hidden, layer), gradients(3 * theirs, hidden, layer), strict=True):
        torch.testing.assert_close(mine, other)


def test_by_hand():
    """Two tokens, two words, no bias: softmax of (1, 0) and of (0, 2)."""
    layer = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2))
    hidden = torch.tensor([[1.0, 0.0], [0.0, 2.0]], requires_grad=True)
    loss = chunked_cross_entropy(hidden, layer, torch.tensor([0, 0]), chunk=1)
    loss.backward()
    assert loss.item() == pytest.approx((0.3132617 + 2.1269280) / 2, abs=1e-6)
    assert hidden.grad.flatten().tolist() == pytest.approx([-0.1344707, 0.1344707, -0.4403985, 0.4403985], abs=1e-6)


def test_float32_is_as_close_to_double_as_torch():
    hidden, layer, targets = pieces(64, size=32, vocabulary=500, dtype=torch.float32)
    exact = [each.detach().double().requires_grad_() for each in (hidden, *layer.parameters())]
    truth = torch.autograd.grad(F.cross_entropy(F.linear(*exact), targets), exact)
    ours = gradients(chunked_cross_entropy(hidden, layer, targets, chunk=20), hidden, layer)
    theirs = gradients(F.cross_entropy(layer(hidden), targets), hidden, layer)
    for mine, other, right in zip(ours, theirs, truth, strict=True):
        assert (mine - right).abs().max() <= 2 * (other - right).abs().max() + 1e-7


def test_leading_shapes_and_no_gradients():
    hidden, layer, targets = pieces(12)
    shaped = chunked_cross_entropy(hidden.reshape(3, 4, -1), layer, targets.reshape(3, 4), chunk=5)
    with torch.no_grad():
        plain = chunked_cross_entropy(hidden, layer, targets)
    assert not plain.requires_grad
    torch.testing.assert_close(shaped.detach(), plain)


def test_a_frozen_layer_gets_no_gradient():
    hidden, layer, targets = pieces(5)
    layer.requires_grad_(False)
    loss = chunked_cross_entropy(hidden, layer, targets, chunk=2)
    loss.backward()
    (right,) = torch.autograd.grad(F.cross_entropy(layer(hidden), targets), hidden)
    torch.testing.assert_close(hidden.grad, right)
    assert layer.weight.grad is None


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("mode", ["dense", pytest.param("sparse", marks=needs_kernels)])
def test_a_sparsified_layer_learns_weight_and_threshold_alike(alpha, mode):
    found = []
    for chunked in (True, False):
        hidden, layer, targets = pieces(40, dtype=torch.float32, bias=False)
        model = nn.Sequential(layer)
        method = AutoSparse(alpha=alpha, schedule="constant", start_sparsity=0.5)
        run = autosparse.sparsify(model, method, epochs=1, steps_per_epoch=1, example_input=hidden[:1])
        run.compute(mode)
        loss = chunked_cross_entropy(hidden, layer, targets, chunk=16) if chunked else F.cross_entropy(model(hidden), targets)
        found.append(torch.autograd.grad(loss, [hidden, *model.parameters()]))
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other)


def test_backward_runs_once():
    hidden, layer, targets = pieces(4)
    loss = chunked_cross_entropy(hidden, layer, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="used up"):
        loss.backward()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunk": 0}, "1 or more"),
        ({"reduction": "none"}, "mean, sum"),
        ({"targets": torch.zeros(3, dtype=torch.long)}, "needs targets"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    hidden, layer, targets = pieces(4)
    arguments = {"hidden": hidden, "layer": layer, "targets": targets} | change
    with pytest.raises(ValueError, match=message):
        chunked_cross_entropy(**arguments)
