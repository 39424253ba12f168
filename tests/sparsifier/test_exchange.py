"""The exchange of gradients between ranks: the same weights as DDP's own, and few bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import autosparse
from autosparse import DST, Random

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo")
ROOT = Path(__file__).parents[2]
CASES = ("rigl", "keep", "alpha 0", "alpha > 0", "backward sparsity")


def launch(folder: Path, ranks: int) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    arguments = ["-m", "tests.sparsifier.exchange_worker", str(folder)]
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(ranks)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch(tmp_path_factory.mktemp("two"), 2)


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_end_with_the_bits_of_a_full_exchange(name: str, two: list[dict[str, Any]]) -> None:
    for rank in two:
        for plain, hooked in zip(rank[name]["plain"]["weights"], rank[name]["hooked"]["weights"], strict=True):
            assert torch.equal(plain, hooked)
    first, second = (rank[name]["hooked"]["weights"] for rank in two)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_bytes_on_the_wire(two: list[dict[str, Any]]) -> None:
    """At 90 % zeros about a tenth of the bytes; a dense step every fourth for RigL; all of them while alpha is above 0."""
    share = {name: sent / dense for name in CASES for sent, dense in [two[0][name]["hooked"]["bytes"]]}
    assert share["keep"] < 0.12
    assert share["alpha 0"] < 0.12
    assert 1 / 6 < share["rigl"] < 0.3  # one of the six steps is dense
    assert 0.2 < share["backward sparsity"] < 0.23
    assert share["alpha > 0"] == 1
    sent, dense = two[0]["bfloat16"]["bytes"]
    assert sent / dense < 0.06


def test_bfloat16_changes_the_weights_little(two: list[dict[str, Any]]) -> None:
    for exact, rounded in zip(two[0]["keep"]["hooked"]["weights"], two[0]["bfloat16"]["weights"], strict=True):
        torch.testing.assert_close(rounded, exact, rtol=0.02, atol=2e-3)
        assert torch.equal(rounded == 0, exact == 0)
    first = two[0]["keep"]["hooked"]["weights"][0]
    assert not torch.equal(first, two[0]["bfloat16"]["weights"][0])


def test_wrong_use_is_refused() -> None:
    sp = autosparse.sparsify(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), Random(), epochs=1, steps_per_epoch=1)
    with pytest.raises(TypeError, match="the model that DistributedDataParallel wraps, got Sequential"):
        sp.communication_hook(sp.model)  # type: ignore[arg-type]


def test_a_penalty_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        for method, message in ((DST(), "dst has a penalty"), (Random(), "dtype is torch.int8")):
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            sp = autosparse.sparsify(model, method, epochs=1, steps_per_epoch=1)
            ddp = nn.parallel.DistributedDataParallel(model)
            with pytest.raises(ValueError, match=message):
                sp.communication_hook(ddp, dtype=torch.int8)
        other = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        with pytest.raises(ValueError, match="wraps another model"):
            sp.communication_hook(other)
    finally:
        dist.destroy_process_group()
