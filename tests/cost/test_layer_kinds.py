"""MACs of every kind of layer against numbers computed by hand."""

import pytest
import torch
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
    model.forward = lambda x: model["lstm"](x)[0]
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
            self.cell = cell(4, 6)

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
