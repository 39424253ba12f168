"""Damaged, altered and hostile files are refused with a sentence, before memory is taken."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from torch import Tensor

from autosparse.export import load_sparse, save_sparse

from .files import Parts, example, quantized_example, resign, seal, write

HUGE = 2**40


def refused(path: Path, because: str) -> None:
    tracemalloc.start()
    try:
        with (
            pytest.raises(ValueError, match=because) as error,
            patch.object(torch, "zeros", side_effect=AssertionError("memory was taken for a tensor")),
        ):
            load_sparse(path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert str(error.value).startswith(f"{path} is refused: ")


Change = Callable[[dict[str, Any], Parts], None]


def entry(**values: Any) -> Change:
    return lambda contents, parts: contents["tensors"]["w"].update(values)


def part(name: str, values: list[int] | list[float], dtype: str = "uint8") -> Change:
    return lambda contents, parts: parts.update({name: np.array(values, dtype)})


def table(**values: Any) -> Change:
    return lambda contents, parts: contents.update(values)


def renamed(name: str) -> Change:
    def change(contents: dict[str, Any], parts: Parts) -> None:
        contents["tensors"][name] = contents["tensors"].pop("b")
        parts[name] = parts.pop("b")

    return change


CHANGES: list[tuple[str, Change, str]] = [
    ("blocks that promise more mask", part("w:blocks", [0x07]), "blocks do not agree with its mask"),
    ("blocks beyond the end", part("w:blocks", [0x11]), "blocks do not agree with its mask"),
    ("more bits than values", part("w:mask", [0x03, 0x04]), "mask does not agree with its values"),
    ("fewer bits than values", lambda c, p: p.update({"w:values": np.zeros(3, np.float32)}), "mask does not agree"),
    ("bits beyond the end", part("w:mask", [0x02, 0x10]), "mask does not agree with its values"),
    ("a zero byte in the mask", part("w:mask", [0x06, 0x00]), "mask does not agree with its values"),
    ("a mask longer than it can be", part("w:mask", [1] * 4), "sizes and dtypes"),
    ("too many values", lambda c, p: p.update({"w:values": np.ones(21, np.float32)}), "sizes and dtypes"),
    ("values of another dtype", lambda c, p: p.update({"w:values": np.ones(2, np.float64)}), "sizes and dtypes"),
    ("a mask of another dtype", lambda c, p: p.update({"w:mask": np.ones(2, np.int8)}), "sizes and dtypes"),
    ("a mask with two sides", lambda c, p: p.update({"w:mask": np.ones((1, 2), np.uint8)}), "sizes and dtypes"),
    ("a huge shape", entry(shape=[HUGE]), "sizes and dtypes"),
    ("a shape beyond all memory", entry(shape=[2**31, 2**31]), "impossibly large"),
    ("a shape that overflows", entry(shape=[2**62, 2**62, 0]), "impossibly large"),
    ("a huge dense shape", lambda c, p: c["tensors"]["b"].update(shape=[HUGE]), "sizes and dtypes"),
    ("a negative side", entry(shape=[-4, -5]), "whole numbers"),
    ("a side that is no number", entry(shape=[True, 20]), "whole numbers"),
    ("a side that is a fraction", entry(shape=[4.0, 5]), "whole numbers"),
    ("a shape that is none", entry(shape="45"), "whole numbers"),
    ("too many sides", entry(shape=[1] * 40 + [20]), "up to 32 whole numbers"),
    ("an unknown dtype", entry(dtype="F31"), "unknown dtype"),
    ("a dtype that is a list", entry(values=["F32"]), "unknown dtype"),
    ("numbers that are not widened", entry(dtype="I32"), "do not become"),
    ("sparse integers", entry(dtype="I32", values="I32"), "not stored sparse"),
    ("an unknown kind", entry(stored="zipped"), "unknown way"),
    ("a kind that is a list", entry(stored=["dense"]), "unknown way"),
    ("a checksum that is none", entry(sha256=5), "not text"),
    ("a further key", entry(pickle="cos\nsystem"), "must have dtype, sha256, shape, stored, values"),
    ("a tensor without an entry", lambda c, p: p.update(more=np.zeros(3)), "not those of its table"),
    ("an entry without a tensor", lambda c, p: c["tensors"].update(more=c["tensors"]["b"]), "not those of its table"),
    ("a missing part", lambda c, p: p.__delitem__("w:mask"), "not those of its table"),
    ("tensors that are no table", table(tensors=[]), "not made of tensors"),
    ("an entry that is none", table(tensors={"w": 3}), "must have"),
    ("an unknown version", table(version=3), "version 3, this release reads 1 and 2"),
    ("a version that is no number", table(version=True), "version True"),
    ("unknown keys", table(code="import os"), "unknown keys"),
    ("int8 in the first version", entry(values="I8"), "numbers of I8 do not become F32"),
    ("tied to nothing", table(tied={"again": "nothing"}), "not there"),
    ("tied to a list", table(tied={"again": ["w"]}), "not there"),
    ("tied in a circle", table(tied={"one": "two", "two": "one"}), "not there"),
    ("tied and there", table(tied={"b": "w"}), "twice"),
    ("tied under a path", table(tied={"../b": "w"}), "names are words"),
    *((f"the name {name!r}", renamed(name), "names are words") for name in ("../../etc/passwd", "/b", "a\\b", "a..b", "b\x1b")),
    ("a very long name", renamed("b" * 5000), "names are words"),
]


@pytest.mark.parametrize(("change", "because"), [each[1:] for each in CHANGES], ids=[each[0] for each in CHANGES])
def test_hostile_files_with_right_checksums(tmp_path: Path, change: Change, because: str) -> None:
    contents, parts = example()
    change(contents, parts)
    if isinstance(contents["tensors"], dict) and contents["tensors"].get("w") != 3 and because != "not text":
        resign(contents, parts)
    refused(write(tmp_path / "file", contents, parts), because)


def scales(values: list[float], dtype: str = "float32") -> Change:
    return part("w:scales", values, dtype)


QUANTIZED: list[tuple[str, Change, str]] = [
    ("a scale of zero", scales([0.5, 0, 1, 2]), "scales must be finite numbers above zero"),
    ("a negative scale", scales([0.5, -1, 1, 2]), "scales must be finite numbers above zero"),
    ("a scale that is no number", scales([0.5, float("nan"), 1, 2]), "scales must be finite"),
    ("an infinite scale", scales([0.5, float("inf"), 1, 2]), "scales must be finite"),
    ("a scale that makes numbers infinite", scales([0.5, 3e37, 1, 2]), "scales must be finite"),
    ("a scale too large for float16", lambda c, p: (entry(dtype="F16")(c, p), scales([1, 1, 1, 600])(c, p)), "scales must be"),
    ("too few scales", scales([0.5, 1, 1]), "sizes and dtypes"),
    ("scales of another dtype", scales([0.5, 1, 1, 2], "float64"), "sizes and dtypes"),
    ("no scales", lambda c, p: p.__delitem__("w:scales"), "not those of its table"),
    ("an integer below -127", part("w:values", [10, -128], "int8"), "between -127 and 127"),
    ("a dense integer below -127", part("b", [[1, 2], [3, -128]], "int8"), "between -127 and 127"),
    ("unsigned integers", part("w:values", [10, 255]), "sizes and dtypes"),
    ("a vector", entry(shape=[20]), "two or more sides"),
    ("integers that become integers", entry(dtype="I8"), "not stored sparse"),
    ("integers that become complex", entry(dtype="C64"), "do not become"),
    ("scales of floats", lambda c, p: entry(values="F32")(c, p), "not those of its table"),
    ("a huge shape", entry(shape=[HUGE, 2]), "sizes and dtypes"),
    ("a name kept for scales", renamed("b:scales"), "names are words"),
]


@pytest.mark.parametrize(("change", "because"), [each[1:] for each in QUANTIZED], ids=[each[0] for each in QUANTIZED])
def test_hostile_int8_files_with_right_checksums(tmp_path: Path, change: Change, because: str) -> None:
    contents, parts = quantized_example()
    change(contents, parts)
    resign(contents, parts)
    refused(write(tmp_path / "file", contents, parts), because)


@pytest.mark.parametrize("example", [example, quantized_example])
def test_altered_data_fails_its_checksum(tmp_path: Path, example: Callable[[], tuple[dict[str, Any], Parts]]) -> None:
    contents, parts = example()
    for name in parts:
        changed = {**parts, name: np.copy(parts[name])}
        changed[name].view(np.uint8)[0] ^= 1
        refused(write(tmp_path / "file", contents, changed), r"(w|b) was altered or damaged \(checksum\)")


def test_altered_tables_fail_their_checksum(tmp_path: Path) -> None:
    contents, parts = example()
    text = seal(contents).replace("[4,5]", "[5,4]")  # fits the data as well, but is not what was saved
    refused(write(tmp_path / "file", text, parts), r"table of contents was altered \(checksum\)")


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no version"),
        ('{"version":' + "9" * 5000 + "}", "not JSON"),
        ('{"version":1e999}', "version inf"),
        ('{"version":1}', r"altered \(checksum\)"),
    ],
)
def test_tables_that_are_none(tmp_path: Path, text: str, because: str) -> None:
    refused(write(tmp_path / "file", text, {"b": np.zeros(3)}), because)


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_sparse(path)
    for content in (b"", b"\x80\x04K\x01.", b"\0" * 8, b"\xff" * 64, (2**40).to_bytes(8, "little") + b"{}", b"PK\x03\x04" * 50):
        path.write_bytes(content)
        refused(path, "not a whole safetensors file")
    save_file({"w": np.zeros(3)}, path)
    refused(path, r"ordinary safetensors, which safetensors\.torch\.load_file reads")


def test_a_claim_of_the_headers_own(tmp_path: Path) -> None:
    """safetensors' header, not our table, claims a terabyte."""
    contents, _ = example()
    claimed = {"b": {"dtype": "U8", "shape": [HUGE], "data_offsets": [0, HUGE]}, "__metadata__": {"autosparse": seal(contents)}}
    header = json.dumps(claimed).encode()
    (tmp_path / "file").write_bytes(len(header).to_bytes(8, "little") + header)
    refused(tmp_path / "file", "not a whole safetensors file")


