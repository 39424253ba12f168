"""int8 weights in the sparse file: what they become, and how small whole networks are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autosparse import models
from autosparse.export import load_sparse, save_sparse
from autosparse.quantization.affine import dequantize_weight, quantize_weight, weight_scales

from .files import contents_of, parts_of, quantized_example, write


def test_the_example_of_the_page(tmp_path: Path) -> None:
    contents, parts = quantized_example()
    loaded = load_sparse(write(tmp_path / "by-hand", contents, parts))
    expected = torch.zeros(4, 5)
    expected[0, 1], expected[3, 3] = 5.0, -2.0
    assert torch.equal(loaded["w"], expected)
    assert loaded["again"] is loaded["w"]
    assert loaded["b"].tolist() == [[127, -127], [0.25, 0]]


def test_integers_scales_and_mask_are_in_the_file(tmp_path: Path) -> None:
    weight = torch.zeros(10, 40)
    weight[0, 3], weight[0, 4], weight[0, 5], weight[2, 7] = 1.27, -0.5, 0.004, -254.0
    state = {"w": weight, "dense": torch.tensor([[1.0, -2.0, 3.0]]), "bias": torch.tensor([0.1, 0.2]), "n": torch.tensor(3)}
    save_sparse(state, tmp_path / "file", dtype="int8")
    contents, parts = contents_of(tmp_path / "file"), parts_of(tmp_path / "file")
    assert contents["version"] == 2
    assert [entry["values"] for entry in contents["tensors"].values()] == ["I8", "I8", "F32", "I64"]
    assert parts["w:values"].tolist() == [127, -50, -127]  # the fourth has become a zero, which takes no room
    assert parts["w:scales"] == pytest.approx([0.01, 1, 2, 1, 1, 1, 1, 1, 1, 1])
    assert parts["dense"].tolist() == [[42, -85, 127]]
    assert parts["dense:scales"].dtype == np.float32
    loaded = load_sparse(tmp_path / "file")
    assert all(loaded[name].dtype == tensor.dtype for name, tensor in state.items())
    assert torch.equal(loaded["bias"], state["bias"])


def test_files_without_int8_keep_the_first_version(tmp_path: Path) -> None:
    save_sparse({"bias": torch.ones(3), "counts": torch.ones(2, 2, dtype=torch.int8)}, tmp_path / "file", dtype="int8")
    assert contents_of(tmp_path / "file")["version"] == 1


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([[1.0, float("inf")] * 8]),
        torch.tensor([[1.0, float("nan")] * 8]),
        torch.ones(8, 1),  # a scale per number
        torch.full((1, 8), torch.finfo(torch.float32).max),
        torch.full((1, 8), 1e300, dtype=torch.float64),
        torch.ones(4, 4, dtype=torch.float8_e4m3fn),
        torch.ones(2, 8, dtype=torch.complex64),
    ],
)
def test_what_int8_does_not_suit_stays_as_it_is(tmp_path: Path, tensor: torch.Tensor) -> None:
    save_sparse({"w": tensor}, tmp_path / "file", dtype="int8")
    loaded = load_sparse(tmp_path / "file")["w"]
    assert loaded.dtype == tensor.dtype
    assert loaded.view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 1000),
    st.sampled_from([(7, 30), (16, 3, 3, 3), (1, 5, 8)]),
    st.floats(0, 1),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
)
def test_loading_gives_what_quantizing_gives(tmp_path_factory, seed, shape, zeros, dtype):
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) >= zeros)).to(dtype)
    path = tmp_path_factory.mktemp("files") / "file"
    save_sparse({"w": weight, "tied": weight}, path, dtype="int8")
    loaded = load_sparse(path)
    scales = weight_scales(weight)
    assert torch.equal(loaded["w"], dequantize_weight(quantize_weight(weight, scales), scales).to(dtype))
    assert loaded["tied"] is loaded["w"]
    # saved again, it does not change any more
    if dtype == torch.float32:
        save_sparse(loaded, path, dtype="int8", force=True)
        assert torch.equal(load_sparse(path)["w"], loaded["w"])


@pytest.mark.parametrize(("dense", "most"), [((), 0.054), (("fc.weight",), 0.070)])
def test_how_small_resnet50_is_at_nine_zeros_in_ten(tmp_path: Path, dense: tuple[str, ...], most: float) -> None:
    torch.manual_seed(0)
    state = models.resnet50().state_dict()
    for name, tensor in state.items():
        if tensor.ndim > 1 and name not in dense:
            tensor *= torch.rand(tensor.shape) < 0.1
    save_sparse(state, tmp_path / "file", dtype="int8")
    whole = sum(tensor.nbytes for tensor in state.values())
    share = (tmp_path / "file").stat().st_size / whole
    assert 0.9 * most < share <= most
