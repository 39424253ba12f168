"""Reports of a Sparsifier in anybody's loop: the page of the application, and the table that notebooks show."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import autosparse
from autosparse import AutoSparse, Sparsifier


@pytest.fixture
def sp() -> Sparsifier:
    """Three of four epochs of a small net, with a layer whose name is markup."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    model.register_module("<b>", nn.Linear(5, 5))
    sp = autosparse.sparsify(model, AutoSparse(target_sparsity=0.8), epochs=4, steps_per_epoch=2)
    optimizer = torch.optim.SGD(sp.param_groups(), lr=0.05)
    sp.bind(optimizer)
    for _ in range(3):
        train_epoch(sp, optimizer)
    return sp


def train_epoch(sp: Sparsifier, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        torch.autograd.backward(sp.model(torch.rand(8, 1, 8, 8)).square().mean())
        optimizer.step()
    sp.end_epoch(loss=1.5)


def test_the_page_has_the_sections_of_the_application(sp: Sparsifier, tmp_path: Path) -> None:
    page = sp.save_report(tmp_path / "run.html", title="my <net>", accuracy=[0.2, 0.4, 0.625], base_accuracy=0.75)
    text = page.read_text(encoding="utf-8")
    for key in ("accuracy", "loss", "sparsity", "alpha", "train-flops", "test-flops", "controller", "layer-sparsity"):
        assert f'data-key="{key}"' in text, key
    for words in (
        "my &lt;net&gt;",
        "62.50 %",
        "dense 75.00 %: -12.50 points",
        "Epoch 3 of 4",
        "target_sparsity: 0.8",
        "&lt;b&gt;",
    ):
        assert words in text, words
    assert "my <net>" not in text


def test_a_finished_run_says_so_and_replaces_its_own_page_alone(sp: Sparsifier, tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    sp.save_report(path)
    train_epoch(sp, sp.optimizers[0])
    assert "Epoch 3" not in sp.save_report(str(path)).read_text(encoding="utf-8")
    sp.finalize()
    assert sp.save_report(path) == path
    other = tmp_path / "mine.html"
    other.write_text("<p>mine</p>")
    with pytest.raises(FileExistsError, match="not a report of ours"):
        sp.save_report(other)
    assert other.read_text() == "<p>mine</p>"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"accuracy": 93.0}, "fractions, such as 0.93"),
        ({"accuracy": [0.1] * 9}, "one per epoch"),
        ({"title": "x", "path": "run.txt"}, "ends in .html"),
    ],
)
def test_what_cannot_be_shown_is_refused(sp: Sparsifier, tmp_path: Path, facts: dict[str, object], words: str) -> None:
    path = tmp_path / str(facts.pop("path", "run.html"))
    with pytest.raises(ValueError, match=words):
        sp.save_report(path, **facts)
    assert not path.exists()


def test_notebooks_show_the_same_numbers_as_the_terminal(sp: Sparsifier) -> None:
    report = sp.report()
    html, text = report._repr_html_(), str(report)
    assert html.count("<tr") == len(report.layers) + 2
    assert "&lt;b&gt;" in html
    assert "<b>." not in html
    for layer in report.layers:
        assert f"{layer.sparsity:.2%}" in html
        assert f"{layer.sparsity:.2%}" in text
    for line in report.lines():
        assert line in text