@pytest.fixture(scope="module", params=[None, "int8"])
def good(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, dict[str, Tensor]]:
    path = tmp_path_factory.mktemp("good") / "file"
    weight = torch.randn(24, 30)
    weight[torch.rand(24, 30) < 0.9] = 0.0
    state = {"w": weight, "again": weight, "other": torch.where(weight > 1, weight, 0.0), "b": torch.randn(5)}
    save_sparse(state, path, dtype=request.param)
    return path, path.read_bytes(), load_sparse(path)


def loaded_or_refused(path: Path) -> dict[str, Tensor] | None:
    """What the file holds, or None where it was refused in the proper words; any other error goes through."""
    try:
        return load_sparse(path)
    except ValueError as error:
        if not str(error).startswith(f"{path} is refused: "):
            raise
        return None


def same_or_refused(path: Path, state: dict[str, Tensor]) -> bool:
    """Whether the file was refused; one that is taken must hold exactly what was saved."""
    loaded = loaded_or_refused(path)
    if loaded is None:
        return True
    assert loaded.keys() == state.keys()
    assert all(loaded[name].numpy().tobytes() == value.numpy().tobytes() for name, value in state.items())
    return False


def test_every_truncation_is_refused(good: tuple[Path, bytes, dict[str, Tensor]]) -> None:
    path, data, state = good
    for length in [*range(0, len(data), 7), len(data) - 1]:
        path.write_bytes(data[:length])
        assert same_or_refused(path, state), length
    path.write_bytes(data + b"\0")
    assert same_or_refused(path, state)


