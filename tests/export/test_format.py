"""What is written comes back bit for bit, is small, and lies in the file as docs/format.md says."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

import autosparse
from autosparse import models
from autosparse.export import load_sparse, save_sparse

from .files import contents_of, digest, example, parts_of, seal, write

FORMAT_PAGE = Path(__file__).parents[2] / "docs" / "format.md"


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        assert bits(found[name]) == bits(value), name


def sparse_tensor(shape: tuple[int, ...], sparsity: float, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, generator=random).to(dtype)
    return torch.where(torch.rand(shape, generator=random) < sparsity, torch.zeros((), dtype=dtype), tensor)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9, 1.0])
def test_round_trip_is_bit_exact(tmp_path: Path, dtype: torch.dtype, sparsity: float) -> None:
    shapes = [(64, 33), (1,), (8,), (0, 4), (), (3, 5, 7), (2000,), (16, 16, 3, 3)]
    state = {f"layer{place}.weight": sparse_tensor(shape, sparsity, dtype, place) for place, shape in enumerate(shapes)}
    save_sparse(state, tmp_path / "file")
    assert_same(load_sparse(tmp_path / "file"), state)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.just(0), st.integers(0, 2**32 - 1)), min_size=0, max_size=700),
    st.sampled_from([0, 0x80000000, 0x7FC00001, 0xFFC12345, 0x7F800001, 1]),
    st.integers(0, 600),
)
def test_any_bits_of_any_length(tmp_path_factory: pytest.TempPathFactory, numbers: list[int], special: int, zeros: int) -> None:
    path = tmp_path_factory.mktemp("bits") / "file"
    flat = torch.from_numpy(np.array([*numbers, special, *[0] * zeros], np.uint32)).view(torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zeros with a sign
        save_sparse({"w": flat}, path)
    assert bits(load_sparse(path)["w"]) == bits(flat)


def test_negative_zeros_and_nans_stay_and_are_called_out(tmp_path: Path) -> None:
    weight = sparse_tensor((100, 100), 0.95)
    weight[0, :5] = torch.tensor([-0.0, float("nan"), float("inf"), -float("inf"), 1e-45])
    save_sparse({"w": weight}, tmp_path / "few")
    assert bits(load_sparse(tmp_path / "few")["w"]) == bits(weight)
    masked = torch.randn(100, 100) * (torch.rand(100, 100) > 0.9)  # a product with a mask gives -0.0 for negative weights
    with pytest.warns(autosparse.SparsityWarning, match=r"-0\.0.*add 0\.0"):
        save_sparse({"w": masked}, tmp_path / "many")
    assert bits(load_sparse(tmp_path / "many")["w"]) == bits(masked)
    save_sparse({"w": masked + 0.0}, tmp_path / "clean")
    assert (tmp_path / "clean").stat().st_size < (tmp_path / "many").stat().st_size / 3


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v1"])
def test_at_90_percent_the_file_is_at_most_14_percent_of_the_dense_one(tmp_path: Path, name: str) -> None:
    model = models.build(name)
    for place, parameter in enumerate(model.parameters()):
        if parameter.ndim > 1:
            parameter.data = sparse_tensor(tuple(parameter.shape), 0.9, seed=place)
    save_file(model.state_dict(), tmp_path / "dense")
    save_sparse(model, tmp_path / "sparse")
    share = (tmp_path / "sparse").stat().st_size / (tmp_path / "dense").stat().st_size
    assert share <= 0.14
    if name == "mobilenet_v1":
        assert_same(load_sparse(tmp_path / "sparse"), dict(model.state_dict()))


def test_the_size_is_the_formula_of_the_page(tmp_path: Path) -> None:
    count, density = 1_000_000, 0.1
    save_sparse({"w": sparse_tensor((1000, 1000), 1 - density)}, tmp_path / "file")
    expected = count * (4 * density + (1 - (1 - density) ** 8) / 8 + 1 / 64)
    assert (tmp_path / "file").stat().st_size == pytest.approx(expected, rel=0.01)


def test_a_layer_that_is_denser_than_pays_is_stored_dense(tmp_path: Path) -> None:
    state = {"dense": sparse_tensor((100, 100), 0.02), "sparse": sparse_tensor((100, 100), 0.1), "tiny": torch.zeros(10)}
    save_sparse(state, tmp_path / "file")
    entries = contents_of(tmp_path / "file")["tensors"]
    assert {name: entry["stored"] for name, entry in entries.items()} == {"dense": "dense", "sparse": "sparse", "tiny": "dense"}
    save_file(state, tmp_path / "plain")
    assert (tmp_path / "file").stat().st_size < (tmp_path / "plain").stat().st_size


def test_the_example_of_the_page(tmp_path: Path) -> None:
    contents, parts = example()
    expected = torch.zeros(20)
    expected[1], expected[18] = 5.0, -2.0
    state = load_sparse(write(tmp_path / "by_hand", contents, parts))
    assert torch.equal(state["w"], expected.view(4, 5))
    assert state["again"] is state["w"]
    assert state["b"].tolist() == [1.0, 2.0, 3.0]
    # the writer makes the same parts of a longer tensor (20 elements alone are not worth the header's entries)
    save_sparse({"w": torch.cat([expected, torch.zeros(300)])}, tmp_path / "written")
    found = parts_of(tmp_path / "written")
    assert found["w:blocks"].tolist() == [0x05, 0, 0, 0, 0]
    assert found["w:mask"].tobytes() == bytes.fromhex("0204")
    assert found["w:values"].tobytes() == bytes.fromhex("0000a040000000c0")


def test_the_table_of_contents(tmp_path: Path) -> None:
    save_sparse({"w": sparse_tensor((50, 50), 0.9), "b": torch.ones(3, dtype=torch.int64)}, tmp_path / "file")
    contents, parts = contents_of(tmp_path / "file"), parts_of(tmp_path / "file")
    assert contents["version"] == 1
    assert contents["sha256"] == seal(contents)[-66:-2]
    sparse, dense = contents["tensors"]["w"], contents["tensors"]["b"]
    assert sparse["sha256"] == digest(parts["w:blocks"], parts["w:mask"], parts["w:values"])
    assert dense == {"stored": "dense", "shape": [3], "dtype": "I64", "values": "I64", "sha256": digest(parts["b"])}


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    state = {"w": sparse_tensor((50, 50), 0.9), "v": sparse_tensor((60, 50), 0.9), "b": torch.ones(3)}
    for name in ("one", "two"):
        save_sparse(state, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    model = models.transformer(vocabulary=200, size=16, heads=2, feed_forward=32, encoder_layers=1, decoder_layers=1)
    names = [name for name, value in model.state_dict().items() if value.data_ptr() == model.embedding.weight.data_ptr()]
    save_sparse(model, tmp_path / "file")
    assert contents_of(tmp_path / "file")["tied"] == dict.fromkeys(names[1:], names[0])
    assert len(names) > 1
    again = models.transformer(vocabulary=200, size=16, heads=2, feed_forward=32, encoder_layers=1, decoder_layers=1)
    loaded = load_sparse(tmp_path / "file", again)
    assert loaded is again
    assert_same(dict(again.state_dict()), dict(model.state_dict()))
    assert len({value.data_ptr() for name, value in again.state_dict().items() if name in names}) == 1


def test_views_and_memory_formats(tmp_path: Path) -> None:
    base = sparse_tensor((40, 40), 0.5)
    conv = sparse_tensor((16, 8, 3, 3), 0.9).contiguous(memory_format=torch.channels_last)
    state = {"upper": base[:20], "lower": base[20:], "turned": base.T, "conv": conv}
    save_sparse(state, tmp_path / "file")
    assert contents_of(tmp_path / "file")["tied"] == {}
    assert_same(load_sparse(tmp_path / "file"), state)


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_half_precision(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    state = {"w": sparse_tensor((64, 64), 0.9), "dense": torch.randn(20, 20), "bias": torch.randn(64), "steps": torch.tensor(7)}
    save_sparse(state, tmp_path / "file", dtype=name)
    entries = contents_of(tmp_path / "file")["tensors"]
    short = {"fp16": "F16", "bf16": "BF16"}[name]
    assert [entry["values"] for entry in entries.values()] == [short, short, "F32", "I64"]
    rounded = {key: value.to(dtype).float() if value.ndim == 2 else value for key, value in state.items()}
    assert_same(load_sparse(tmp_path / "file"), rounded)
    save_sparse(state, tmp_path / "same", dtype=dtype)
    assert (tmp_path / "same").read_bytes() == (tmp_path / "file").read_bytes()


def test_half_precision_never_widens_or_overflows(tmp_path: Path) -> None:
    half = {"w": sparse_tensor((64, 64), 0.9, torch.bfloat16)}
    for dtype in ("fp32", "fp16", "bf16", "float32", "float16", "bfloat16"):
        save_sparse(half, tmp_path / dtype, dtype=dtype)
        assert_same(load_sparse(tmp_path / dtype), half)
    with pytest.raises(ValueError, match=r"w has numbers beyond the range of torch.float16: use bfloat16"):
        save_sparse({"w": torch.full((2, 2), 1e5)}, tmp_path / "large", dtype="fp16")
    infinite = {"w": torch.full((2, 2), float("inf"))}
    save_sparse(infinite, tmp_path / "infinite", dtype="fp16")
    assert_same(load_sparse(tmp_path / "infinite"), infinite)
    with pytest.raises(ValueError, match=r"'int9' is not known; give float32, bfloat16, float16, int8; did you mean 'int8'"):
        save_sparse(half, tmp_path / "other", dtype="int9")
    with pytest.raises(ValueError, match=r"torch.int16 is not known; give float32"):
        save_sparse(half, tmp_path / "other", dtype=torch.int16)


def test_a_model_that_is_still_sparsified_is_refused(tmp_path: Path, net: nn.Module) -> None:
    sp = autosparse.sparsify(net, autosparse.AutoSparse(alpha=0.5), epochs=2, steps_per_epoch=2)
    with pytest.raises(ValueError, match=r"still being trained.*sp\.finalize\(\)"):
        save_sparse(net, tmp_path / "file")
    save_sparse(sp.dense_state_dict(), tmp_path / "file")
    with pytest.raises(ValueError, match="finalize"):
        load_sparse(tmp_path / "file", net)
    plain = load_sparse(tmp_path / "file")
    model = sp.finalize()
    assert_same(plain, dict(model.state_dict()))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "is a int"),
        (torch.empty(3, device="meta"), "meta device"),
        (torch.eye(3).to_sparse(), r"to_dense\(\)"),
        (torch.zeros(2, dtype=torch.complex128), "complex128"),
    ],
)
def test_what_cannot_be_saved_is_named(tmp_path: Path, value: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"odd.*{message}"):
        save_sparse({"odd": value}, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../up", "a/b", "a\\b", "a..b", ".a", "", "a\nb", "w:mask", "__metadata__", "a\0"])
def test_names_like_paths_are_refused_when_saving_too(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is refused: names are words"):
        save_sparse({name: torch.zeros(3)}, tmp_path / "file")


def test_existing_files_need_force_and_failures_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file"
    save_sparse({"w": torch.ones(3)}, path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"exists already.*force"):
        save_sparse({"w": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="is a folder"):
        save_sparse({"w": torch.zeros(3)}, tmp_path / "deep", force=True)

    def full_disk(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", full_disk)
        with pytest.raises(OSError, match="No space"):
            save_sparse({"w": torch.zeros(3)}, path, force=True)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["file"]
    save_sparse({"w": torch.zeros(3)}, path, force=True)
    assert load_sparse(path)["w"].tolist() == [0, 0, 0]
    (tmp_path / "ordinary").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "ordinary").stat().st_mode)


def test_loading_into_another_model_is_refused_before_anything_changes(tmp_path: Path, net: nn.Module) -> None:
    save_sparse(net, tmp_path / "file")
    other = nn.Sequential(nn.Linear(10, 8))
    before = bits(other[0].weight.detach())
    with pytest.raises(ValueError, match=r"does not fit this model: the model has no 2\.bias.*0\.weight is \(32, 10\)"):
        load_sparse(tmp_path / "file", other)
    assert bits(other[0].weight.detach()) == before


def test_what_is_loaded_does_not_hang_on_the_file(tmp_path: Path) -> None:
    state = {"w": torch.arange(5000.0), "s": sparse_tensor((50, 50), 0.9)}
    save_sparse(state, tmp_path / "file")
    loaded = load_sparse(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"")
    assert_same(loaded, state)


def test_the_pages_twelve_lines_read_it_without_autosparse(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", FORMAT_PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (reader,) = [block for block in blocks if "def read" in block]
    function = reader[reader.index("def read") :]
    assert len(function.splitlines()) == 12
    weight, half = sparse_tensor((30, 41), 0.9), sparse_tensor((30, 41), 0.8, torch.float16)
    state = {
        "w": weight,
        "again": weight,
        "half": half,
        "empty": torch.zeros(900),
        "b": torch.arange(3.0),
        "n": torch.tensor(4),
    }
    save_sparse(state, tmp_path / "model")
    np.savez(tmp_path / "expected.npz", **{name: tensor.numpy() for name, tensor in state.items()})
    check = """
import sys
arrays, expected = read("model"), np.load("expected.npz")
assert arrays.keys() == set(expected.files), arrays.keys()
for name in arrays:
    assert arrays[name].dtype == expected[name].dtype and arrays[name].tobytes() == expected[name].tobytes(), name
    assert arrays[name].shape == expected[name].shape
assert not {"autosparse", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", reader + check], cwd=tmp_path, check=True)
    state["half"] = half.float()
    save_sparse(state, tmp_path / "model", dtype="int8", force=True)
    np.savez(tmp_path / "expected.npz", **{name: tensor.numpy() for name, tensor in load_sparse(tmp_path / "model").items()})
    subprocess.run([sys.executable, "-c", reader + check], cwd=tmp_path, check=True)
    save_sparse(state, tmp_path / "model", dtype="bf16", force=True)
    pytest.importorskip("ml_dtypes")
    check = 'import ml_dtypes\nassert read("model")["w"].astype(np.float32).tobytes() == open("w", "rb").read()'
    (tmp_path / "w").write_bytes(bits(weight.bfloat16().float()))
    subprocess.run([sys.executable, "-c", reader + check], cwd=tmp_path, check=True)
