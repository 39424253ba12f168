"""The worked example of docs/writing-a-method.md: under 40 lines, and it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import autosparse
from autosparse.methods import Method, register

PAGE = Path(__file__).parents[1] / "docs" / "writing-a-method.md"
EPOCHS = 4


def example() -> str:
    blocks = [part.removeprefix("python\n") for part in PAGE.read_text(encoding="utf-8").split("```")[1::2]]
    assert len(blocks) == 1
    return blocks[0]


@pytest.fixture
def given() -> dict[str, Any]:
    """What the page takes as given, run."""
    bundle = load_digits()
    images, labels = torch.tensor(bundle.data).float() / 16, torch.tensor(bundle.target)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    loader = list(zip(images.split(50), labels.split(50), strict=True))
    names: dict[str, Any] = {"autosparse": autosparse, "model": model, "loader": loader, "__name__": __name__}
    exec(compile(example(), str(PAGE), "exec"), names)
    return names


def train_epoch(given: dict[str, Any], opt: torch.optim.Optimizer) -> float:
    losses = []
    for x, y in given["loader"]:
        loss = cross_entropy(given["model"](x), y) + given["sp"].penalty()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(float(loss.detach()))
    given["sp"].end_epoch(loss=sum(losses) / len(losses))
    return sum(losses) / len(losses)


def test_the_example_is_under_40_lines_and_imports_from_one_place() -> None:
    lines = [line for line in example().splitlines() if line.strip()]
    assert len(lines) < 40
    assert [line.split()[1] for line in lines if line.startswith(("from ", "import "))] == ["autosparse.methods"]


def test_it_trains_to_its_sparsity_and_never_revives_a_weight(given: dict[str, Any]) -> None:
    model, sp = given["model"], given["sp"]
    opt = torch.optim.SGD(sp.param_groups(weight_decay=1e-4), lr=0.1, momentum=0.9)
    sp.bind(opt)
    losses, sparsities, gone = [], [], [torch.zeros(layer.shape, dtype=torch.bool) for layer in sp.layers]
    for _ in range(EPOCHS):
        losses.append(train_epoch(given, opt))
        sparsities.append(sp.sparsity())
        now = [~layer.active() for layer in sp.layers]
        assert all((before & ~after).sum() == 0 for before, after in zip(gone, now, strict=True))
        gone = now
    # 0.8 * 1/3, 2/3, 1, 1 of the weights, rounded by layer
    assert sparsities == pytest.approx([0.8 / 3, 1.6 / 3, 0.8, 0.8], abs=1e-3)
    assert losses[1] < losses[0]
    assert 0 < sp.cost.train_fraction < 1
    plain = sp.finalize()
    assert int((plain[0].weight == 0).sum()) == 64 * 48 - round(0.2 * 64 * 48)
    accuracy = torch.stack([(model(x).argmax(1) == y).float().mean() for x, y in given["loader"]]).mean()
    assert accuracy > 0.8


def test_it_is_registered_and_validates(given: dict[str, Any]) -> None:
    assert "settled" in autosparse.list_methods()
    with pytest.raises(ValueError, match=r"sparsity = 1\.0"):
        autosparse.method("settled", sparsity=1.0)
    with pytest.raises(ValueError, match="ramp = 0"):
        autosparse.method("settled", ramp=0)


def test_what_cannot_be_registered_says_so(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"Old\.ready is never called since 0\.2: before_step took its place"):
        register(type("Old", (given["Settled"],), {"ready": lambda self, sp: None}))
    with pytest.raises(ValueError, match="the name 'settled' belongs to Settled; give Other another"):
        register(type("Other", (given["Settled"],), {}))
    with pytest.raises(TypeError, match="Nameless must be a Method with `about"):
        register(type("Nameless", (Method,), {}))


def test_it_resumes_exactly(given: dict[str, Any]) -> None:
    import copy

    model, sp = given["model"], given["sp"]
    opt = torch.optim.SGD(sp.param_groups(), lr=0.1, momentum=0.9)
    sp.bind(opt)
    train_epoch(given, opt)
    saved = copy.deepcopy((model.state_dict(), opt.state_dict(), sp.state_dict()))
    train_epoch(given, opt)
    wanted = [layer.effective().clone() for layer in sp.layers]
    model.load_state_dict(saved[0])
    opt.load_state_dict(saved[1])
    sp.load_state_dict(saved[2])
    train_epoch(given, opt)
    assert all(torch.equal(layer.effective(), each) for layer, each in zip(sp.layers, wanted, strict=True))
