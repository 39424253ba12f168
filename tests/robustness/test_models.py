"""Every kind of layer: trained, finalized to the outputs it had in training, and counted."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import autosparse
from autosparse import STR, AutoSparse

from .training import begin, mlp


class Recurrent(nn.Module):
    """A recurrent layer whose output sequence is the answer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.rnn = layer

    def forward(self, sequence: Tensor) -> Tensor:
        output: Tensor = self.rnn(sequence)[0]
        return output


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 5)

    def forward(self, sequence: Tensor) -> Tensor:
        state = (sequence.new_zeros(sequence.shape[0], 5), sequence.new_zeros(sequence.shape[0], 5))
        for position in range(sequence.shape[1]):
            state = self.cell(sequence[:, position], state)
        return state[0]


class Attending(nn.Module):
    """Attention of a sequence to itself, or to a narrower one, which needs projections of their own."""

    def __init__(self, narrow: int | None = None) -> None:
        super().__init__()
        self.narrow = narrow
        self.mha = nn.MultiheadAttention(8, 2, kdim=narrow, vdim=narrow, batch_first=True)

    def forward(self, sequence: Tensor) -> Tensor:
        source = sequence if self.narrow is None else sequence[..., : self.narrow]
        output: Tensor = self.mha(sequence, source, source, need_weights=False)[0]
        return output


class Named(nn.Module):
    """A parameter that no layer owns."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.mixing = nn.Parameter(torch.randn(8, 6))

    def forward(self, data: Tensor) -> Tensor:
        return (data * self.scale) @ self.mixing


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.head(torch.tanh(self.middle(self.embed(tokens))))
        return output


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.head(self.embed(tokens))
        return output


def dense(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(2, *shape)


def tokens() -> Tensor:
    return torch.randint(12, (2, 5))


@dataclass(frozen=True)
class Kind:
    build: Callable[[], nn.Module]
    data: Callable[[], Tensor]
    macs: dict[str, int]  # by hand, for one sample
    include: tuple[str, ...] | None = None


KINDS = {
    "linear": Kind(lambda: nn.Sequential(nn.Linear(8, 6)), dense(8), {"0": 48}),
    # 6 positions x 4 channels x 3 inputs x 3 taps
    "conv1d": Kind(lambda: nn.Sequential(nn.Conv1d(3, 4, 3)), dense(3, 8), {"0": 6 * 4 * 9}),
    "conv2d": Kind(lambda: nn.Sequential(nn.Conv2d(3, 4, 3)), dense(3, 6, 6), {"0": 16 * 4 * 27}),
    "conv3d": Kind(lambda: nn.Sequential(nn.Conv3d(2, 3, 2)), dense(2, 4, 4, 4), {"0": 27 * 3 * 16}),
    "grouped": Kind(lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2)), dense(4, 5, 5), {"0": 9 * 6 * 2 * 9}),
    "depthwise": Kind(
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 5, 1)), dense(4, 5, 5), {"0": 9 * 4 * 9, "1": 9 * 20}
    ),
    # every input position meets all taps of all outputs
    "transposed1d": Kind(lambda: nn.Sequential(nn.ConvTranspose1d(3, 4, 3)), dense(3, 5), {"0": 15 * 12}),
    "transposed2d": Kind(lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 2)), dense(3, 5, 5), {"0": 75 * 16}),
    "transposed3d": Kind(lambda: nn.Sequential(nn.ConvTranspose3d(2, 3, 2)), dense(2, 3, 3, 3), {"0": 54 * 24}),
    "transposed grouped": Kind(
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2)), dense(4, 3, 3), {"0": 36 * 27}
    ),
    "rnn": Kind(
        lambda: Recurrent(nn.RNN(4, 5, batch_first=True)),
        dense(6, 4),
        {"rnn.weight_ih_l0": 6 * 20, "rnn.weight_hh_l0": 6 * 25},
    ),
    "gru": Kind(
        lambda: Recurrent(nn.GRU(4, 5, batch_first=True)),
        dense(6, 4),
        {"rnn.weight_ih_l0": 6 * 60, "rnn.weight_hh_l0": 6 * 75},
    ),
    "lstm": Kind(
        lambda: Recurrent(nn.LSTM(4, 5, num_layers=2, batch_first=True)),
        dense(6, 4),
        {
            "rnn.weight_ih_l0": 6 * 80,
            "rnn.weight_hh_l0": 6 * 100,
            "rnn.weight_ih_l1": 6 * 100,
            "rnn.weight_hh_l1": 6 * 100,
        },
    ),
    "bidirectional lstm": Kind(
        lambda: Recurrent(nn.LSTM(4, 5, batch_first=True, bidirectional=True)),
        dense(6, 4),
        {
            "rnn.weight_ih_l0": 6 * 80,
            "rnn.weight_hh_l0": 6 * 100,
            "rnn.weight_ih_l0_reverse": 6 * 80,
            "rnn.weight_hh_l0_reverse": 6 * 100,
        },
    ),
    "projected lstm": Kind(
        lambda: Recurrent(nn.LSTM(4, 5, proj_size=3, batch_first=True)),
        dense(6, 4),
        {"rnn.weight_ih_l0": 6 * 80, "rnn.weight_hh_l0": 6 * 60, "rnn.weight_hr_l0": 6 * 15},
    ),
    "lstm cell": Kind(Cell, dense(6, 4), {"cell.weight_ih": 6 * 80, "cell.weight_hh": 6 * 100}),
    "attention": Kind(Attending, dense(5, 8), {"mha.in_proj_weight": 3 * 5 * 64, "mha.out_proj": 5 * 64}),
    "attention to a narrower source": Kind(
        lambda: Attending(6),
        dense(5, 8),
        {"mha.q_proj_weight": 5 * 64, "mha.k_proj_weight": 5 * 48, "mha.v_proj_weight": 5 * 48, "mha.out_proj": 5 * 64},
    ),
    "encoder layer": Kind(
        lambda: nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, dropout=0.0, batch_first=True),
        dense(5, 8),
        {"self_attn.in_proj_weight": 960, "self_attn.out_proj": 320, "linear1": 640, "linear2": 640},
    ),
    "named parameter": Kind(Named, dense(8), {"mixing": 48}, include=("mixing",)),
    "tied head": Kind(Tied, tokens, {"embed": 5 * 96, "middle": 5 * 64}, include=("embed", "middle", "head")),
    # a look-up multiplies nothing
    "embedding": Kind(Embedded, tokens, {"embed": 0, "head": 5 * 32}, include=("embed", "head")),
}


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
    assert model.embed.parametrizations.weight.original is model.head.parametrizations.weight.original  # type: ignore[union-attr]
    effective = model.head.weight.detach().clone()
    sp.finalize()
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.head.weight, effective)


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
    inside = nn.Sequential(torch.compile(nn.Linear(4, 4)), nn.Linear(4, 4))  # type: ignore[arg-type]
    for model in (torch.compile(mlp()), compiled, inside):
        with pytest.raises(ValueError, match=ORDER):
            autosparse.sparsify(model, STR(), epochs=1, steps_per_epoch=1)  # type: ignore[arg-type]


def test_data_parallel_models_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.DataParallel(mlp())
    with pytest.raises(ValueError, match=ORDER):
        autosparse.sparsify(model, STR(), epochs=1, steps_per_epoch=1)