mutations = st.lists(
    st.tuples(st.sampled_from(["flip", "set", "insert", "delete", "swap"]), st.floats(0, 1), st.integers(0, 255)),
    min_size=1,
    max_size=4,
)


def mutate(data: bytes, changes: list[tuple[str, float, int]]) -> bytes:
    changed = bytearray(data)
    for kind, where, value in changes:
        place = min(int(where * len(changed)), len(changed) - 1)
        if kind == "flip":
            changed[place] ^= 1 << value % 8
        elif kind == "set":
            changed[place] = value
        elif kind == "insert":
            changed.insert(place, value)
        elif kind == "delete":
            del changed[place : place + 1 + value % 4]
        else:
            other = (place + value) % len(changed)
            changed[place], changed[other] = changed[other], changed[place]
    return bytes(changed)


def check_mutations(examples: int, good: tuple[Path, bytes, dict[str, Tensor]]) -> None:
    path, data, state = good

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(mutations)
    def check(changes: list[tuple[str, float, int]]) -> None:
        path.write_bytes(mutate(data, changes))
        same_or_refused(path, state)

    check()


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["F32", "F16", "U8", "I8", "dense", "sparse", "w", "b", "w:mask"]),
    st.lists(st.integers(-2, 2**41), max_size=4),
    st.dictionaries(st.sampled_from(["w", "b", "..", "stored"]), st.integers(0, 3), max_size=3),
)
edits = st.lists(
    st.tuples(st.sampled_from(["w", "b", "top", "part"]), st.integers(0, 50), leaves, st.binary(max_size=24)),
    min_size=1,
    max_size=3,
)


