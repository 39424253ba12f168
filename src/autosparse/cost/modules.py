"""Products of whole modules: recurrent layers, and layers whose operator replaces torch's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from autosparse.cost.count import Product

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_RECURRENT = {nn.LSTM: "lstm", nn.GRU: "gru", nn.LSTMCell: "lstm_cell", nn.GRUCell: "gru_cell", nn.RNNCell: "rnn_cell"}


def module_products(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Iterator[tuple[str, Product]]:
    """The products of one call of a module, by the name of the weight; nothing for modules that are not known."""
    data = args[0] if args else kwargs.get("input")
    if output is None or data is None:
        return
    if isinstance(module, nn.RNNBase):
        yield from _recurrent(module, data)
    elif isinstance(module, nn.RNNCellBase):
        yield from _cell(module, data, args[1] if len(args) > 1 else kwargs.get("hx"))
    elif isinstance(output, Tensor) and isinstance(data, Tensor):
        if isinstance(module, nn.Linear):
            yield "weight", Product("linear", output.numel() * module.in_features, data, None)
        elif isinstance(module, _CONVOLUTIONS + _TRANSPOSED):
            yield "weight", _convolution(module, data, output)


def _convolution(module: Any, data: Tensor, output: Tensor) -> Product:
    taps, dims = math.prod(module.kernel_size), len(module.kernel_size)
    if isinstance(module, _TRANSPOSED):
        macs = data.numel() * taps * module.out_channels // module.groups
        return Product(f"conv_transpose{dims}d", macs, data, None)
    return Product(f"conv{dims}d", output.numel() * taps * module.in_channels // module.groups, data, None)


def _recurrent(module: nn.RNNBase, data: Tensor | PackedSequence) -> Iterator[tuple[str, Product]]:
    """Every weight matrix is used once per time step of every sequence."""
    values = data.data if isinstance(data, PackedSequence) else data
    steps = values.numel() // module.input_size
    gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1) * module.hidden_size
    state = module.proj_size or module.hidden_size
    directions = ("", "_reverse") if module.bidirectional else ("",)
    for layer in range(module.num_layers):
        width = module.input_size if layer == 0 else state * len(directions)
        for direction in directions:
            sizes = {"ih": gates * width, "hh": gates * state, "hr": module.proj_size * module.hidden_size}
            for part, size in sizes.items():
                if size:
                    source = values if part == "ih" and layer == 0 else None
                    name = f"weight_{part}_l{layer}{direction}"
                    yield name, Product(_kind(module), steps * size, source, None)


def _cell(module: nn.RNNCellBase, data: Tensor, state: Any) -> Iterator[tuple[str, Product]]:
    samples = data.numel() // module.input_size
    hidden = state[0] if isinstance(state, tuple) else state
    gates = {nn.LSTMCell: 4, nn.GRUCell: 3}
    rows = module.hidden_size * next((count for kind, count in gates.items() if isinstance(module, kind)), 1)
    yield "weight_ih", Product(_kind(module), samples * rows * module.input_size, data, None)
    yield "weight_hh", Product(_kind(module), samples * rows * module.hidden_size, data if hidden is None else hidden, None)


def _kind(module: nn.Module) -> str:
    return next((name for kind, name in _RECURRENT.items() if isinstance(module, kind)), "rnn")
