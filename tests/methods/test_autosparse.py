"""AutoSparse and STR: config, thresholds, target, guard; every field is shown to change behaviour."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
import torch
from torch import nn

import autosparse
from autosparse import STR, AutoSparse, AutoTune
from autosparse.parametrizations import SoftThreshold
from autosparse.sparsifier.guard import SparsityRunaway

from ..latencies import made_up_latencies

STEPS = {"epochs": 6, "steps": 10}


def soft(run) -> list[SoftThreshold]:
    return [layer.parametrization for layer in run.sp.layers]


def numpy_run(weight, x, y, alpha, s, lr, momentum, decay, steps):
    """Twenty lines of METHODS section 1 for one linear layer with squared loss, in plain NumPy arithmetic (by torch.double)."""
    velocity_w, velocity_s = torch.zeros_like(weight), torch.zeros(1, dtype=torch.float64)
    for _ in range(steps):
        t = 1 / (1 + torch.exp(-s))
        shrunk = weight.abs() - t
        effective = torch.where(shrunk > 0, weight.sign() * shrunk, torch.zeros_like(weight))
        residual = x @ effective.T - y
        gradient = 2 * residual.T @ x / residual.numel()
        scale = torch.where(effective != 0, 1.0, alpha)
        grad_w = gradient * scale + decay * weight
        grad_s = -t * (1 - t) * (gradient * weight.sign() * scale).sum() + decay * s
        velocity_w, velocity_s = momentum * velocity_w + grad_w, momentum * velocity_s + grad_s
        weight, s = weight - lr * velocity_w, s - lr * velocity_s
    return weight, s


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_twenty_steps_equal_the_equations(alpha):
    torch.manual_seed(1)
    model = nn.Linear(6, 5, bias=False).double()
    x, y = torch.randn(20, 6).double(), torch.randn(20, 5).double()
    weight, s = numpy_run(model.weight.detach().clone(), x, y, alpha, torch.tensor([-1.5]).double(), 0.1, 0.9, 0.02, 20)
    sp = autosparse.sparsify(
        model, AutoSparse(alpha=alpha, schedule="constant", s_init=-1.5), epochs=1, steps_per_epoch=20, guard=None
    )
    optimizer = torch.optim.SGD(sp.param_groups(weight_decay=0.02), lr=0.1, momentum=0.9)
    sp.bind(optimizer)
    for _ in range(20):
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
    assert torch.allclose(sp.layers[0].weight(), weight, atol=1e-9)
    assert torch.allclose(sp.layers[0].parametrization.threshold.detach(), s, atol=1e-9)


def test_str_is_autosparse_with_alpha_zero(loop):
    states = []
    for method in (STR(), AutoSparse(alpha=0.0)):
        torch.manual_seed(5)
        run = loop(nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 3)), method, **STEPS)
        run.run()
        states.append(run.model.state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("g", ["sigmoid", "exp", "identity"])
@pytest.mark.parametrize("threshold", ["layer", "channel"])
def test_start_sparsity_is_exact_where_each_threshold_rules(g, threshold, loop):
    run = loop(nn.Linear(50, 8), AutoSparse(g=g, threshold=threshold, start_sparsity=0.3), shape=(50,))
    active = run.sp.layers[0].active()
    assert int(active.sum()) == 280
    assert soft(run)[0].threshold.shape == ((8, 1) if threshold == "channel" else (1,))
    if threshold == "channel":
        assert active.sum(1).tolist() == [35] * 8


def test_default_start_and_s_init():
    default = autosparse.sparsify(nn.Linear(50, 8), AutoSparse(), epochs=1, steps_per_epoch=1)
    assert default.sparsity() == pytest.approx(0.3)
    with pytest.warns(autosparse.SparsityWarning, match=r"prunes every weight of weight at the start"):
        fixed = autosparse.sparsify(nn.Linear(50, 8), AutoSparse(s_init=-1.0), epochs=1, steps_per_epoch=1, guard=None)
    assert fixed.layers[0].parametrization.threshold.item() == -1.0
    assert fixed.report().layers[0].threshold == pytest.approx(0.26894, abs=1e-5)


def test_channels_of_a_transposed_convolution():
    sp = autosparse.sparsify(nn.ConvTranspose2d(4, 6, 3), AutoSparse(threshold="channel"), epochs=1, steps_per_epoch=1)
    assert sp.layers[0].parametrization.threshold.shape == (1, 6, 1, 1)


def test_one_shared_threshold_is_global_and_unlearned(loop):
    model = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 3))
    with torch.no_grad():
        model[2].weight.mul_(5)
    run = loop(model, AutoSparse(threshold="shared", start_sparsity=0.3, target_sparsity=0.7), **STEPS)
    assert run.sp.thresholds() == []
    assert run.sp.sparsity() == pytest.approx(0.3, abs=0.01)
    assert run.sp.densities()[1] > run.sp.densities()[0], "one threshold for layers of different scale"
    run.run()
    values = {float(each.threshold_values()) for each in soft(run)}
    assert len(values) == 1
    assert run.sp.sparsity() == pytest.approx(0.7, abs=0.005)


@pytest.mark.parametrize("g", ["sigmoid", "exp", "identity"])
def test_a_shared_threshold_meets_its_target_with_every_g(g, loop):
    run = loop(nn.Linear(10, 60), AutoSparse(g=g, threshold="shared", target_sparsity=0.8), **STEPS)
    run.run()
    assert run.sp.sparsity() == pytest.approx(0.8, abs=0.005)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("g", ["sigmoid", "exp"])
@pytest.mark.parametrize("target", [0.5, 0.9])
def test_target_is_met_and_budgets_are_learned(g, target, optimizer, loop):
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    lr = 0.1 if optimizer == "sgd" else 3e-3
    run = loop(model, AutoSparse(g=g, target_sparsity=target), epochs=10, steps=10, optimizer=optimizer, lr=lr)
    run.run()
    assert run.sp.sparsity() == pytest.approx(target, abs=0.005)
    assert len({round(density, 3) for density in run.sp.densities()}) > 1, "the layers' budgets are learned"
    wanted = [row[1] for row in run.sp.report().controller]
    assert wanted == sorted(wanted)
    assert f"target {target:.1%}" in str(run.sp.report())


def test_target_below_the_start_goes_down(loop):
    run = loop(nn.Linear(10, 60), AutoSparse(start_sparsity=0.8, target_sparsity=0.4), **STEPS)
    run.run()
    assert run.sp.sparsity() == pytest.approx(0.4, abs=0.005)


def test_a_missed_target_is_called_out(loop):
    run = loop(nn.Linear(10, 60), AutoSparse(target_sparsity=0.9), epochs=1, steps=3)
    run.sp.parts["controller"].max_decay = 1e-9  # a controller that may not move
    run.sp.parts["controller"].insists = lambda *_: False
    with pytest.warns(autosparse.SparsityWarning, match=r"target_sparsity = 0\.9, reached 0\.3"):
        run.run()


def target_run(method, rate, optimizer, spikes=(), steps=200):
    """Trains a small net, at a constant rate and with losses a thousand times as large at some steps; gives its Sparsifier."""
    torch.manual_seed(0)
    x = torch.randn(512, 20)
    target = x[:, :10].argmax(1)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
    sp = autosparse.sparsify(net, method, epochs=10, steps_per_epoch=steps // 10)
    opt = optimizer(sp.param_groups(weight_decay=1e-3), lr=rate)
    sp.bind(opt)
    for step in range(steps):
        rows = torch.randint(0, 512, (64,))
        loss = nn.functional.cross_entropy(net(x[rows]), target[rows]) * (1e3 if step in spikes else 1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % (steps // 10) == 0:
            sp.end_epoch()
    return sp


@pytest.mark.parametrize("method", [AutoSparse(target_sparsity=0.8), STR(target_sparsity=0.8)])
@pytest.mark.parametrize(
    ("optimizer", "rate", "spikes"),
    [
        (torch.optim.AdamW, 0.03, ()),
        (torch.optim.AdamW, 0.1, ()),
        (partial(torch.optim.SGD, momentum=0.9), 0.05, (50, 100, 150)),
        (partial(torch.optim.SGD, momentum=0.9), 0.1, (50, 100, 199)),
    ],
)
@pytest.mark.filterwarnings("ignore:target_sparsity = 0.8 was reached by setting")
def test_a_target_is_met_against_a_constant_rate_and_after_spikes(method, optimizer, rate, spikes):
    sp = target_run(method, rate, optimizer, spikes)
    assert sp.sparsity() == pytest.approx(0.8, abs=0.005)
    assert min(sp.densities()) >= 0.01


def test_weights_beyond_every_threshold_are_zeroed_and_told(loop):
    run = loop(nn.Linear(10, 60), AutoSparse(target_sparsity=0.8), epochs=1, steps=10, lr=1e-9)
    with torch.no_grad():
        before = run.sp.layers[0].stored.mul_(1e3).abs().clone()  # as after a spike: T < 1/2 reaches none of them
    with pytest.warns(autosparse.SparsityWarning, match=r"reached by setting \d+ weights to zero"):
        run.run()
    assert run.sp.sparsity() == pytest.approx(0.8, abs=0.005)
    now = run.sp.layers[0].stored.detach().abs()
    assert torch.equal(now > 1, before >= before.flatten().sort().values[480])  # the largest were kept


def test_a_target_that_is_met_in_time_is_not_insisted_on():
    from autosparse.methods.target import TargetController

    controller = TargetController(0.8, 0.7, 100)
    assert not controller.insists(84, 0.5)
    assert controller.insists(85, 0.5)
    assert not controller.insists(100, 0.796)
    assert controller.insists(100, 0.81)


def test_sampled_quantiles_meet_the_target_too(loop, monkeypatch):
    monkeypatch.setattr("autosparse.methods.target_steering.SAMPLE", 20_000)
    model = nn.Sequential(nn.Linear(10, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 3))
    run = loop(model, AutoSparse(target_sparsity=0.9), **STEPS)
    run.run()
    assert run.sp.sparsity() == pytest.approx(0.9, abs=0.005)


def test_the_controller_leaves_layers_at_the_floor_alone(loop):
    """A layer with tiny weights would vanish under a common factor: it stays at 5 %, the others make up for it."""
    model = nn.Sequential(nn.Linear(10, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 3))
    with torch.no_grad():
        model[2].weight.mul_(0.01)
    run = loop(model, AutoSparse(threshold="shared", target_sparsity=0.85), density_floor=0.05, **STEPS)
    run.run()
    assert min(run.sp.densities()) >= 0.05
    assert run.sp.sparsity() == pytest.approx(0.85, abs=0.005)


DYING = {"s_init": -1.0}  # T = 0.27 prunes every weight of a layer with 50 inputs (|w| < 0.15)


@pytest.mark.filterwarnings("ignore::autosparse.SparsityWarning")
def test_the_guard_keeps_a_run_alive_that_dies_without_it():
    def train(policy):
        torch.manual_seed(0)
        hidden = [part for size in (50, 60) for part in (nn.Linear(size, 60), nn.BatchNorm1d(60), nn.ReLU())]
        model = nn.Sequential(*hidden, nn.Linear(60, 3))
        x, y = torch.randn(64, 50), torch.randint(3, (64,))
        sp = autosparse.sparsify(model, AutoSparse(**DYING), epochs=5, steps_per_epoch=20, guard=policy)
        optimizer = torch.optim.SGD(sp.param_groups(weight_decay=1e-4), lr=0.1, momentum=0.9)
        sp.bind(optimizer)
        for _ in range(100):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item(), sp

    dead, without = train(None)
    alive, held = train("hold")
    assert without.sparsity() == 1.0
    assert dead > 1.0
    assert alive < 0.5 * dead
    assert min(held.densities()) >= 0.01
    assert {event.kind for event in held.events} >= {"floor"}
    assert "floor" in str(held.report())


@pytest.mark.filterwarnings("ignore::autosparse.SparsityWarning")
def test_guard_policies_stop_and_warn():
    with pytest.raises(SparsityRunaway, match=r"keeps 0\.000% of its weights"):
        autosparse.sparsify(nn.Linear(50, 8), AutoSparse(**DYING), epochs=1, steps_per_epoch=1, guard="stop")
    with pytest.warns(autosparse.SparsityWarning, match="nothing was changed"):
        sp = autosparse.sparsify(nn.Linear(50, 8), AutoSparse(**DYING), epochs=1, steps_per_epoch=1, guard="warn")
    assert sp.sparsity() == 1.0


def test_escaped_layers_get_no_gradient_for_pruned_weights(net, loop):
    run = loop(net, AutoSparse(alpha=0.5, schedule="constant"), guard_every=1)
    with torch.no_grad():
        run.sp.layers[1].stored[0, 0] = 100.0
    run.step()
    gates = [layer.parametrization.gate.item() for layer in run.sp.layers]
    assert gates == [0.5, 0.0, 0.5]
    assert "escap" in str(run.sp.report())


def test_run_away_growth_is_limited(loop):
    run = loop(nn.Linear(10, 300), AutoSparse(start_sparsity=0.6), guard_every=1)
    before = run.sp.densities()[0]
    weights = run.sp.layers[0].weight().abs()
    soft(run)[0].set_threshold(weights.flatten().topk(60).values[-1])
    run.step()
    assert run.sp.densities()[0] == pytest.approx(0.5 * before, rel=0.02)


def test_unlearned_decay_defaults(loop):
    sp = loop(nn.Linear(10, 30), AutoSparse()).sp
    assert [group["weight_decay"] for group in sp.param_groups(weight_decay=0.1)] == [0.1, 0.1]
    assert [group["weight_decay"] for group in sp.param_groups(weight_decay=0.1, threshold_decay=0.3)] == [0.1, 0.3]
    steered = loop(nn.Linear(10, 30), AutoSparse(target_sparsity=0.5)).sp
    assert [group["weight_decay"] for group in steered.param_groups(weight_decay=0.1)] == [0.1, 0.0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"alpha": 1.5}, r"alpha = 1\.5; allowed: 0 <= alpha <= 1"),
        ({"alpha": -0.1}, r"alpha = -0\.1"),
        ({"schedule": "cosin"}, "cosine"),
        ({"beta": 0.0}, "beta = 0"),
        ({"zero_epoch": -1}, "zero_epoch = -1"),
        ({"horizon": 0}, "horizon = 0"),
        ({"s_init": -5.0, "start_sparsity": 0.3}, "not both"),
        ({"start_sparsity": 1.0}, r"start_sparsity = 1\.0"),
        ({"g": "relu"}, "allowed: sigmoid, exp, identity"),
        ({"threshold": "row"}, "allowed: layer, channel, shared"),
        ({"backward_sparsity": 1.0}, r"backward_sparsity = 1\.0"),
        ({"dense_grad_every": 0}, "dense_grad_every = 0"),
        ({"target_sparsity": 0.0}, r"target_sparsity = 0\.0"),
        ({"target_sparsity": 90}, "0.9 means 90 % zeros"),
        ({"target_sparsity": 0.9, "target_ramp": 0.0}, "target_ramp = 0"),
        ({"target_sparsity": 0.9, "autotune": AutoTune(epochs=1, reference=[1.0])}, "choose one"),
        ({"alpha": 0.5, "autotune": AutoTune(epochs=1, reference=[1.0])}, "alpha comes from autotune"),
        ({"g": "identity", "target_sparsity": 0.9}, "a learned threshold with g = identity"),
        ({"s_init": 1.0, "target_sparsity": 0.9}, "must be below 0"),
    ],
)
def test_bad_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        AutoSparse(**fields)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (AutoSparse(zero_epoch=11), {}, "zero_epoch = 11 lies beyond the run of 10 epochs"),
        (AutoSparse(target_sparsity=0.995), {}, r"cannot be met while every layer keeps a density of 0\.01"),
        (AutoSparse(autotune=AutoTune(epochs=10, reference=[1.0] * 10)), {}, "autotune takes 10 epochs of a run of 10"),
        (AutoSparse(autotune=AutoTune(epochs=3)), {}, "has no reference losses"),
    ],
)
def test_what_a_run_refuses(method, options, message):
    model = nn.Linear(10, 3)
    with pytest.raises(ValueError, match=message):
        autosparse.sparsify(model, method, epochs=10, steps_per_epoch=5, **options)
    assert list(model.state_dict()) == ["weight", "bias"]


def test_fewer_reference_losses_than_epochs_are_refused():
    with pytest.raises(ValueError, match="tunes for 9 epochs, but the reference holds 2"):
        AutoTune(reference=[1.0, 0.9])


OTHER = {
    "alpha": 0.2, "schedule": "linear", "beta": 3.0, "zero_epoch": 1, "horizon": 3, "backward_sparsity": 0.5,
    "dense_grad_every": 2, "autotune": AutoTune(epochs=2, reference=[1.0, 1.0]), "s_init": -4.0, "start_sparsity": 0.6,
    "g": "exp", "threshold": "channel", "target_sparsity": 0.7, "target_ramp": 0.2, "shape": 2.0, "rescale": True,
    "preset": "fast", "alpha_per": "epoch", "target_flops": 0.5, "target_size": "3 kB", "max_loss_increase": 0.9,
    "reference": [9.0] * 5, "rows_per_pattern": 2, "target_latency": 1.0, "precision": "int8",
}  # fmt: skip
BASE = {
    "beta": {"schedule": "exponential"}, "target_ramp": {"target_sparsity": 0.7}, "precision": {"target_latency": 1.0},
    "max_loss_increase": {"max_loss_increase": 0.01, "reference": [0.5] * 5},
    "reference": {"max_loss_increase": 0.01, "reference": [0.5] * 5},
}  # fmt: skip


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(AutoSparse)])
def test_every_field_changes_behaviour(field, loop):
    base = BASE.get(field, {})
    states = []
    for fields in (base, {**base, field: OTHER[field]}):
        torch.manual_seed(2)
        with made_up_latencies():
            run = loop(nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 3)), AutoSparse(**fields), epochs=5)
            run.run()
        states.append(run.sp.layers[0].effective())
    assert not torch.equal(*states)


def test_recalibration_and_the_warning_about_edited_thresholds():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Dropout(0.5), nn.Linear(40, 3))
    sp = autosparse.sparsify(model, AutoSparse(), epochs=2, steps_per_epoch=5)
    optimizer = torch.optim.SGD(sp.param_groups(weight_decay=1e-3), lr=0.1)
    sp.bind(optimizer)
    x, y = torch.randn(64, 10), torch.randint(3, (64,))
    for _ in range(2):
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        sp.end_epoch()
    sp.layers[0].parametrization.set_threshold(torch.tensor([0.25]))
    with pytest.warns(autosparse.SparsityWarning, match="recalibrate"):
        sp._fingerprint.warn_if_edited(model, sp.layers, sp.step)
    before = {name: value.clone() for name, value in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    autosparse.recalibrate(model, [x[:32], (x[32:], y[32:])])
    assert all(torch.equal(before[name], value) for name, value in model.named_parameters())
    assert modes == [module.training for module in model.modules()]
    with torch.no_grad():
        inner = model[0](x)
    expected = (inner[:32].mean(0) + inner[32:].mean(0)) / 2
    assert torch.allclose(model[1].running_mean, expected, atol=1e-6)
    assert model[1].momentum == 0.1
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sp.finalize()


def test_recalibration_refuses_and_restores():
    with pytest.raises(ValueError, match="no batch norm"):
        autosparse.recalibrate(nn.Linear(2, 2), [torch.ones(1, 2)])
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model(torch.randn(8, 2))
    mean = model[1].running_mean.clone()
    with pytest.raises(ValueError, match="empty"):
        autosparse.recalibrate(model, [])
    with pytest.raises(RuntimeError):
        autosparse.recalibrate(model, [torch.randn(4, 2), torch.randn(4, 7)])
    assert torch.equal(model[1].running_mean, mean)


def test_method_by_name():
    assert autosparse.method("autosparse", alpha=0.5) == AutoSparse(alpha=0.5)
    assert {"autosparse", "str"} <= set(autosparse.list_methods())
    with pytest.raises(ValueError, match="no method 'autospars'; did you mean 'autosparse'"):
        autosparse.method("autospars")
    with pytest.raises(ValueError, match="no field 'alfa'; did you mean 'alpha'"):
        autosparse.method("autosparse", alfa=0.5)