def check_forgeries(examples: int, path: Path, original: dict[str, Any], original_parts: Parts) -> None:
    """Tables and parts edited at will and signed again: refused, or a state whose shapes are those claimed."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(edits)
    def check(changes: list[tuple[str, int, Any, bytes]]) -> None:
        contents, parts = copy.deepcopy(original), dict(original_parts)
        for where, place, value, data in changes:
            if where == "part":
                name = sorted(parts)[place % len(parts)]
                parts[name] = np.frombuffer(data[: len(data) // 4 * 4], parts[name].dtype)
            else:
                target = (
                    contents
                    if where == "top"
                    else contents["tensors"].get(where)
                    if isinstance(contents["tensors"], dict)
                    else None
                )
                if isinstance(target, dict):
                    target[sorted(target)[place % len(target)]] = value
        tables = contents["tensors"]
        if isinstance(tables, dict) and all(isinstance(each, dict) for each in tables.values()):
            resign(contents, parts)
        write(path, contents, parts)
        loaded = loaded_or_refused(path)
        if loaded is not None:
            assert {name: list(loaded[name].shape) for name in tables} == {name: each["shape"] for name, each in tables.items()}

    check()


def test_mutated_files_are_refused_or_the_same(good: tuple[Path, bytes, dict[str, Tensor]]) -> None:
    check_mutations(400, good)


@pytest.mark.parametrize("example", [example, quantized_example])
def test_forged_files_are_refused_or_consistent(tmp_path: Path, example: Callable[[], tuple[dict[str, Any], Parts]]) -> None:
    check_forgeries(300, tmp_path / "file", *example())


@pytest.mark.slow
def test_thousands_of_mutations(good: tuple[Path, bytes, dict[str, Tensor]]) -> None:
    check_mutations(5_000, good)


@pytest.mark.slow
@pytest.mark.parametrize("example", [example, quantized_example])
def test_thousands_of_forgeries(tmp_path: Path, example: Callable[[], tuple[dict[str, Any], Parts]]) -> None:
    check_forgeries(5_000, tmp_path / "file", *example())
