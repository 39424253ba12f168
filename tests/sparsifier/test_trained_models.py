"""What happens to a trained model the moment it is sparsified, and how the user learns of it."""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import autosparse
from autosparse import STR, AutoSparse, RigL
from autosparse.methods.families.base import LooksAtData
from autosparse.sparsifier.first_step import cross_entropies
from autosparse.sparsifier.trained import is_trained

from ..sparse_nets import example_for
from ..states import differences

GENTLE = "To keep what it has learned, start with start_sparsity=0."
KEEPS = {  # methods whose defaults leave a trained model as it is; those that look at data change it when they are scored
    "3sp", "acdc", "cs", "dpf", "dst", "feather", "feather+ga", "gdp", "gmp", "grasp", "lottery", "ltp", "optg",
    "prune_retrain", "scl", "snip", "st3", "st3+ga", "synflow", "wanda",
}  # fmt: skip
METHODS = [name for name in autosparse.list_methods() if not autosparse.method(name).traits.needs_zeros]


def batch(size: int = 64) -> tuple[Tensor, Tensor]:
    """Four kinds of noisy pictures."""
    generator = torch.Generator().manual_seed(size)
    kinds = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(7))
    labels = torch.randint(4, (size,), generator=generator)
    return kinds[labels] + 1.5 * torch.randn(size, 1, 8, 8, generator=generator), labels


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(1024, 16), nn.ReLU(),
        nn.Linear(16, 4),
    )  # fmt: skip


def loss_of(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(inputs), labels)


@pytest.fixture(scope="module")
def trained() -> dict[str, Tensor]:
    torch.manual_seed(0)
    model, (inputs, labels) = net(), batch(256)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(60):
        opt.zero_grad()
        loss = loss_of(model, inputs, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        opt.step()
    assert loss < 0.1
    return {name: value.clone() for name, value in model.state_dict().items()}


def sparsified(state: dict[str, Tensor] | None, method: Any, **options: Any) -> tuple[nn.Module, Any, Any]:
    model = net()
    if state:
        model.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", autosparse.SparsityWarning)  # short runs
        sp = autosparse.sparsify(model, method, epochs=5, steps_per_epoch=8, **options)
    opt = torch.optim.SGD(sp.param_groups(weight_decay=1e-3), lr=0.01, momentum=0.9)
    sp.bind(opt)
    return model, sp, opt


def step(model: nn.Module, opt: Any, make_loss: Any = loss_of) -> list[str]:
    """One step; what was said about the start."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        opt.zero_grad()
        make_loss(model, *batch()).backward()
        opt.step()
    return [str(warning.message) for warning in said if "in a trained model" in str(warning.message)]


# ------------------------------------------------------------------------------------------------------- the start itself


@pytest.mark.parametrize("kind", [AutoSparse, STR])
@pytest.mark.parametrize("threshold", ["layer", "channel", "shared"])
def test_a_start_sparsity_of_0_changes_nothing_that_can_be_seen(kind: Any, threshold: str, trained: dict[str, Tensor]) -> None:
    plain = net()
    plain.load_state_dict(trained)
    model, sp, opt = sparsified(trained, kind(start_sparsity=0, threshold=threshold))
    inputs, _ = batch()
    expected = plain.eval()(inputs)
    assert sp.sparsity() == 0
    torch.testing.assert_close(model.eval()(inputs), expected, rtol=0, atol=5e-3 * float(expected.abs().max()))
    assert step(model.train(), opt) == []


@pytest.mark.parametrize("value", [0.1, 0.5])
def test_a_start_sparsity_of_0_keeps_weights_of_one_size(value: float) -> None:
    """Half of the smallest weight would be half of every weight here."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(value)
    autosparse.sparsify(model, AutoSparse(start_sparsity=0), epochs=1, steps_per_epoch=1)
    torch.testing.assert_close(model[0].weight, torch.full((4, 4), value), rtol=0.002, atol=0)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_so_if_it_changes_a_trained_model(name: str, trained: dict[str, Tensor]) -> None:
    plain = net()
    plain.load_state_dict(trained)
    high = {"sparsity": 0.98} if name.startswith("topkast") else {}  # at 80 % their ends, which stay dense, save this net
    model, sp, opt = sparsified(trained, autosparse.method(name, **high), **example_for(name, batch(4)[0]))
    inputs, labels = batch()
    with torch.no_grad():
        losses = [float(loss_of(each.eval(), inputs, labels)) for each in (plain, model)]
    looks_at_data = isinstance(sp.method, LooksAtData)
    assert (abs(losses[1] - losses[0]) <= 3e-2 * losses[0]) == (name in KEEPS)
    assert sp.first_step.waits == (name not in KEEPS)
    if looks_at_data:
        sp.score([(inputs, labels)], lambda model, data: loss_of(model, *data))
        assert sp.first_step.waits
    said = step(model.train(), opt)
    assert len(said) == 1 if name not in KEEPS else looks_at_data or not said
    for message in said:
        gentle = (
            GENTLE if name in ("autosparse", "str") else "use a method that starts dense, such as AutoSparse(start_sparsity"
        )
        assert gentle in message
        assert f"{name} starts with {sp.sparsity():.0%} zeros" in message


# ------------------------------------------------------------------------------------------------- trained, or fresh


def test_fresh_models_are_told_from_trained_ones(trained: dict[str, Tensor]) -> None:
    fresh = [net(), *(nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 32)) for _ in range(20))]
    fresh += [nn.LSTM(16, 32), nn.MultiheadAttention(32, 2), nn.TransformerEncoderLayer(32, 2, 64)]
    fresh += (
        [autosparse.models.mobilenet_v1(width=0.25)] if "width" in autosparse.models.mobilenet_v1.__code__.co_varnames else []
    )
    inits = (nn.init.orthogonal_, nn.init.kaiming_normal_, nn.init.xavier_uniform_, nn.init.trunc_normal_, nn.init.zeros_)
    for init in inits:
        model = nn.Linear(64, 256)
        init(model.weight)
        fresh.append(model)
    assert not any(is_trained(model, [each for each in model.parameters() if each.dim() > 1]) for model in fresh)
    model = net()
    model.load_state_dict(trained)
    weights = [each for each in model.parameters() if each.dim() > 1]
    assert is_trained(model, weights)
    assert is_trained(nn.ReLU(), weights)  # without looking at the batch norm


