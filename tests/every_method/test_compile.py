"""torch.compile of every method: one graph without breaks, and a step that equals the eager one."""

from __future__ import annotations

import pytest
import torch

import autosparse

from .running import active, begin
from .settings import QUICK

RUNS = [
    pytest.param(name, net, marks=() if name in QUICK and net == "conv" else pytest.mark.slow)
    for name in autosparse.list_methods()
    for net in ("conv", "transformer")
]


@pytest.mark.parametrize(("name", "net"), RUNS)
def test_a_compiled_step_equals_the_eager_one(name: str, net: str) -> None:
    eager = begin(name, net, "sgd")
    compiled = begin(name, net, "sgd", wrap=lambda model: torch.compile(model, backend="aot_eager", fullgraph=True))  # type: ignore[arg-type, return-value]
    for run in (eager, compiled):
        run.score()
    assert compiled.step() == pytest.approx(eager.step(), abs=1e-6)
    found = dict(compiled.model.named_parameters())
    for key, parameter in eager.model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(found[key].grad, parameter.grad, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found[key], parameter, rtol=1e-4, atol=1e-6)
    for layer, other in zip(eager.sp.layers, compiled.sp.layers, strict=True):
        assert torch.equal(active(other), active(layer))
