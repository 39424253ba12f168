"""The inference kernels: packing weights, and linear layers on every instruction set."""

from __future__ import annotations

from ctypes import byref, pointer

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from autosparse.kernels import inference_table as inference
from autosparse.kernels import library

from .conftest import choose


def test_terms_by_hand() -> None:
    weight = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, -3.0]])
    row_start, terms = inference.pack_terms(weight, torch.tensor([0, 16, 32]))
    assert row_start.tolist() == [0, 1, 1, 3]
    assert terms[:, 0].tolist() == [16, 0, 32]
    assert terms[:, 1].contiguous().view(torch.float32).tolist() == [2.0, 1.0, -3.0]


def test_bitmask_by_hand() -> None:
    weight = torch.zeros(2, 18)
    weight[0, 15], weight[0, 16], weight[1, 0] = 5.0, 6.0, 7.0
    row_start, bits, values = inference.pack_bitmask(weight, 4)
    assert row_start.tolist() == [0, 2]
    assert (bits.to(torch.int32) & 0xFFFF).tolist() == [[1 << 15, 1], [1, 0]]
    assert values.tolist() == [5.0, 6.0, 7.0, 0.0, 0.0, 0.0, 0.0]


def finish(bias: Tensor, relu: bool) -> inference.Finish:
    return inference.Finish(bias.data_ptr(), 0.0 if relu else -inference.INFINITY, inference.INFINITY)


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from(library.INSTRUCTION_SETS),
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
    tokens=st.integers(1, 40),
    vectors=st.integers(1, 3),
    threads=st.integers(1, 2),
    relu=st.booleans(),
    added=st.booleans(),
)
def test_linear(name: str, rows: int, columns: int, tokens: int, vectors: int, threads: int, relu: bool, added: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        choose(name, patch)
        engine = library.engine()
    if engine is None:
        return
    torch.manual_seed(rows * columns)
    weight = torch.randn(rows, columns) * (torch.rand(rows, columns) < 0.3)
    x, bias, other = torch.randn(tokens, columns), torch.randn(rows), torch.randn(tokens, rows)
    wanted = F.linear(x, weight, bias) + (other if added else 0)
    wanted = wanted.relu() if relu else wanted

    row_start, terms = inference.pack_terms(weight, torch.arange(columns) * vectors * engine.lanes)
    many = inference.TermLinear(rows, columns, vectors, row_start.data_ptr(), terms.data_ptr(), finish(bias, relu))
    floats = engine.table.linear_scratch(byref(many)) * threads
    scratch = torch.full((floats + 16,), float("nan"))  # nothing may depend on what scratch holds
    found = torch.empty(tokens, rows)
    begin = scratch.data_ptr() + -scratch.data_ptr() % 64
    at = other.data_ptr() if added else None
    engine.table.linear_many(pointer(many), tokens, threads, x.data_ptr(), at, begin, found.data_ptr())
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-5)

    first, bits, values = inference.pack_bitmask(weight, engine.lanes)
    one = inference.BitmaskLinear(rows, bits.shape[1], first.data_ptr(), bits.data_ptr(), values.data_ptr(), finish(bias, relu))
    padded = F.pad(x[:1], (0, -columns % 16)).contiguous()
    alone = torch.empty(rows)
    engine.table.linear_one(pointer(one), threads, padded.data_ptr(), at, alone.data_ptr())
    assert torch.allclose(alone, wanted[0], rtol=1e-5, atol=1e-5)
