"""The pages of the methods: the table is up to date, every method has a page, and every example runs."""

from __future__ import annotations

import importlib
import re
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autosparse
from autosparse.methods import METHODS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted((DOCS / "methods").glob("*.md"))
EPOCHS = 2  # what `train` of the pages takes instead of the epochs that a page names


def python_blocks(page: Path) -> list[str]:
    parts = page.read_text(encoding="utf-8").split("```")
    return [part.removeprefix("python\n") for part in parts[1::2] if part.startswith("python\n")]


def test_the_table_of_methods_is_what_the_script_makes() -> None:
    made = runpy.run_path(str(DOCS / "make_methods_table.py"))["table"]()
    committed = (DOCS / "methods" / "README.md").read_text(encoding="utf-8")
    assert committed == made, "run: python docs/make_methods_table.py"


def test_every_method_has_a_page_with_an_example() -> None:
    pages = {page.stem: page for page in PAGES}
    for name in autosparse.list_methods():
        assert name in pages, f"docs/methods/{name}.md is missing"
        assert python_blocks(pages[name]), f"docs/methods/{name}.md has no ```python example"


def test_the_api_page_lists_every_method() -> None:
    listed = set(
        re.findall(r"^::: (autosparse\.methods\.[\w.]+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    classes = {f"{cls.__module__}.{cls.__name__}" for cls in METHODS.values()}
    assert classes <= listed
    assert [name for name in listed - classes if hasattr(_named(name), "about")] == []


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def prelude(folder: Path) -> dict[str, Any]:
    """The names that the pages take as given: a model, its data, a loss, an optimizer, a loop."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 16), nn.ReLU(), nn.Linear(16, 4))
    images, labels = torch.randn(16, 1, 8, 8), torch.randint(4, (16,))
    loader = [(images[:8], labels[:8]), (images[8:], labels[8:])]
    criterion = nn.CrossEntropyLoss()
    torch.save(model.state_dict(), folder / "dense.pt")

    def make_optimizer(sp: autosparse.Sparsifier) -> torch.optim.Optimizer:
        return torch.optim.SGD(sp.param_groups(weight_decay=1e-4), lr=0.05, momentum=0.9)

    def train(model: nn.Module, sp: autosparse.Sparsifier, opt: torch.optim.Optimizer, epochs: int) -> None:
        sp.bind(opt)
        for _ in range(min(epochs, EPOCHS)):
            for x, y in loader:
                loss = criterion(model(x), y) + sp.penalty()
                opt.zero_grad()
                loss.backward()
                opt.step()
            sp.end_epoch(loss=float(loss.detach()))

    names = {"model": model, "loader": loader, "criterion": criterion, "x": images, "y": labels, "train": train}
    return {**names, "make_optimizer": make_optimizer, "torch": torch, "nn": nn, "autosparse": autosparse}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in python_blocks(page):
        given = prelude(tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", autosparse.SparsityWarning)
            exec(compile(block, str(page), "exec"), given)
            if "sp" in given and given["sp"].layers[0].attached and given["sp"].step == 0:
                opt = given.get("opt") or given.get("optimizer") or given["make_optimizer"](given["sp"])
                given["train"](given["model"], given["sp"], opt, epochs=EPOCHS)
        if "sp" in given:
            assert all(torch.isfinite(value).all() for value in given["model"].state_dict().values())