@pytest.mark.parametrize("name", METHODS)
def test_no_alarm_for_a_fresh_model(name: str) -> None:
    model, sp, opt = sparsified(None, autosparse.method(name), **example_for(name, batch(4)[0]))
    if isinstance(sp.method, LooksAtData):
        sp.score([batch()], lambda model, data: loss_of(model, *data))
    assert not sp.first_step.waits
    assert step(model, opt) == []


# ------------------------------------------------------------------------------------------------------- what is said


def test_the_losses_are_those_of_both_models(trained: dict[str, Tensor]) -> None:
    plain = net()
    plain.load_state_dict(trained)
    model, _, opt = sparsified(trained, AutoSparse(start_sparsity=0.9))
    torch.manual_seed(3)
    with torch.no_grad():
        expected = float(loss_of(plain, *batch()))
    losses: list[float] = []

    def recorded(*args: Any) -> Tensor:
        torch.manual_seed(3)
        loss = loss_of(*args)
        losses.append(float(loss.detach()))
        return loss

    (message,) = step(model, opt, recorded)
    assert f"the loss of the first batch is {losses[0]:.4g}, that of the plain model {expected:.4g}" in message
    assert step(model, opt) == []  # once


LOSSES: dict[str, Any] = {
    "smoothed labels": lambda model, x, y: nn.functional.cross_entropy(model(x), y, label_smoothing=0.1),
    "weighted classes": lambda model, x, y: nn.functional.cross_entropy(model(x), y, torch.tensor([1.0, 2.0, 3.0, 4.0])),
    "part of a step": lambda model, x, y: loss_of(model, x, y) / 8,
    "scaled": lambda model, x, y: loss_of(model, x, y) * 2**16,
    "negative log likelihood": lambda model, x, y: nn.functional.nll_loss(model(x).log_softmax(1), y),
    "padding": lambda model, x, y: nn.functional.cross_entropy(model(x), torch.where(y == 0, -100, y)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_cross_entropies_are_known_by_their_gradient(name: str, trained: dict[str, Tensor]) -> None:
    model, _, opt = sparsified(trained, AutoSparse(start_sparsity=0.9))
    (message,) = step(model, opt, LOSSES[name])
    assert "the loss of the first batch is" in message


@pytest.mark.parametrize("classes_last", [True, False])
def test_cross_entropies_of_sequences(classes_last: bool) -> None:
    scores = torch.randn(2, 6, 5, requires_grad=True)
    labels = torch.randint(5, (2, 6)) if classes_last else torch.randint(6, (2, 5))
    loss = nn.functional.cross_entropy(scores.transpose(1, 2) if classes_last else scores, labels)
    loss.backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    found = cross_entropies(2 * scores.detach(), scores.detach(), scores.grad)
    assert found is not None
    assert found[1] == pytest.approx(float(loss))
    assert found[0] > found[1]


def test_other_losses_go_by_the_outputs(trained: dict[str, Tensor]) -> None:
    def squares(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        return (model(inputs) - nn.functional.one_hot(labels, 4)).square().mean()

    model, _, opt = sparsified(trained, AutoSparse(start_sparsity=0.9))
    (message,) = step(model, opt, squares)
    assert "the outputs for the first batch differ from the plain model's by" in message
    assert GENTLE in message


class WithLoss(nn.Module):
    """A model that computes its loss itself, as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(inputs)
        return {"logits": logits, "loss": nn.functional.multi_margin_loss(logits, labels)}


def test_a_loss_in_the_outputs_is_taken_as_it_is(trained: dict[str, Tensor]) -> None:
    model = WithLoss()
    model.net.load_state_dict(trained)
    sp = autosparse.sparsify(model, RigL(sparsity=0.95), epochs=8, steps_per_epoch=1)
    opt = torch.optim.SGD(sp.param_groups(), lr=0.01)
    sp.bind(opt)
    losses = []

    def own(model: nn.Module, *inputs: Tensor) -> Tensor:
        loss: Tensor = model(*inputs)["loss"]
        losses.append(float(loss.detach()))
        return loss

    (message,) = step(model, opt, own)
    assert f"the loss of the first batch is {losses[0]:.4g}" in message


# ------------------------------------------------------------------------------------------------- nothing else changes


class Moody(nn.Module):
    """Draws from every source of random numbers, counts in a buffer, replaces another and writes into its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.generator = net(), torch.Generator().manual_seed(3)
        self.calls: Tensor
        self.last: Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        self.last = inputs.mean()
        noise = random.random() + float(numpy.random.rand()) + torch.rand((), generator=self.generator)
        return self.net(inputs.mul_(1 + 0.01 * (torch.rand(()) + noise)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    "method",
    [AutoSparse(start_sparsity=0.6), autosparse.SWAT(sparsity=0.6), RigL(sparsity=0.6)],
    ids=lambda method: method.about.name,
)
def test_a_compared_step_is_the_step_that_would_have_been(method: Any, autocast: bool, trained: dict[str, Tensor]) -> None:
    states = []
    for compares in (True, False):
        model = Moody()
        model.net.load_state_dict(trained)
        random.seed(5), numpy.random.seed(5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sp = autosparse.sparsify(model, method, epochs=9, steps_per_epoch=1)
            opt = torch.optim.SGD(sp.param_groups(weight_decay=1e-3), lr=0.01, momentum=0.9)
            sp.bind(opt)
            if not compares:
                sp.first_step.close()
            torch.manual_seed(11)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = loss_of(model, *batch())
            loss.backward()  # type: ignore[no-untyped-call]
            assert not sp.first_step.waits
            gradients = {name: weight.grad for name, weight in model.named_parameters()}
            opt.step()
        randomness = [torch.get_rng_state(), model.generator.get_state(), random.random(), float(numpy.random.rand())]
        states.append(copy.deepcopy([gradients, dict(model.state_dict()), sp.state_dict(), randomness, float(loss)]))
    assert differences(states[0], states[1]) == []


def test_a_copy_of_the_model_compares_nothing(trained: dict[str, Tensor]) -> None:
    model, sp, _ = sparsified(trained, RigL(sparsity=0.9))
    assert sp.first_step.waits
    twin = copy.deepcopy(model)
    inputs, labels = batch()
    loss_of(twin, inputs, labels).backward()  # type: ignore[no-untyped-call]
    assert sp.first_step.waits
    loss_of(model, inputs, labels)
    assert not sp.first_step.waits


def test_what_the_plain_pass_cannot_do_does_not_stop_training(trained: dict[str, Tensor]) -> None:
    class Fussy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, inputs: Tensor) -> Tensor:
            if not torch.is_grad_enabled():
                raise RuntimeError("only for training")
            return self.net(inputs)  # type: ignore[no-any-return]

    model = Fussy()
    model.net.load_state_dict(trained)
    sp = autosparse.sparsify(model, AutoSparse(start_sparsity=0.9), epochs=1, steps_per_epoch=1)
    opt = torch.optim.SGD(sp.param_groups(weight_decay=1e-3), lr=0.01)
    sp.bind(opt)
    assert step(model, opt) == []
    assert sp.step == 1


# ------------------------------------------------------------------------------------------------------- plain states


@pytest.mark.parametrize(
    "method", [AutoSparse(start_sparsity=0.5), RigL(sparsity=0.5), autosparse.TopKASTPP(sparsity=0.5)], ids=str
)
@pytest.mark.parametrize("part", ["model", "a part of it"])
def test_a_plain_state_can_be_loaded_into_a_sparsified_model(method: Any, part: str, trained: dict[str, Tensor]) -> None:
    expected, sp_expected, _ = sparsified(trained, method)
    model = WithLoss()
    sp = autosparse.sparsify(model, method, epochs=9, steps_per_epoch=1) if part != "model" else None
    if sp is None:
        inner, sp, opt = sparsified(None, method)
        inner.load_state_dict(trained)
    else:
        model.net.load_state_dict(trained)
        opt = torch.optim.SGD(sp.param_groups(), lr=0.01)
        sp.bind(opt)  # the model's own load_state_dict was not called: now at the latest
        inner = model.net
    assert differences(inner.state_dict(), expected.state_dict()) == []
    assert sp.sparsity() == sp_expected.sparsity()


def test_a_plain_state_after_the_first_step_leaves_the_masks_alone(trained: dict[str, Tensor]) -> None:
    model, sp, opt = sparsified(None, RigL(sparsity=0.5))
    step(model, opt)
    zeros = [~layer.active() for layer in sp.layers]
    model.load_state_dict(trained)
    assert all(torch.equal(layer.effective() == 0, mask) for layer, mask in zip(sp.layers, zeros, strict=True))


def test_a_sparsified_state_becomes_plain_by_the_way_that_the_docs_name(trained: dict[str, Tensor]) -> None:
    model, sp, opt = sparsified(trained, AutoSparse(start_sparsity=0.5))
    step(model, opt)
    saved = copy.deepcopy(model.state_dict())
    plain = net()
    keeper = autosparse.sparsify(plain, AutoSparse(start_sparsity=0.5), epochs=1, steps_per_epoch=1)
    plain.load_state_dict(saved)
    assert differences(keeper.finalize().state_dict(), sp.finalize().state_dict()) == []
    assert not plain[3]._load_state_dict_pre_hooks
    assert not plain._load_state_dict_post_hooks


def test_a_compiled_model_is_not_compared_and_compiled_once(trained: dict[str, Tensor]) -> None:
    model, sp, opt = sparsified(trained, AutoSparse(start_sparsity=0.9))
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    assert sp.first_step.waits
    assert [step(compiled, opt) for _ in range(3)] == [[], [], []]  # type: ignore[arg-type]
    assert not sp.first_step.waits
    assert len(graphs) == 1
    sp.finalize()
    assert not model._forward_hooks
