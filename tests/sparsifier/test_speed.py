"""Does it pay? What a user is told in their own loop; how fast anything is is not a test."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import autosparse
from autosparse import AutoSparse
from autosparse.compute.compute import LayerPlan
from autosparse.sparsifier import Sparsifier
from autosparse.sparsifier.speed import Speed, StepClock, speed_of

STEPS = 8


def start() -> tuple[Sparsifier, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    sp = autosparse.sparsify(model, AutoSparse(target_sparsity=0.5), epochs=3, steps_per_epoch=STEPS)
    optimizer = torch.optim.SGD(sp.param_groups(), lr=0.01)
    sp.bind(optimizer)
    return sp, optimizer


def epoch(sp: Sparsifier, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(STEPS):
        optimizer.zero_grad()
        sp.model(torch.ones(4, 6)).square().mean().backward()
        optimizer.step()
    sp.end_epoch(1.0)


def test_the_first_epoch_ends_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    sp, optimizer = start()
    assert sp.speed() is None
    assert sp.report().speed is None
    epoch(sp, optimizer)
    (line,) = capsys.readouterr().err.splitlines()
    for part in ("autosparse: ", " ms per step; plain dense training would take about ", "0 of 2 layers skip zeros; 2 dense: "):
        assert part in line
    epoch(sp, optimizer)
    assert not capsys.readouterr().err
    said = str(sp)
    assert "ms per step" in said
    assert said == str(sp.report())


def test_a_run_that_tells_by_itself_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    sp, optimizer = start()
    sp.announces_speed = False
    epoch(sp, optimizer)
    assert not capsys.readouterr().err
    assert sp.report().to_dict()["speed"]["layers"] == 2


def test_looking_changes_nothing() -> None:
    runs = [start() for _ in range(2)]
    for looks, (sp, optimizer) in enumerate(runs):
        sp.announces_speed = False
        for _ in range(2):
            epoch(sp, optimizer)
            if looks:
                sp._clock.overhead = None  # measure it again
                assert sp.report().speed is not None
    (quiet, _), (watched, _) = runs
    state = watched.model.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in quiet.model.state_dict().items())
    assert all(parameter.grad is not None for parameter in watched.thresholds())
    assert copy.deepcopy(watched).report().speed is not None


def test_the_dense_time_adds_what_zeros_gained_and_takes_off_what_thresholds_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    sp, _ = start()
    clock = StepClock()
    clock.overhead = 0.001
    now = iter(0.010 * step for step in range(20))
    monkeypatch.setattr("autosparse.sparsifier.speed.time.perf_counter", lambda: next(now))
    for _ in range(9):
        clock.tick()
    plans = [
        LayerPlan("0", (8, 6), 0.1, ("forward",), dense_seconds=0.008, seconds=0.003),
        LayerPlan("2", (3, 8), 0.1, (), 0.002, 0.002, "too small: 1 million multiply-adds"),
    ]
    speed = speed_of(clock, sp.layers, plans)
    assert speed is not None
    assert speed.milliseconds == pytest.approx(10)
    assert speed.dense_milliseconds == pytest.approx(14)
    assert speed.ratio == pytest.approx(1.4)
    assert (speed.skipping, speed.layers, speed.reasons) == (1, 2, {"too small": 1})
    clock.restart()
    assert speed_of(clock, sp.layers, plans) is None


def test_slower_than_dense_is_said_as_it_is() -> None:
    assert "(0.80 times as fast); 0 of 1 layers skip zeros; 1 dense: autocast" in str(Speed(10.0, 8.0, 0, 1, {"autocast": 1}))
