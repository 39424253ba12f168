"""The loss of a translation model by chunks of tokens is the loss on all logits."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from autosparse import models
from autosparse.training import loop
from autosparse.training.session import Session

PADDING = 2


class Wrapped(nn.Module):
    """What a parallel runner looks like: not the model itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        result: Tensor = self.model(*inputs)
        return result


def session(model: nn.Module, runner: nn.Module, precision: str) -> Session:
    settings = SimpleNamespace(precision=precision, label_smoothing=0.1)
    found: Any = SimpleNamespace(
        model=model,
        runner=runner,
        sharded=False,
        device=torch.device("cpu"),
        recipe=SimpleNamespace(train=settings),
        data=SimpleNamespace(padding_id=PADDING),
    )
    return cast(Session, found)


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_the_loss_and_its_gradients_are_those_of_all_logits(
    precision: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(1)
    model = models.transformer(50, 16, 2, 32, 1, 1, dropout=0.0, padding_id=PADDING).train()
    source, target, wanted = (torch.randint(0, 50, (3, 5), generator=generator) for _ in range(3))
    source[:, 0], wanted[:, -1] = 7, PADDING
    used = []
    monkeypatch.setattr(
        import_module("autosparse.models.transformer"),
        "chunked_cross_entropy",
        lambda *args, **options: used.append(1) or models.chunked_cross_entropy(*args, **options),
    )
    found = []
    for runner in (model, Wrapped(model)):
        loss = loop.part_loss(session(model, runner, precision), (source, target), wanted)
        found.append((loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))))
    assert used == [1]
    for mine, other in zip(*found, strict=True):
        assert mine.dtype is other.dtype
        assert (mine - other).norm() <= tolerance * other.norm() + 1e-6
