"""What all tests share: one start for each of them, an order that can be shuffled, and a short training loop."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import distributed, nn

import autosparse
from autosparse.kernels import compressed, library
from autosparse.methods import METHODS

ORDER = "AUTOSPARSE_TEST_ORDER"
LASTING: set[str] = set()  # names of modules that are no test's own

# no network, and no progress bars in the output of a failing test; read when huggingface_hub is imported
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", HF_HUB_DISABLE_PROGRESS_BARS="1")


def pytest_report_header() -> str | None:
    seed = os.environ.get(ORDER)
    return f"order shuffled: {ORDER}={seed}" if seed else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With AUTOSPARSE_TEST_ORDER=seed, modules run in a random order, and so do the tests of each."""
    if seed := os.environ.get(ORDER):
        chance = random.Random(seed)
        modules: dict[str, list[pytest.Item]] = {}
        for item in items:
            modules.setdefault(item.nodeid.split("::")[0], []).append(item)
        shuffled = chance.sample(list(modules.values()), len(modules))
        items[:] = [item for tests in shuffled for item in chance.sample(tests, len(tests))]


def pytest_collection_finish() -> None:
    """A full collection of garbage would otherwise walk through all of torch and every collected test, for a quarter second."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees which ones ran before it in the same process."""
    environment, methods, path, hook = dict(os.environ), dict(METHODS), list(sys.path), sys.excepthook
    before = settings()
    torch.set_num_threads(1)
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(1)
    put_back(os.environ, environment)
    put_back(METHODS, methods)
    sys.path[:], sys.excepthook = path, hook
    forget_modules(tmp_path_factory.getbasetemp())
    clear_caches()
    assert settings() == before, "the test must put this back itself"


def put_back(values: MutableMapping[str, Any], before: Mapping[str, Any]) -> None:
    """Writes nothing that is right already: other threads may be reading the environment."""
    for name in values.keys() - before.keys():
        del values[name]
    values.update({name: value for name, value in before.items() if name not in values or values[name] != value})


def forget_modules(folder: Path) -> None:
    """Tests write modules of the same name, and Python would give the first of them to all."""
    for name in sys.modules.keys() - LASTING:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(f"{folder}{os.sep}"):
            del sys.modules[name]
        else:
            LASTING.add(name)  # to look at thousands of them again after every test takes half a minute in all


def settings() -> dict[str, object]:
    """Of the whole process; no library changes these behind a test's back."""
    return {
        "working directory": os.getcwd(),
        "default dtype": torch.get_default_dtype(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "gradients": torch.is_grad_enabled(),
        "process group": distributed.is_available() and distributed.is_initialized(),
    }


def clear_caches() -> None:
    library.load.cache_clear()
    compressed.WEIGHTS.clear()
    if "torch._dynamo" in sys.modules:  # compiles a function eight times, by whichever tests, and then refuses
        torch._dynamo.reset()
    if "accelerate.state" in sys.modules:  # all accelerators of a process share one state, the precision included
        sys.modules["accelerate.state"].AcceleratorState._reset_state(reset_partial_state=True)


class Loop:
    """Three lines around a training loop on random data; the pieces stay reachable."""

    def __init__(
        self, model: nn.Module, method: autosparse.methods.Method, epochs: int = 4, steps: int = 5, **options: object
    ) -> None:
        self.model, self.epochs, self.steps = model, epochs, steps
        decay = {"weight_decay": options.pop("weight_decay", 1e-2), "threshold_decay": options.pop("threshold_decay", None)}
        shape = options.pop("shape", (10,))
        optimizer = options.pop("optimizer", "sgd")
        lr = options.pop("lr", 0.1)
        self.sp = autosparse.sparsify(model, method, epochs=epochs, steps_per_epoch=steps, **options)
        groups = self.sp.param_groups(**decay)
        self.opt = torch.optim.AdamW(groups, lr=lr) if optimizer == "adamw" else torch.optim.SGD(groups, lr=lr, momentum=0.9)
        self.sp.bind(self.opt)
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(16, *shape, generator=generator, dtype=next(model.parameters()).dtype)
        self.y = torch.randint(3, (16,), generator=generator)

    def loss(self) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(self.x), self.y) + self.sp.penalty()

    def step(self) -> float:
        loss = self.loss()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def epoch(self) -> float:
        losses = [self.step() for _ in range(self.steps)]
        mean = sum(losses) / len(losses)
        self.sp.end_epoch(loss=mean)
        return mean

    def run(self) -> list[float]:
        return [self.epoch() for _ in range(self.epochs)]


def small_net(width: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))


@pytest.fixture
def net() -> nn.Sequential:
    return small_net()


@pytest.fixture
def loop() -> Callable[..., Loop]:
    return Loop
