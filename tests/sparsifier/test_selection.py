"""Which tensors are sparsified."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import autosparse
from autosparse import GMP, AutoSparse, RigL, Sparsifier, sparsify
from autosparse.methods import Method
from autosparse.sparsifier.selection import select


class Zoo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.conv = nn.Sequential(nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4), nn.ConvTranspose2d(2, 2, 3))
        self.lstm = nn.LSTM(8, 8, bidirectional=True)
        self.attention = nn.MultiheadAttention(8, 2)
        self.norm = nn.LayerNorm(8)
        self.kernel = nn.Parameter(torch.randn(8, 8))
        self.fc = nn.Linear(8, 3)


def names(model: nn.Module, **patterns: object) -> list[str]:
    return [layer.name for layer in select(model, **patterns)]


def test_default_takes_matrices_and_leaves_norms_biases_and_embeddings():
    assert names(Zoo()) == [
        "conv.0", "conv.2", "lstm.weight_ih_l0", "lstm.weight_hh_l0", "lstm.weight_ih_l0_reverse", "lstm.weight_hh_l0_reverse",
        "attention.in_proj_weight", "attention.out_proj", "fc",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        (("fc",), ["fc"]),
        ("conv", ["conv.0", "conv.2"]),
        (("conv.*", "kernel"), ["kernel", "conv.0", "conv.2"]),
        (("embed",), ["embed"]),
        (("norm.bias",), ["norm.bias"]),
        (nn.Embedding, ["embed"]),
        (("*_hh_*",), ["lstm.weight_hh_l0", "lstm.weight_hh_l0_reverse"]),
        ((lambda name, module: name.endswith("proj"),), ["attention.out_proj"]),
    ],
)
def test_include_takes_globs_types_and_callables(include, expected):
    assert names(Zoo(), include=include) == expected


def test_exclude():
    left = names(Zoo(), exclude=("lstm", nn.Conv1d, "attention.in*", lambda name, module: name == "fc"))
    assert left == ["conv.2", "attention.out_proj"]
    assert "fc" in names(Zoo(), exclude=("norm",)), "a module that is dense anyway may be excluded"


@pytest.mark.parametrize("argument", ["include", "exclude"])
def test_a_pattern_that_matches_nothing_lists_near_misses(argument):
    with pytest.raises(ValueError, match=r"'atention\.\*' matches nothing; did you mean .*attention"):
        select(Zoo(), **{argument: ("atention.*",)})


def test_a_pattern_of_another_type_is_refused():
    with pytest.raises(TypeError, match="globs, module types or callables"):
        select(Zoo(), include=(3,))


def test_a_model_without_prunable_layers_is_refused():
    with pytest.raises(ValueError, match="no layer to sparsify"):
        select(nn.Sequential(nn.BatchNorm1d(3), nn.Embedding(3, 3)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight


def test_a_head_tied_to_a_dense_embedding_is_left_alone_with_a_message():
    with pytest.warns(autosparse.SparsityWarning, match=r"head is left dense.*tied to embed\.weight"):
        assert names(Tied()) == ["body"]


def test_a_tied_head_that_is_named_takes_the_embedding_along():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (layer,) = select(Tied(), include=("head",))
    assert [place.key for place in layer.places] == ["head.weight", "embed.weight"]


def test_weights_tied_between_two_linears_are_one_layer():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    assert names(model) == ["0"]


def test_sparsify_twice_is_refused():
    model = nn.Linear(4, 4)
    autosparse.sparsify(model, AutoSparse(), epochs=1, steps_per_epoch=1)
    with pytest.raises(ValueError, match="sparsified already"):
        autosparse.sparsify(model, AutoSparse(), epochs=1, steps_per_epoch=1)


def test_weights_with_a_foreign_parametrization_are_left_dense_with_a_message():
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
    with pytest.warns(autosparse.SparsityWarning, match=r"^0 is left dense.*already \(_WeightNorm\)"):
        assert names(model) == ["1"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert names(model, exclude=("0",)) == ["1"]


def test_a_foreign_parametrization_is_refused_where_it_is_named_or_alone():
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
    for given, include in ((model, ("0",)), (model[:1], None)):
        with pytest.raises(ValueError, match=r"0\.weight already has the parametrization _WeightNorm.*exclude '0'"):
            select(given, include=include)


class Experts(nn.Module):
    """As in transformers: the weights of all experts are one parameter, and no Linear module."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(100, 8), nn.Linear(8, 8)
        self.experts = nn.Module()
        self.experts.up, self.experts.scale = nn.Parameter(torch.randn(4, 8, 16)), nn.Parameter(torch.ones(4, 1))


