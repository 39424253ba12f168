"""MACs of every kind of layer against numbers computed by hand."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.flop_counter import FlopCounterMode

from autosparse.cost import Profile, profile


def macs(counted: Profile) -> dict[str, int]:
    return {layer.name: layer.macs for layer in counted.layers}


def one(model: nn.Module, *shape: int) -> tuple[str, int, int, tuple[int, ...] | None]:
    (layer,) = profile(nn.Sequential(model), torch.rand(shape)).layers
    assert layer.name == "0"
    return layer.kind, layer.params, layer.macs, layer.shape


@pytest.mark.parametrize(
    ("model", "shape", "kind", "params", "expected"),
    [
        (nn.Linear(5, 7), (2, 5), "linear", 35, 35),
        (nn.Linear(5, 7), (2, 3, 4, 5), "linear", 35, 35 * 12),
        (nn.Conv1d(3, 8, 5), (2, 3, 20), "conv1d", 120, 5 * 16 * 3 * 8),
        (nn.Conv2d(3, 8, 3, stride=2, padding=1), (2, 3, 9, 9), "conv2d", 216, 9 * 25 * 3 * 8),
        (nn.Conv2d(4, 8, (1, 3), groups=2), (2, 4, 5, 6), "conv2d", 48, 3 * 20 * 2 * 8),
        (nn.Conv2d(6, 6, 3, groups=6, padding=1), (1, 6, 4, 4), "conv2d", 54, 9 * 16 * 1 * 6),
        (nn.Conv2d(2, 3, 3, dilation=2, padding_mode="circular", padding=1), (1, 2, 6, 6), "conv2d", 54, 9 * 16 * 6),
        (nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4), "conv3d", 48, 8 * 27 * 2 * 3),
        (nn.ConvTranspose1d(4, 6, 3, stride=2), (2, 4, 5), "conv_transpose1d", 72, 5 * 4 * 3 * 6),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), (1, 4, 5, 5), "conv_transpose2d", 108, 25 * 4 * 9 * 3),
        (nn.ConvTranspose3d(1, 2, 2), (1, 1, 2, 2, 2), "conv_transpose3d", 16, 8 * 8 * 2),
    ],
)
def test_linear_and_convolutions(model: nn.Module, shape: tuple[int, ...], kind: str, params: int, expected: int) -> None:
    assert isinstance(model.weight, Tensor)
    assert one(model, *shape) == (kind, params, expected, tuple(model.weight.shape))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_convolutions_agree_with_torchs_own_counter(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 3))
    inputs, outputs = groups * data.draw(st.integers(1, 3)), groups * data.draw(st.integers(1, 3))
    dims = data.draw(st.sampled_from([1, 2, 3]))
    kind = data.draw(st.sampled_from(["Conv", "ConvTranspose"]))
    kernel, stride, dilation = (data.draw(st.integers(1, 3)) for _ in range(3))
    padding = data.draw(st.integers(0, (kernel - 1) * dilation // 2))
    batch = data.draw(st.integers(1, 3))
    sizes = [data.draw(st.integers(7, 9)) for _ in range(dims)]
    build = getattr(nn, f"{kind}{dims}d")
    layer = build(inputs, outputs, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups)
    x = torch.rand(batch, inputs, *sizes)
    with FlopCounterMode(display=False) as counter:
        out = layer(x)
    positions = (out if kind == "Conv" else x).shape[2:].numel()
    brute = positions * kernel**dims * inputs * outputs // groups
    assert profile(layer, x).macs == brute
    # torch's counter leaves the groups of a transposed convolution out of account
    if kind == "Conv" or groups == 1:
        assert counter.get_total_flops() == 2 * batch * brute


def test_bilinear() -> None:
    (layer,) = profile(nn.Bilinear(3, 4, 5), (torch.rand(2, 6, 3), torch.rand(2, 6, 4))).layers
    assert (layer.kind, layer.params, layer.macs) == ("bilinear", 60, 6 * 60)


def test_bidirectional_two_layer_lstm() -> None:
    model = nn.ModuleDict({"lstm": nn.LSTM(5, 7, num_layers=2, bidirectional=True, batch_first=True)})
    model.forward = lambda x: model["lstm"](x)[0]  # type: ignore[method-assign,assignment]
    counted = profile(model, torch.rand(3, 11, 5))
    for direction in ("", "_reverse"):
        assert macs(counted)[f"lstm.weight_ih_l0{direction}"] == 11 * 28 * 5
        assert macs(counted)[f"lstm.weight_hh_l0{direction}"] == 11 * 28 * 7
        assert macs(counted)[f"lstm.weight_ih_l1{direction}"] == 11 * 28 * 14
        assert macs(counted)[f"lstm.weight_hh_l1{direction}"] == 11 * 28 * 7
    assert len(counted.layers) == 8
    assert [layer.name for layer in counted.layers if layer.first] == ["lstm.weight_ih_l0", "lstm.weight_ih_l0_reverse"]


def test_lstm_with_projections() -> None:
    model = nn.LSTM(5, 7, num_layers=2, proj_size=3)
    counted = profile(model, torch.rand(11, 2, 5), batch_size=2)
    assert macs(counted) == {
        "weight_ih_l0": 11 * 28 * 5,
        "weight_hh_l0": 11 * 28 * 3,
        "weight_hr_l0": 11 * 3 * 7,
        "weight_ih_l1": 11 * 28 * 3,
        "weight_hh_l1": 11 * 28 * 3,
        "weight_hr_l1": 11 * 3 * 7,
    }
    assert {layer.name: layer.shape for layer in counted.layers} == {
        name: tuple(weight.shape) for name, weight in model.named_parameters() if name.startswith("weight")
    }


def test_gru_rnn_and_packed_sequences() -> None:
    assert macs(profile(nn.GRU(4, 6, batch_first=True), torch.rand(2, 5, 4))) == {
        "weight_ih_l0": 5 * 18 * 4,
        "weight_hh_l0": 5 * 18 * 6,
    }
    assert macs(profile(nn.RNN(4, 6), pack_sequence([torch.rand(3, 4), torch.rand(1, 4)]))) == {
        "weight_ih_l0": 2 * 6 * 4,
        "weight_hh_l0": 2 * 6 * 6,
    }


@pytest.mark.parametrize(("cell", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3), (nn.RNNCell, 1)])
def test_recurrent_cells(cell: type[nn.RNNCellBase], gates: int) -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell(4, 6)  # type: ignore[call-arg]

        def forward(self, x: Tensor) -> Tensor:
            state = None
            for step in x.unbind(1):
                state = self.cell(step, state)
            return state

    counted = profile(Steps(), torch.rand(2, 5, 4))
    assert macs(counted) == {"cell.weight_ih": 5 * gates * 24, "cell.weight_hh": 5 * gates * 36}
    assert [layer.first for layer in counted.layers] == [True, False]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_attention_counts_projections_products_and_out_proj(bias: bool, training: bool) -> None:
    model = nn.MultiheadAttention(8, 2, bias=bias, batch_first=True).train(training)
    counted = profile(model, (torch.rand(3, 5, 8), torch.rand(3, 6, 8), torch.rand(3, 6, 8)))
    assert macs(counted) == {
        "in_proj_weight": 5 * 64 + 2 * 6 * 64,
        "products": 2 * 5 * 6 * 8,
        "out_proj": 5 * 64,
    }
    assert counted.params == 4 * 64
    assert {layer.name: layer.kind for layer in counted.layers}["products"] == "attention"


def test_attention_with_other_key_sizes_and_extra_keys() -> None:
    model = nn.MultiheadAttention(8, 2, kdim=5, vdim=6, add_bias_kv=True, add_zero_attn=True)
    counted = profile(model, (torch.rand(3, 2, 8), torch.rand(4, 2, 5), torch.rand(4, 2, 6)), batch_size=2)
    assert macs(counted) == {
        "q_proj_weight": 3 * 64,
        "k_proj_weight": 4 * 40,
        "v_proj_weight": 4 * 48,
        "products": 2 * 3 * (4 + 2) * 8,
        "out_proj": 3 * 64,
    }


@pytest.mark.parametrize("training", [True, False])
def test_transformer_encoder_runs_without_its_fast_path(training: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).train(training)
    counted = profile(model, torch.rand(3, 5, 8))
    expected = {}
    for index in range(2):
        expected |= {
            f"layers.{index}.self_attn.in_proj_weight": 5 * 3 * 64,
            f"layers.{index}.self_attn.products": 2 * 5 * 5 * 8,
            f"layers.{index}.self_attn.out_proj": 5 * 64,
            f"layers.{index}.linear1": 5 * 128,
            f"layers.{index}.linear2": 5 * 128,
        }
    assert macs(counted) == expected
    assert torch.backends.mha.get_fastpath_enabled()


class Functional(nn.Module):
    """Parameters used without a module of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.rand(6, 4))
        self.filter = nn.Parameter(torch.rand(4, 4, 3))
        self.inner = nn.Linear(4, 4)
        self.register_buffer("mask", torch.ones(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = x @ (self.kernel * self.mask)
        x = F.conv1d(x.mT, self.filter, padding=1).mT
        x = F.linear(x, self.inner.weight.to(torch.float32))
        return torch.addmm(x[0], x[0], self.kernel[:4].t())


def test_functional_use_counts_under_the_parameters_name() -> None:
    counted = profile(Functional(), torch.rand(1, 5, 6))
    assert macs(counted) == {"kernel": 5 * 24 + 5 * 16, "filter": 5 * 3 * 16, "inner": 5 * 16}
    assert {layer.name: layer.kind for layer in counted.layers} == {
        "kernel": "linear",
        "filter": "conv1d",
        "inner": "linear",
    }
    assert {layer.name: layer.params for layer in counted.layers} == {"kernel": 24, "filter": 48, "inner": 16}


class SelfMade(torch.autograd.Function):
    """An effective weight that torch functions do not show."""

    @staticmethod
    def forward(ctx: object, weight: Tensor) -> Tensor:
        return weight.clone()


def test_hidden_effective_weight_counts_under_the_weight_of_its_shape() -> None:
    class Masked(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, SelfMade.apply(self.weight), self.bias)  # type: ignore[no-untyped-call]

    assert macs(profile(nn.Sequential(Masked(3, 4)), torch.rand(2, 3))) == {"0": 12}


def test_layer_whose_operator_is_unknown_counts_by_its_module() -> None:
    class Loop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor, weight: Tensor) -> Tensor:
            return x @ weight.t()

    model = nn.Sequential(nn.Conv1d(2, 3, 1), nn.Flatten(), nn.Linear(12, 5))
    linear, convolution = model[2], model[0]
    linear.forward = lambda x: Loop.apply(x, linear.weight)
    convolution.forward = lambda x: Loop.apply(x.mT, convolution.weight[..., 0]).mT
    counted = profile(model, torch.rand(2, 2, 4))
    assert macs(counted) == {"0": 4 * 6, "2": 60}
    assert [layer.first for layer in counted.layers] == [True, False]


class Products(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        if self.kind == "matmul":
            return a @ b.mT
        if self.kind == "bmm":
            return torch.bmm(a, b.mT)
        if self.kind == "baddbmm":
            return torch.baddbmm(torch.zeros(()), a, b.mT)
        if self.kind == "einsum":
            return torch.einsum("b i k, b j k -> b i j", a, b)
        if self.kind == "einsum ellipsis":
            return torch.einsum("...ik,...jk", a, b)
        return F.scaled_dot_product_attention(a, b, b)


@pytest.mark.parametrize("kind", ["matmul", "bmm", "baddbmm", "einsum", "einsum ellipsis", "attention"])
def test_products_of_activations_are_layers_of_their_module(kind: str) -> None:
    model = nn.ModuleDict({"mix": Products(kind)})
    model.forward = lambda a, b: model["mix"](a, b)  # type: ignore[method-assign,assignment]
    (layer,) = profile(model, (torch.rand(2, 5, 4), torch.rand(2, 6, 4))).layers
    assert (layer.name, layer.params, layer.shape) == ("mix.products", 0, None)
    assert layer.kind == ("attention" if kind == "attention" else "matmul")
    assert layer.macs == 5 * 6 * 4 * (2 if kind == "attention" else 1)


def test_einsum_of_three_operands_and_tensordot_with_a_parameter() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Parameter(torch.rand(4, 3))
            self.right = nn.Parameter(torch.rand(3, 5))
            self.last = nn.Parameter(torch.rand(2, 5, 6))

        def forward(self, x: Tensor) -> Tensor:
            x = torch.einsum("bti,ij,jk->btk", x, self.left, self.right)
            x = x * torch.einsum("bti,bti->bti", x, x)
            return torch.tensordot(x, self.last, dims=([1, 2], [0, 1]))

    # the middle operand pair (left, right) is counted under the parameter that enters
    counted = profile(Net(), torch.rand(3, 2, 4))
    assert macs(counted) == {"left": 2 * 4 * 3, "right": 2 * 3 * 5, "last": 60}


def test_module_called_twice_counts_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Linear(4, 4)
            self.alias = self.shared

        def forward(self, x: Tensor) -> Tensor:
            return self.alias(self.shared(x))

    (layer,) = profile(Twice(), torch.rand(2, 4)).layers
    assert (layer.name, layer.params, layer.macs, layer.first) == ("shared", 16, 32, False)


def test_tied_head_is_listed_and_its_parameters_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 4)
            self.middle = nn.Linear(4, 4, bias=False)
            self.again = nn.Linear(4, 4, bias=False)
            self.head = nn.Linear(4, 10, bias=False)
            self.again.weight = self.middle.weight
            self.head.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.again(self.middle(self.embedding(tokens))))  # type: ignore[no-any-return]

    counted = profile(Tied(), torch.zeros(2, 3, dtype=torch.long))
    assert macs(counted) == {"middle": 48, "again": 48, "head": 120}
    assert counted.params == 16 + 40
    assert {layer.name: layer.tied_to for layer in counted.layers} == {
        "middle": None,
        "again": "middle",
        "head": "embedding",
    }
    assert not any(layer.first for layer in counted.layers)
    assert counted.inference_fraction({"embedding": 0.5, "middle": 0.0}) == pytest.approx(60 / 216)


def test_first_means_reached_by_data_before_any_parameter() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(12, 4), nn.Linear(12, 4), nn.Linear(8, 2)
            self.normed, self.norm = nn.Linear(12, 4), nn.LayerNorm(12)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1) / 255
            return self.c(torch.cat([self.a(x) + self.normed(self.norm(x)), self.b(x)], 1))  # type: ignore[no-any-return]

    assert {layer.name: layer.first for layer in profile(Net(), torch.rand(2, 3, 4)).layers} == {
        "a": True,
        "normed": False,
        "b": True,
        "c": False,
    }
