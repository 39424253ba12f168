"""Every kind of layer: trained, finalized to the outputs it had in training, and counted."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import autosparse
from autosparse import STR, AutoSparse

from .kinds import KINDS, Tied
from .training import begin, mlp


def key_of(name: str, keys: list[str]) -> str:
    return name if name in keys else f"{name}.weight"


@pytest.mark.parametrize("name", KINDS)
def test_trains_finalizes_to_the_same_outputs_and_is_counted(name: str) -> None:
    kind = KINDS[name]
    model = kind.build()
    keys = list(model.state_dict())
    kinds = [type(module) for module in model.modules()]
    names = [key for key, _ in model.named_parameters()]
    before = copy.deepcopy(model.state_dict())
    method = AutoSparse(alpha=0.5, start_sparsity=0.4)
    sp = autosparse.sparsify(model, method, epochs=2, steps_per_epoch=3, include=kind.include)
    opt = torch.optim.SGD(sp.param_groups(weight_decay=1e-3), lr=0.05)
    sp.bind(opt)
    data = kind.data()
    target = torch.randn_like(model(data).detach())
    for _ in range(2):
        for _ in range(3):
            opt.zero_grad()
            (model(data) - target).square().mean().backward()
            opt.step()
        sp.end_epoch()
    trained = model(data).detach()
    report = sp.report()

    assert sp.finalize() is model

    assert torch.equal(model(data).detach(), trained)
    state = model.state_dict()
    assert list(state) == keys
    assert [key for key, _ in model.named_parameters()] == names
    assert [type(module) for module in model.modules()] == kinds
    assert {layer.name: layer.macs for layer in report.layers} == kind.macs
    for layer in report.layers:
        weight = state[key_of(layer.name, keys)]
        assert layer.weights == weight.numel()
        assert layer.zeros == int((weight == 0).sum()) > 0
        assert not torch.equal(weight, before[key_of(layer.name, keys)])
    assert sp.report().zeros == report.zeros
    model.load_state_dict(state)


@pytest.mark.parametrize("threshold", ["layer", "channel", "shared"])
@pytest.mark.parametrize("name", ["transposed grouped", "bidirectional lstm", "attention", "tied head"])
def test_every_threshold_on_unusual_layers(name: str, threshold: str) -> None:
    kind = KINDS[name]
    model = kind.build()
    sp = autosparse.sparsify(
        model, STR(threshold=threshold, target_sparsity=0.6), epochs=1, steps_per_epoch=4, include=kind.include
    )
    opt = torch.optim.SGD(sp.param_groups(), lr=0.05)
    sp.bind(opt)
    data = kind.data()
    for _ in range(4):
        opt.zero_grad()
        model(data).square().mean().backward()
        opt.step()
    total = sum(layer.numel for layer in sp.layers)
    assert abs(sp.sparsity() - 0.6) <= 1 / total + 1e-9
    trained = model(data).detach()
    assert torch.equal(sp.finalize()(data).detach(), trained)


def test_tied_head_stays_tied_and_is_written_once() -> None:
    model = Tied()
    sp = autosparse.sparsify(model, STR(), epochs=1, steps_per_epoch=1, include=("embed", "head"))
    assert [layer.name for layer in sp.layers] == ["embed"]
    assert model.embed.parametrizations.weight.original is model.head.parametrizations.weight.original
    effective = model.head.weight.detach().clone()
    sp.finalize()
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.head.weight, effective)


class Counting(nn.Linear):
    """Keeps something that is no tensor in its state."""

    calls = 0

    def forward(self, data: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(data)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def test_extra_state_of_modules_travels_with_plain_states() -> None:
    model = nn.Sequential(Counting(4, 4))
    sp = autosparse.sparsify(model, STR(), epochs=1, steps_per_epoch=1)
    model(torch.randn(2, 4))
    state = sp.dense_state_dict()
    assert list(state) == ["0.weight", "0.bias", "0._extra_state"]
    other = nn.Sequential(Counting(4, 4))
    autosparse.sparsify(other, STR(), epochs=1, steps_per_epoch=1).load_dense(state)
    assert (other[0].calls, model[0].calls) == (1, 1)
    assert type(sp.finalize()[0]) is Counting


def test_a_lazy_layer_is_refused_until_it_has_a_shape() -> None:
    model = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(ValueError, match=r"0\.weight has no shape yet: run one forward pass"):
        autosparse.sparsify(model, STR(), epochs=1, steps_per_epoch=1)
    model(torch.randn(2, 4))
    assert autosparse.sparsify(model, STR(), epochs=1, steps_per_epoch=1).layers[0].numel == 16


@pytest.mark.parametrize("name", ["linear", "tied head", "bidirectional lstm", "attention"])
def test_a_finalized_model_can_be_sparsified_again(name: str) -> None:
    kind = KINDS[name]
    model, data = kind.build(), kind.data()
    for _ in range(2):
        sp = autosparse.sparsify(model, STR(target_sparsity=0.5), epochs=1, steps_per_epoch=3, include=kind.include)
        opt = torch.optim.SGD(sp.param_groups(), lr=0.01)
        sp.bind(opt)
        for _ in range(3):
            opt.zero_grad()
            model(data).square().mean().backward()
            opt.step()
        output = model(data).detach()
        assert torch.equal(sp.finalize()(data).detach(), output)


def test_a_head_tied_to_an_embedding_is_left_dense_unless_named() -> None:
    with pytest.warns(autosparse.SparsityWarning, match=r"head is left dense: its weight is tied to embed\.weight"):
        sp = autosparse.sparsify(Tied(), STR(), epochs=1, steps_per_epoch=1)
    assert [layer.name for layer in sp.layers] == ["middle"]


def test_encoder_fast_path_reads_effective_weights() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    sp = autosparse.sparsify(model, STR(start_sparsity=0.6), epochs=1, steps_per_epoch=1)
    data = torch.randn(2, 5, 8)
    slow = model(data).detach()
    model.eval()
    with torch.no_grad():
        fast = model(data)
    plain = nn.TransformerEncoder(layer.__class__(8, 2, dim_feedforward=16, dropout=0.0, batch_first=True), 2)
    plain.load_state_dict(sp.dense_state_dict())
    with torch.no_grad():
        expected = plain.eval()(data)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-5)
    torch.testing.assert_close(fast, expected, rtol=0, atol=1e-6)


def test_two_models_have_alphas_of_their_own() -> None:
    first = begin(mlp(), AutoSparse(alpha=0.9, schedule="linear"), epochs=2, steps=2)
    second = begin(mlp(), AutoSparse(alpha=0.4, schedule="constant"), epochs=2, steps=2)
    first.advance(2)
    assert (first.sp.alpha, second.sp.alpha) == (0.45, 0.4)
    gates = [run.sp.layers[0].parametrization.gate.item() for run in (first, second)]
    assert gates == pytest.approx([0.45, 0.4])


def test_meta_construction_then_weights_then_bind() -> None:
    method = AutoSparse(alpha=0.5, start_sparsity=0.4, backward_sparsity=0.2)
    plain = mlp()
    with torch.device("meta"):
        model = mlp()
    sp = autosparse.sparsify(model, method, epochs=2, steps_per_epoch=2)
    model.to_empty(device="cpu")
    sp.load_dense(plain.state_dict())
    opt = torch.optim.SGD(sp.param_groups(weight_decay=1e-3), lr=0.05)
    sp.bind(opt)
    ordinary = begin(copy.deepcopy(plain), method, epochs=2, steps=2)
    for name, value in ordinary.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    data = torch.randn(4, 10)
    gradients = []
    for run_model in (model, ordinary.model):
        run_model(data).square().sum().backward()
        gradients.append([parameter.grad for parameter in run_model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_meta_construction_of_a_sharded_style_start() -> None:
    """to_empty and weights written into the stored parameters by hand; bind makes the thresholds."""
    with torch.device("meta"):
        model = mlp()
    sp = autosparse.sparsify(model, STR(start_sparsity=0.5), epochs=1, steps_per_epoch=1)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    sp.bind(torch.optim.SGD(sp.param_groups(weight_decay=1e-3), lr=0.1))
    assert sp.sparsity() == pytest.approx(0.5, abs=0.01)


ORDER = r"the order is: \.to\(\), sparsify, then compile / DDP / fully_shard, then the optimizer, then bind"


def test_compiled_models_are_refused() -> None:
    compiled = mlp()
    compiled.compile()
    inside = nn.Sequential(torch.compile(nn.Linear(4, 4)), nn.Linear(4, 4))
    for model in (torch.compile(mlp()), compiled, inside):
        with pytest.raises(ValueError, match=ORDER):
            autosparse.sparsify(model, STR(), epochs=1, steps_per_epoch=1)


def test_data_parallel_models_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.DataParallel(mlp())
    with pytest.raises(ValueError, match=ORDER):
        autosparse.sparsify(model, STR(), epochs=1, steps_per_epoch=1)
