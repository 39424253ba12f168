"""The Sparsifier in a training loop: what it promises, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import autosparse
from autosparse import STR, AutoSparse, AutoTune, kernels
from autosparse.sparsifier.small_steps import passes_of_step


def zeros(model: nn.Module, names: tuple[str, ...]) -> float:
    weights = [dict(model.named_modules())[name].weight for name in names]
    return sum(float((weight == 0).sum()) for weight in weights) / sum(weight.numel() for weight in weights)


def test_the_three_lines_train_a_sparse_network(net, loop):
    run = loop(net, AutoSparse(target_sparsity=0.8), epochs=20, steps=10)
    losses = run.run()
    assert losses[-1] < 0.5 * losses[0]
    assert run.sp.sparsity() == pytest.approx(0.8, abs=0.005)
    assert zeros(net, ("0", "2", "4")) == pytest.approx(run.sp.sparsity()), "what is reported is what the forward pass sees"


def test_finalize_gives_the_same_outputs_the_same_keys_and_a_plain_class(net, loop):
    before = list(net.state_dict())
    run = loop(net, AutoSparse(start_sparsity=0.5))
    run.epoch()
    expected, sparsity = net(run.x), run.sp.sparsity()
    dense = run.sp.dense_state_dict()
    model = run.sp.finalize()
    assert model is net
    assert torch.equal(model(run.x), expected)
    assert list(model.state_dict()) == before == list(dense)
    assert [type(module) for module in model] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert all(torch.equal(dense[key], value) for key, value in model.state_dict().items())
    assert run.sp.sparsity() == sparsity == run.sp.report().sparsity, "the report still speaks of the plain model"
    with pytest.raises(RuntimeError, match="finalized"):
        run.sp.end_epoch()


def test_a_dense_state_can_be_taken_without_disturbing_training(loop):
    torch.manual_seed(3)
    first = loop(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3)), AutoSparse())
    torch.manual_seed(3)
    second = loop(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3)), AutoSparse())
    first.epoch(), second.epoch()
    second.sp.dense_state_dict()
    first.epoch(), second.epoch()
    assert all(
        torch.equal(a, b) for a, b in zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True)
    )


def test_load_dense_takes_a_plain_checkpoint_and_starts_anew_from_it(net, loop):
    state = {key: torch.randn_like(value) for key, value in net.state_dict().items()}
    run = loop(net, AutoSparse(start_sparsity=0.5))
    run.sp.load_dense(state)
    assert torch.equal(run.sp.layers[1].weight(), state["2.weight"])
    assert [round(density, 2) for density in run.sp.densities()] == [0.5, 0.5, 0.5]
    assert torch.equal(net[0].bias, state["0.bias"])
    bad = {**state, "2.weight": torch.zeros(3, 3)}
    bad["extra"] = bad.pop("4.bias")
    with pytest.raises(
        ValueError, match=r"missing 4\.bias; unknown extra; 2\.weight has shape \(3, 3\), the model's is \(32, 32\)"
    ):
        run.sp.load_dense(bad)
    assert torch.equal(run.sp.layers[1].weight(), state["2.weight"]), "nothing was written"


def test_alpha_follows_the_schedule_and_is_what_pruned_weights_receive(net, loop):
    run = loop(net, AutoSparse(alpha=0.6, schedule="linear", zero_epoch=3), epochs=4)
    seen = []
    for _ in range(4):
        seen.append(run.sp.alpha)
        run.loss().backward()
        layer = run.sp.layers[1]
        pruned = ~layer.active()
        straight = torch.autograd.grad(run.loss(), layer.stored)[0]
        run.model.zero_grad()
        assert bool(straight[pruned].any()) == (run.sp.alpha > 0)
        run.epoch()
    assert seen == pytest.approx([0.6, 0.45, 0.3, 0.0])


def test_dense_gradients_come_every_k_th_step_never_scaled(net, loop):
    run = loop(net, AutoSparse(alpha=0.5, schedule="constant", dense_grad_every=3), steps=7)
    gates = []
    for _ in range(7):
        gates.append(run.sp.layers[0].parametrization.gate.item())
        run.step()
    assert gates == [0.5, 0.0, 0.0, 0.5, 0.0, 0.0, 0.5]


def test_backward_sparsity_gives_gradients_to_the_largest_and_to_every_active_weight(net, loop):
    run = loop(net, AutoSparse(alpha=0.5, schedule="constant", backward_sparsity=0.6, start_sparsity=0.8))
    for _ in range(3):
        run.loss().backward()
        for layer in run.sp.layers:
            weight, gradient, active = layer.weight().abs(), layer.stored.grad, layer.active()
            count = layer.numel - int(0.6 * layer.numel)
            assert int((gradient != 0).sum()) <= count
            assert weight[gradient != 0].min() >= weight.flatten().topk(count).values[-1]
            assert not gradient[~active & (weight < weight.flatten().topk(count).values[-1])].any()
        run.model.zero_grad()
        run.step()
    dense = loop(nn.Linear(10, 30), AutoSparse(alpha=0.5, backward_sparsity=0.9, start_sparsity=0.2))
    dense.loss().backward()
    layer = dense.sp.layers[0]
    assert layer.stored.grad[layer.active()].ne(0).all(), "B is never smaller than the active set"


def test_the_backward_set_is_renewed_only_for_steps_whose_gate_is_open(loop):
    method = AutoSparse(
        alpha=0.5, schedule="constant", zero_epoch=1, dense_grad_every=3, backward_sparsity=0.6, start_sparsity=0.5
    )
    run = loop(nn.Linear(10, 30), method, epochs=3, steps=6)
    layer = run.sp.layers[0]

    def is_fresh():
        return layer.parametrization.backward_bound.item() == layer.weight().abs().flatten().sort().values[180]

    fresh = []
    for _ in range(3):
        for _ in range(6):
            fresh.append((run.sp.step, is_fresh()))
            run.step()
        run.sp.end_epoch()
    assert [step for step, up_to_date in fresh if up_to_date] == [0, 3], "alpha is 0 from step 6 on"


def test_two_models_have_independent_alphas(loop):
    first, second = loop(nn.Linear(10, 3), AutoSparse(alpha=0.9)), loop(nn.Linear(10, 3), AutoSparse(alpha=0.2))
    assert (first.sp.alpha, second.sp.alpha) == (0.9, 0.2)
    first.epoch()
    assert second.sp.alpha == 0.2
    assert second.sp.layers[0].parametrization.gate.item() == pytest.approx(0.2)


def test_report_and_cost_agree_with_the_paper_s_formulas(loop):
    model = nn.Sequential(nn.Linear(10, 40, bias=False), nn.ReLU(), nn.Linear(40, 3, bias=False))
    run = loop(model, AutoSparse(alpha=0.5, zero_epoch=2, start_sparsity=0.5), epochs=4, exclude=("2",))
    spent = 0.0
    for _ in range(4):
        for _ in range(run.steps):
            density = run.sp.densities()[0]
            weight_gradient = 1.0 if run.sp.alpha > 0 else density
            spent += 400 * (2 * density + weight_gradient) + 120 * 3
            run.step()
        run.sp.end_epoch()
    assert run.sp.cost.train_fraction == pytest.approx(spent / (20 * 3 * 520), rel=1e-9)
    density = run.sp.densities()[0]
    assert run.sp.cost.test_fraction == pytest.approx((400 * density + 120) / 520)
    report = run.sp.report()
    assert (report.layers[0].macs, report.layers[0].weights) == (400, 400)
    assert report.to_dict()["sparsity"] == pytest.approx(1 - density)
    text = str(report)
    assert "Train F" in text
    assert "dense compute" in text


@pytest.mark.parametrize(
    ("fields", "alpha", "expected"),
    [
        ({"backward_sparsity": 0.6}, 0.5, lambda d: 2 * d + max(0.4, d)),
        ({"backward_sparsity": 0.6}, 0.0, lambda d: 3 * d),
        ({"dense_grad_every": 5}, 0.5, lambda d: 2 * d + (1 + 4 * d) / 5),
        ({}, 0.5, lambda d: 2 * d + 1),
        ({}, 0.0, lambda d: 3 * d),
    ],
)
def test_ledger_of_back_sparse_and_infrequent_gradients(loop, fields, alpha, expected):
    method = AutoSparse(alpha=alpha, schedule="constant", s_init=-2.0, **fields)
    run = loop(nn.Linear(10, 30, bias=False), method, epochs=1, steps=5, lr=0.0)
    density = run.sp.densities()[0]
    run.epoch()
    assert run.sp.cost.train_fraction == pytest.approx(expected(density) / 3)


def test_the_ledger_counts_whole_weights_of_the_backward_set(loop):
    # 21 weights, b = 0.6: floor(12.6) = 12 are outside, 9 receive a gradient; 4 are active
    method = AutoSparse(alpha=0.5, schedule="constant", backward_sparsity=0.6, start_sparsity=17 / 21)
    run = loop(nn.Linear(7, 3, bias=False), method, epochs=1, steps=5, lr=0.0, shape=(7,))
    assert run.sp.densities() == [4 / 21]
    run.epoch()
    assert run.sp.cost.train_fraction == pytest.approx((4 + 4 + 9) / 63)


def test_the_ledger_counts_the_weight_gradient_of_an_escaped_layer_as_sparse(loop):
    method = AutoSparse(alpha=0.5, schedule="constant", start_sparsity=0.5)
    run = loop(nn.Linear(10, 30, bias=False), method, epochs=1, steps=5, lr=0.0, guard_every=1)
    with torch.no_grad():
        run.sp.layers[0].stored[0, 0] = 100.0
    density = run.sp.densities()[0]
    for _ in range(5):
        run.step()
    # the guard looks after the first step, which still was dense
    assert run.sp.cost.train_fraction == pytest.approx((5 * 2 * density + 1 + 4 * density) / 15)


def test_baseline_epochs_and_the_exact_convention(loop):
    options = {"epochs": 4, "steps": 5, "lr": 0.0}
    plain = loop(nn.Linear(10, 30, bias=False), STR(), **options)
    longer = loop(nn.Linear(10, 30, bias=False), STR(), baseline_epochs=2, **options)
    exact = loop(nn.Linear(10, 30, bias=False), AutoSparse(alpha=1.0, schedule="constant"), convention="exact", **options)
    for run in (plain, longer, exact):
        run.run()
    assert plain.sp.cost.train_fraction == pytest.approx(plain.sp.densities()[0])
    assert longer.sp.cost.train_fraction == pytest.approx(2 * longer.sp.densities()[0])
    assert exact.sp.cost.train_fraction == pytest.approx((exact.sp.densities()[0] + 1) / 2)


def test_auto_tune_runs_algorithm_1_and_counts_the_reference_epochs(loop):
    reference = [1.0, 1.0, 1.0]
    method = AutoSparse(autotune=AutoTune(epochs=3, reference=reference), zero_epoch=5)
    run = loop(nn.Linear(10, 30, bias=False), method, epochs=6, lr=0.0, example_input=torch.randn(1, 10))
    alphas = []
    for loss in (2.0, 0.5, 1.01, 1.0, 1.0, 1.0):
        alphas.append(run.sp.alpha)
        for _ in range(run.steps):
            run.step()
        run.sp.end_epoch(loss=loss)
    tuned = 0.5 * 1.05 * 0.995 * 1.05
    expected = [0.5, 0.5 * 1.05, 0.5 * 1.05 * 0.995, tuned, tuned * autosparse.schedules.annealing("sigmoid-cosine", 1, 3), 0.0]
    assert alphas == pytest.approx(expected)
    density = run.sp.densities()[0]
    mean = (5 * (2 * density + 1) + 1 * 3 * density) / 6 / 3
    assert run.sp.cost.train_fraction == pytest.approx(mean + 3 / 6)


def test_auto_tune_needs_losses(net, loop):
    run = loop(net, AutoSparse(autotune=AutoTune(epochs=2, reference=[1.0, 1.0])), epochs=4)
    for _ in range(run.steps):
        run.step()
    with pytest.raises(ValueError, match="auto-tuning needs the mean training loss"):
        run.sp.end_epoch()
    assert run.sp.epoch == 0


def test_reference_made_with_other_settings_is_called_out(tmp_path, net):
    recorder = autosparse.ReferenceRecorder(tmp_path / "reference.json", settings={"batch_size": 256, "label_smoothing": 0.1})
    for loss in (1.0, 0.9):
        recorder.record(loss)
    tune = AutoTune(epochs=2, reference=tmp_path / "reference.json", settings={"batch_size": 128, "label_smoothing": 0.1})
    with pytest.warns(autosparse.SparsityWarning, match=r"other settings: .*batch_size = 256.*128"):
        autosparse.sparsify(net, AutoSparse(autotune=tune), epochs=4, steps_per_epoch=5)


def test_nothing_pruned_yet_is_said_after_two_epochs(net, loop):
    run = loop(net, AutoSparse(s_init=-30.0), epochs=4, weight_decay=1e-6)
    run.epoch()
    with pytest.warns(autosparse.SparsityWarning, match="nothing has been pruned yet"):
        run.epoch()


def test_thresholds_without_decay_are_called_out_at_the_first_step(net, loop):
    run = loop(net, AutoSparse(), weight_decay=0.0)
    with pytest.warns(autosparse.SparsityWarning, match="no weight decay"):
        run.step()


def test_a_wrong_number_of_steps_is_called_out(net, loop):
    run = loop(net, AutoSparse(), steps=5)
    run.step()
    with pytest.warns(autosparse.SparsityWarning, match="1 optimizer steps, steps_per_epoch is 5"):
        run.sp.end_epoch()


def test_a_loss_that_is_not_finite_changes_nothing(net, loop):
    run = loop(net, AutoSparse())
    run.step()
    for loss in (math.nan, math.inf, torch.tensor(float("nan"))):
        with pytest.raises(ValueError, match="nothing was changed"):
            run.sp.end_epoch(loss=loss)
    assert (run.sp.epoch, run.sp.history) == (0, [])


def test_end_epoch_without_bind_is_an_error(net):
    sp = autosparse.sparsify(net, AutoSparse(), epochs=1, steps_per_epoch=1)
    with pytest.raises(RuntimeError, match=r"sp\.bind"):
        sp.end_epoch()


def test_bind_refuses_an_optimizer_without_the_thresholds(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sp = autosparse.sparsify(net, AutoSparse(), epochs=1, steps_per_epoch=1)
    with pytest.raises(ValueError, match=r"lacks 3 of 3 learned thresholds.*make it after sparsify"):
        sp.bind(optimizer)
    with pytest.raises(TypeError, match=r"takes a torch\.optim\.Optimizer"):
        sp.bind("sgd")
    with pytest.raises(TypeError, match="needs the optimizer"):
        sp.bind()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": STR()}, "its method is autosparse, this one's str"),
        ({"method": AutoSparse(alpha=0.5)}, "alpha was 0.75, is 0.5"),
        ({"exclude": ("4",)}, "layers only in the state: 4"),
        ({"epochs": 9}, "epochs was 4, is 9"),
    ],
)
def test_a_state_of_another_run_is_refused_and_the_difference_named(net, loop, change, message):
    run = loop(net, AutoSparse())
    run.epoch()
    state = run.sp.state_dict()
    options = {"method": AutoSparse(), "epochs": 4, "steps_per_epoch": 5, **change}
    fresh = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    other = autosparse.sparsify(fresh, options.pop("method"), **options)
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(state)
    assert other.epoch == 0


def test_states_of_another_version_or_kind_are_refused(net, loop):
    sp = loop(net, AutoSparse()).sp
    with pytest.raises(ValueError, match="version 99, this release reads 1"):
        sp.load_state_dict({**sp.state_dict(), "version": 99})
    with pytest.raises(ValueError, match="not the state of a Sparsifier"):
        sp.load_state_dict({"weight": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs = 0"),
        ({"steps_per_epoch": 2.5}, "steps_per_epoch = 2.5"),
        ({"baseline_epochs": 0}, "baseline_epochs = 0"),
        ({"guard": "loud"}, "policy is 'loud'; allowed: hold, warn, stop"),
        ({"density_floor": 1.5}, "floor is 1.5"),
        ({"convention": "mine"}, "convention must be one of paper, exact"),
    ],
)
def test_bad_options_of_sparsify(net, options, message):
    with pytest.raises(ValueError, match=message):
        autosparse.sparsify(net, AutoSparse(), **{"epochs": 4, "steps_per_epoch": 5, **options})
    assert not any("parametrizations" in key for key in net.state_dict()), "the model is as it was"


def test_a_class_instead_of_a_method_is_refused(net):
    with pytest.raises(TypeError, match="sparsify takes a method such as"):
        autosparse.sparsify(net, AutoSparse, epochs=1, steps_per_epoch=1)


def test_an_example_input_that_the_model_rejects_is_refused_before_anything_is_attached(net):
    with pytest.raises(ValueError, match=r"\(1, 7\)"):
        autosparse.sparsify(net, AutoSparse(), epochs=1, steps_per_epoch=1, example_input=torch.randn(1, 7))
    assert not any("parametrizations" in key for key in net.state_dict())


def test_methods_without_scores_or_rounds_say_so(net, loop):
    run = loop(net, AutoSparse())
    with pytest.raises(TypeError, match="nothing to score"):
        run.sp.score([], lambda model, batch: model(batch))
    with pytest.raises(TypeError, match="one round"):
        run.sp.next_round(run.opt)


def test_thresholds_cast_after_sparsify_are_an_error_at_the_next_step(net, loop):
    run = loop(net, AutoSparse())
    run.model.bfloat16()
    run.x = run.x.bfloat16()
    with pytest.raises(RuntimeError, match="cast the model before sparsify"):
        run.step()


def test_a_step_takes_the_count_of_its_forward_pass() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    sp = autosparse.sparsify(model, AutoSparse(start_sparsity=0.5), epochs=1, steps_per_epoch=2, guard=None)
    optimizer = torch.optim.SGD(sp.param_groups(weight_decay=0.1), lr=0.5)
    sp.bind(optimizer)

    def counted() -> list[int | None]:
        return [layer.parametrization.cached_count(layer.stored) for layer in sp.layers]

    for _ in range(2):
        model(torch.randn(5, 6)).square().sum().backward()
        assert not kernels.available() or counted() == sp.counts().tolist()
        assert torch.as_tensor(passes_of_step(sp)[0], dtype=torch.float64).tolist() == sp.densities()
        optimizer.step()
        assert counted() == [None, None], "weights and thresholds have changed"
    with torch.no_grad():
        model(torch.randn(5, 6))
        sp.layers[0].parametrization.threshold.add_(3.0)
    assert counted()[0] is None


def test_gates_are_written_when_they_change_and_renewed_at_the_first_step_and_at_load(net, loop):
    run = loop(net, AutoSparse(alpha=0.5, schedule="constant"), steps=5)
    gate = run.sp.layers[0].parametrization.gate
    gate.fill_(7.0)  # as to_empty leaves it
    run.step()
    assert gate.item() == 0.5
    version = gate._version
    run.step()
    assert gate._version == version
    gate.fill_(7.0)
    run.sp.load_state_dict(run.sp.state_dict())
    assert gate.item() == 0.5


def test_layer_plans_name_every_layer_and_its_density(net, loop):
    run = loop(net, AutoSparse(start_sparsity=0.5))
    plans = run.sp.layer_plans()
    assert [plan.name for plan in plans] == ["0", "2", "4"]
    assert [plan.density for plan in plans] == run.sp.densities()
    assert all(plan.passes == () for plan in plans)


@pytest.mark.parametrize("norm_type", [2.0, math.inf])
@pytest.mark.parametrize("thresholds", [False, True])
def test_clipping_leaves_the_thresholds_alone_unless_asked(net, loop, thresholds, norm_type):
    run = loop(net, AutoSparse())
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    learned = {id(threshold) for threshold in run.sp.thresholds()}
    twins = {id(each): nn.Parameter(each.detach().clone()) for each in net.parameters()}
    for parameter in net.parameters():
        twins[id(parameter)].grad = parameter.grad.clone()
    clipped = [twin for key, twin in twins.items() if thresholds or key not in learned]
    expected = nn.utils.clip_grad_norm_(clipped, 0.5, norm_type)
    norm = run.sp.clip_grad_norm_(0.5, norm_type, thresholds=thresholds)
    assert torch.equal(norm, expected)
    assert norm > 0.5
    assert all(torch.equal(parameter.grad, twins[id(parameter)].grad) for parameter in net.parameters())


def test_clipping_can_refuse_gradients_that_are_not_finite(net, loop):
    sp = loop(net, AutoSparse()).sp
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, math.nan)
    with pytest.raises(RuntimeError, match="non-finite"):
        sp.clip_grad_norm_(1.0, error_if_nonfinite=True)
