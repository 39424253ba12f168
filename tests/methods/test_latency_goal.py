"""A latency as the goal of a run: the table that is measured once, what is steered by it, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

import autosparse
from autosparse import AutoSparse
from autosparse.kernels import library
from autosparse.methods.latency import DENSITIES, Latency, LatencyTable
from autosparse.serving import latency

from .test_goals import EPOCHS, STEPS, ConvNet, trained

FIXED = 0.1  # milliseconds that zeros do not save


def made_up(sp: Any, precision: str) -> LatencyTable:
    """Multiply-adds as time; int8 takes half of it."""
    speed = 2e-6 if precision == "float32" else 1e-6
    macs = {layer.name: sp.ledger.profile.macs_of(layer.name) for layer in sp.layers}
    layers = {name: tuple(speed * count * density for density in DENSITIES) for name, count in macs.items()}
    return LatencyTable(DENSITIES, layers, (FIXED,) * len(DENSITIES))


@pytest.fixture
def known_times(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Precisions that were measured."""
    calls: list[str] = []
    monkeypatch.setattr(latency, "measure", lambda sp, precision: (calls.append(precision), made_up(sp, precision))[1])
    return calls


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_latency_is_reached_and_measured_once(precision: str, known_times: list[str]) -> None:
    sp, _ = trained(ConvNet(), AutoSparse(target_latency=0.15, precision=precision))
    dense = sum(sp.ledger.profile.macs_of(layer.name) for layer in sp.layers)
    kept = sum(
        density * sp.ledger.profile.macs_of(layer.name) for layer, density in zip(sp.layers, sp.densities(), strict=True)
    )
    assert FIXED + (2e-6 if precision == "float32" else 1e-6) * kept == pytest.approx(0.15, rel=0.03)
    assert kept < dense
    assert known_times == [precision]
    assert sp.at_target
    assert "target_latency 0.15 ms: 0.1" in str(sp.report())


def test_fewer_milliseconds_are_more_zeros(known_times: list[str]) -> None:
    found = [trained(ConvNet(), AutoSparse(target_latency=asked))[0].sparsity() for asked in (0.2, 0.13)]
    assert found[0] < found[1] - 0.1


def test_a_resumed_run_does_not_measure_again(known_times: list[str]) -> None:
    whole, _ = trained(ConvNet(), AutoSparse(target_latency=0.15))
    state = whole.state_dict()
    assert json.loads(json.dumps(state["latency"])) == state["latency"]
    again = autosparse.sparsify(
        ConvNet(), AutoSparse(target_latency=0.15), epochs=EPOCHS, steps_per_epoch=STEPS, example_input=torch.zeros(1, 1, 8, 8)
    )
    again.load_state_dict(state)
    assert again.parts["latency"].table == whole.parts["latency"].table
    assert again.parts["controller"].state_dict() == whole.parts["controller"].state_dict()
    again.method.goal.learn(again)
    assert len(known_times) == 1
    state["latency"]["rest"] = [1.0]
    with pytest.raises(ValueError, match="its latency cannot be loaded"):
        again.load_state_dict(state)


def test_what_cannot_be_met_is_refused(known_times: list[str]) -> None:
    with pytest.raises(ValueError, match=r"target_latency = 0\.05 ms cannot be met: in float32 the served model takes 0\.10"):
        trained(ConvNet(), AutoSparse(target_latency=0.05))
    with pytest.raises(ValueError, match="pass sparsify an example_input"):
        trained(ConvNet(), AutoSparse(target_latency=0.15), example=False)


def test_what_a_dense_model_meets_is_said(known_times: list[str]) -> None:
    with pytest.warns(autosparse.SparsityWarning, match=r"target_latency = 9\.0 ms is met without zeros"):
        sp, _ = trained(ConvNet(), AutoSparse(target_latency=9.0), epochs=2)
    assert sp.sparsity() < 0.01


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target_latency": 0}, "it is in milliseconds, more than 0"),
        ({"target_latency": "5 ms"}, "it is in milliseconds"),
        ({"target_latency": 5, "target_size": "1 MB"}, "target_size and target_latency both decide how sparse"),
        ({"target_latency": 5, "precision": "int4"}, "precision 'int4' is not known; give float32, bfloat16, int8"),
        ({"precision": "int8"}, "is that of the served model or of its file: set target_latency or target_size too"),
    ],
)
def test_bad_goals(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AutoSparse(**fields)


def test_tables() -> None:
    table = LatencyTable((0.1, 0.5, 1.0), {"a": (1.0, 3.0, 2.0)}, (4.0, 4.0, 8.0))
    assert table.milliseconds(["a", "unknown"], [1, 3], [0.3, 0.1]) == pytest.approx(1.5 + 4.0)  # 3 was a disturbance
    assert table.milliseconds(["a"], [1], [0.01]) == pytest.approx(5.0)
    for wrong in ({"a": (1.0,)}, {"a": (1.0, 2.0, float("nan"))}):
        with pytest.raises(ValueError, match=r"."):
            LatencyTable((0.1, 0.5, 1.0), wrong, (4.0, 4.0, 8.0))
    assert Latency().state_dict() == {}


class Mixed(nn.Module):
    """Convolutions with a depthwise one, and a linear layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.mix = nn.Conv2d(16, 24, 1)
        self.fc = nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.mix(self.depthwise(torch.relu(self.first(x))))).mean((2, 3))
        return self.fc(torch.relu(self.fc(x)))


@pytest.mark.skipif(not library.available(), reason=f"no engine: {library.why_not()}")
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_real_table_and_the_run_it_leaves_alone(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "DENSITIES", (0.1, 1.0))
    model, x = Mixed(), torch.randn(4, 3, 16, 16)
    method = AutoSparse(target_latency=1000.0, precision=precision, rows_per_pattern=2)
    sp = autosparse.sparsify(model, method, epochs=1, steps_per_epoch=2, example_input=x)
    before, random, threads = sp.dense_state_dict(), torch.get_rng_state(), torch.get_num_threads()
    table = latency.measure(sp, precision)
    assert set(table.layers) == {"first", "depthwise", "mix", "fc"}
    assert all(time >= 0 for times in (*table.layers.values(), table.rest) for time in times)
    assert table.layers["fc"][1] > 0
    assert table.milliseconds(["fc"], [1], [1.0]) > 0
    assert all(torch.equal(value, before[name]) for name, value in sp.dense_state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.get_num_threads() == threads
