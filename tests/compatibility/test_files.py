"""Exported models of 0.1.0 are read, also by the very lines that came with them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import autosparse
from autosparse import models
from autosparse.deployment import SparseModel

from .numerics import assert_same
from .plain_loops import FIXTURES, scattered

FILES = FIXTURES / "files"


def finished_weights() -> dict[str, Tensor]:
    return load_file(FIXTURES / "finished/model.safetensors")


def assert_outputs(model: nn.Module) -> None:
    expected = torch.tensor(json.loads((FILES / "outputs.json").read_text()))
    torch.testing.assert_close(model.eval()(scattered(3, 1, 8, 8, seed=0)), expected, rtol=1e-4, atol=1e-5)


def test_the_sparse_file() -> None:
    model = autosparse.load_sparse(FILES / "model.safetensors", models.small_conv(width=2))
    assert_same(model.state_dict(), finished_weights(), exactly=True)
    assert_outputs(model)
    assert_same(autosparse.load_sparse(FILES / "model.safetensors"), finished_weights(), exactly=True)


def test_the_sparse_file_in_half_precision() -> None:
    model = autosparse.load_sparse(FILES / "half.safetensors", models.small_conv(width=2))
    expected = {name: value.half().float() if value.ndim > 1 else value for name, value in finished_weights().items()}
    assert_same(model.state_dict(), expected, exactly=True)


def test_the_sparse_file_of_tied_weights() -> None:
    net = nn.Sequential(nn.Embedding(24, 16), nn.Linear(16, 24, bias=False))
    net[0].weight = net[1].weight
    autosparse.load_sparse(FILES / "tied.safetensors", net)
    numbers = (scattered(24, 16, seed=1) * 32).round() / 32
    assert torch.equal(net[0].weight, torch.where(scattered(24, 16, seed=2) > 0.6, numbers, 0.0))
    assert net[0].weight is net[1].weight


def test_the_torch_file() -> None:
    model = models.small_conv(width=2)
    model.load_state_dict(torch.load(FILES / "model.pt", weights_only=True))
    assert_same(model.state_dict(), finished_weights(), exactly=True)


def test_the_hub_folder() -> None:
    model = SparseModel.from_pretrained(FILES / "hub")
    assert_same(model.model.state_dict(), finished_weights(), exactly=True)
    assert_outputs(model)


def test_the_hub_folder_as_its_readme_says() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (FILES / "hub/README.md").read_text(), re.DOTALL)
    assert "from autosparse.deployment" in code
    names: dict[str, nn.Module] = {}
    exec(code.replace("FOLDER OR OWNER/NAME", str(FILES / "hub")), names)
    assert_outputs(names["model"])


def test_what_is_saved_now_is_what_was_saved_then(tmp_path: Path) -> None:
    """So that 0.1.0 reads our files as well."""
    model = autosparse.load_sparse(FILES / "model.safetensors", models.small_conv(width=2))
    autosparse.save_sparse(model, tmp_path / "again.safetensors")
    old, new = (safe_open(folder, "pt").metadata() for folder in (FILES / "model.safetensors", tmp_path / "again.safetensors"))
    assert new == old
    assert_same(load_file(tmp_path / "again.safetensors"), load_file(FILES / "model.safetensors"), exactly=True)