def test_large_parameters_that_are_left_dense_are_mentioned():
    with pytest.warns(
        autosparse.SparsityWarning, match=r"^37% .*left dense \(experts\.up\).*include=\('experts\.up', \.\.\.\)"
    ):
        assert names(Experts()) == ["output"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert names(Experts(), exclude=("experts",)) == ["output"]
        assert names(Experts(), include=("experts.up", "output")) == ["output", "experts.up"]


class StdConv2d(nn.Conv2d):
    """As timm's: zeros are gone once the mean is subtracted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._conv_forward(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


def test_layers_that_standardise_their_weight_are_mentioned_unless_excluded():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), StdConv2d(4, 4, 3), StdConv2d(4, 4, 3))
    with pytest.warns(autosparse.SparsityWarning, match=r"2 layers, 1 first, standardise their weight.*\(StdConv2d\)"):
        assert [layer.name for layer in select(model)] == ["0", "1", "2"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [layer.name for layer in select(model, exclude=StdConv2d)] == ["0"]


def test_the_root_module_itself_can_be_the_layer():
    sp = autosparse.sparsify(nn.Linear(4, 4), AutoSparse(), epochs=1, steps_per_epoch=1, example_input=torch.randn(2, 4))
    (row,) = sp.report().layers
    assert (row.name, row.kind, row.weights, row.macs) == ("weight", "Linear", 16, 16)


def test_a_weight_under_torch_prune_is_refused_with_the_way_out():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    with pytest.raises(ValueError, match=r"0 is pruned by torch\.nn\.utils\.prune.*prune\.remove\(module, 'weight'\)"):
        select(model)
    prune.remove(model[0], "weight")
    assert names(model) == ["0"]


def half_frozen() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    return model


def train(model: nn.Module, sp: autosparse.Sparsifier, steps: int) -> None:
    optimizer = torch.optim.SGD(sp.param_groups(weight_decay=1e-3), lr=0.1)
    sp.bind(optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
    sp.end_epoch(loss=1.0)


@pytest.mark.parametrize("name", ["autosparse", "gmp", "rigl", "topkast"])
def test_frozen_weights_are_left_alone_with_a_message(name):
    model = half_frozen()
    before = [model[place].weight.clone() for place in (0, 2)]
    with pytest.warns(autosparse.SparsityWarning, match=r"0, 2 are left dense.*frozen.*include=\('0', \.\.\.\)"):
        sp = autosparse.sparsify(model, autosparse.method(name), epochs=1, steps_per_epoch=8)
    assert [layer.name for layer in sp.layers] == ["4"]
    train(model, sp, steps=8)
    sp.finalize()
    assert all(torch.equal(model[place].weight, weight) for place, weight in zip((0, 2), before, strict=True))


def test_a_frozen_weight_that_is_named_is_sparsified():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert names(half_frozen(), include=("0", "4")) == ["0", "4"]
        assert names(half_frozen(), exclude=("0", "2")) == ["4"], "what is excluded anyway needs no message"


def test_a_frozen_bias_does_not_matter():
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].bias.requires_grad_(False)
    assert names(model) == ["0"]


def test_a_model_that_is_frozen_altogether_is_refused():
    with pytest.raises(ValueError, match=r"all 3 layers.*are frozen.*unfreeze.*include=\('0', \.\.\.\)"):
        select(half_frozen().requires_grad_(False))


def test_a_weight_frozen_after_sparsify_stays_while_its_threshold_moves():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    sp = autosparse.sparsify(model, AutoSparse(), epochs=1, steps_per_epoch=8)
    layer = sp.layers[0]
    layer.stored.requires_grad_(False)
    weight, threshold = layer.weight().clone(), layer.parametrization.threshold_values()
    train(model, sp, steps=8)
    assert torch.equal(layer.weight(), weight)
    assert not torch.equal(layer.parametrization.threshold_values(), threshold)


class Backwards(nn.Module):
    """Its layers are registered in the reverse order of their use."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.middle, self.first = nn.Linear(20, 10), nn.Linear(20, 20), nn.Linear(10, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x)))


def backwards(method: Method, **options: Any) -> Sparsifier:
    return sparsify(Backwards(), method, epochs=10, steps_per_epoch=100, **options)


def test_the_ends_of_the_network_follow_the_example_input() -> None:
    example = {"example_input": torch.zeros(1, 10)}
    first, last = RigL(dense_first=True), RigL(dense_first=False, dense_last=True)
    assert [layer.name for layer in backwards(first).layers] == ["middle", "first"], "as registered"
    assert [layer.name for layer in backwards(first, **example).layers] == ["last", "middle"]
    assert [layer.name for layer in backwards(last).layers] == ["last", "middle"]
    assert [layer.name for layer in backwards(last, **example).layers] == ["middle", "first"]


def test_dense_ends_inside_a_run_and_the_last_layer_of_gmp_follow_it_too() -> None:
    example = torch.zeros(1, 10)
    erk = backwards(RigL(sparsity=0.5, distribution="erk", dense_first=True), example_input=example)
    assert [density == 1 for density in erk.densities()] == [False, False, True]
    gmp = GMP(sparsity=0.9, last_sparsity=0.8, dense_first=False)
    assert gmp.finals(backwards(gmp, example_input=example), 0.9) == {"last": 0.8, "middle": 0.9, "first": 0.9}
    assert gmp.finals(backwards(gmp), 0.9) == {"last": 0.9, "middle": 0.9, "first": 0.8}


def test_the_ends_stay_where_they_were_when_a_forward_pass_shows_the_order() -> None:
    method = RigL(sparsity=0.5, distribution="erk", dense_first=True)
    run = backwards(method)
    run.model(torch.zeros(1, 10))
    assert run.ledger.profile is not None
    assert method.dense_inside(run) == ["last"]
