"""Every method's state: copied, saved, refused where it does not belong; hardened and finalized in the middle of a run."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

import autosparse

from ..states import differences
from .running import COMBINATIONS, begin, make_net, resumed, trajectory
from .settings import QUICK, ROWS, TOTAL

NAMES = autosparse.list_methods()
COPIED = [(name, "conv", "sgd") for name in NAMES] + [
    pytest.param(name, "transformer", "adamw", marks=() if name in QUICK else pytest.mark.slow) for name in NAMES
]
every_run = pytest.mark.parametrize(("name", "net", "optimizer"), [(name, *each) for name in NAMES for each in COMBINATIONS])


@pytest.mark.parametrize(("name", "net", "optimizer"), COPIED)
def test_a_copy_goes_on_as_the_original_does(name: str, net: str, optimizer: str) -> None:
    """Copied in the middle: both continue alike, each by itself; the copy is finalized and the original trains on."""
    run = resumed(name, net, optimizer, trajectory(name, net, optimizer).cut)
    twin = run.copy(optimizer)
    until = min(run.done + 10, TOTAL - 2)  # over the end of an epoch
    before = run.state()
    losses = twin.advance(until)
    assert differences(run.state(), before) == []
    assert run.advance(until) == losses
    assert differences(run.state(), twin.state()) == []
    before = run.state()
    hard = [ROWS[name].hard(layer) for layer in twin.sp.layers]
    sparsity = twin.sp.sparsity()
    plain = twin.sp.finalize()
    assert list(plain.state_dict()) == list(make_net(net).state_dict())
    weights = [layer.stored.detach() for layer in twin.sp.layers]
    assert differences(weights, hard) == []
    assert twin.sp.sparsity() >= sparsity
    assert differences(run.state(), before) == []
    run.advance(TOTAL)
    assert differences(run.state(), trajectory(name, net, optimizer).run.state()) == []


@every_run
def test_a_saved_state_is_a_snapshot(name: str, net: str, optimizer: str) -> None:
    """What was handed out is untouched by the steps after it, and torch.load reads it without running code."""
    ran = trajectory(name, net, optimizer)
    assert differences(ran.held, ran.cut["sp"]) == []
    buffer = io.BytesIO()
    torch.save(ran.cut, buffer)
    buffer.seek(0)
    assert differences(torch.load(buffer, weights_only=True), ran.cut) == []


@pytest.fixture(scope="module")
def states() -> dict[str, dict[str, Any]]:
    return {name: begin(name, "conv", "sgd").sp.state_dict() for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_state_of_another_method_is_refused(name: str, states: dict[str, dict[str, Any]]) -> None:
    run = begin(name, "conv", "sgd", seed=3)
    before = copy.deepcopy(run.sp.state_dict())
    for other, state in states.items():
        if other == name:
            continue
        with pytest.raises(ValueError, match="another run") as refusal:
            run.sp.load_state_dict(state)
        assert f"its method is {other}, this one's {name}" in str(refusal.value)
    assert differences(run.sp.state_dict(), before) == []
    run.sp.load_state_dict(states[name])
