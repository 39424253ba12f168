"""SNIP, GraSP and SynFlow: scores, exact selection, and 20 steps against a NumPy transcription."""

import io
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from autosparse import sparsify
from autosparse.common.warnings import SparsityWarning
from autosparse.methods.families.base import Method
from autosparse.methods.families.scored import ScoredMask, progress, select, summed_gradients
from autosparse.methods.grasp import GraSP
from autosparse.methods.snip import SNIP
from autosparse.methods.synflow import SynFlow
from autosparse.sparsifier import Sparsifier

from .numpy_net import LAYERS, Array, MomentumSGD, NumpyNet, batches, loss_of, torch_net

Batch = tuple[Tensor, Tensor]
Masks = dict[str, Any]


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return loss_of(model(batch[0]), batch[1])


def start(method: Method, model: nn.Module | None = None, **options: Any) -> tuple[nn.Module, Sparsifier]:
    model = torch_net() if model is None else model
    return model, sparsify(model, method, epochs=1, steps_per_epoch=20, **options)


def masks_of(run: Sparsifier) -> dict[str, Array]:
    return {layer.name: layer.active().numpy().copy() for layer in run.layers}


def train(run: Sparsifier, model: nn.Module, optimizer: torch.optim.Optimizer, data: Iterable[Batch]) -> None:
    run.bind(optimizer)
    for batch in data:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()


def keep_largest(scores: dict[str, Array], count: int) -> dict[str, Array]:
    """The `count` highest scores of both layers together; a stable sort gives ties to the lower index."""
    flat = np.concatenate([scores[name].reshape(-1) for name in LAYERS])
    mask = np.zeros(flat.size, dtype=bool)
    mask[np.argsort(-flat, kind="stable")[:count]] = True
    cut = scores["0"].size
    return {"0": mask[:cut].reshape(scores["0"].shape), "2": mask[cut:].reshape(scores["2"].shape)}


# ---------------------------------------------------------------------------------------------------- selection


def test_global_ties_go_to_the_first_layer_and_the_lower_index() -> None:
    scores = {"a": torch.tensor([[1.0, 2.0], [1.0, 1.0]]), "b": torch.tensor([1.0, 3.0])}
    masks = select(scores, 1 / 3, "global")  # 4 of 6 stay: 3, 2 and two of the four ones
    assert masks["a"].tolist() == [[True, True], [True, False]]
    assert masks["b"].tolist() == [False, True]


def test_layer_scope_counts_every_layer_by_itself() -> None:
    scores = {"a": torch.tensor([5.0, 6.0, 7.0, 8.0]), "b": torch.tensor([1.0, 1.0])}
    assert {name: mask.tolist() for name, mask in select(scores, 0.5, "layer").items()} == {
        "a": [False, False, True, True],
        "b": [True, False],
    }
    assert select(scores, 0.5, "global")["b"].tolist() == [False, False]


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=40), st.integers(1, 39), st.floats(0, 0.99))
@settings(max_examples=60, deadline=None)
def test_selection_is_exact_and_keeps_the_best(values: list[int], cut: int, sparsity: float) -> None:
    cut = min(cut, len(values) - 1)
    scores = {"a": torch.tensor(values[:cut]).double(), "b": torch.tensor(values[cut:]).double()}
    masks = select(scores, sparsity, "global")
    kept = [v for name in scores for v in scores[name][masks[name]].tolist()]
    dropped = [v for name in scores for v in scores[name][~masks[name]].tolist()]
    assert len(kept) == max(1, int(np.floor(round(len(values) * (1 - sparsity), 6) + 0.5)))
    assert not dropped or min(kept) >= max(dropped)


# ---------------------------------------------------------------------------------------------------- NumPy transcriptions


def snip_masks(net: NumpyNet, data: list[Batch], count: int) -> dict[str, Array]:
    sums = {name: np.zeros_like(net.weights[name]) for name in LAYERS}
    for x, y in data:
        gradients, _ = net.gradients(x.numpy(), y.numpy())
        for name in LAYERS:
            sums[name] += gradients[name]
    return keep_largest({name: np.abs(net.weights[name] * sums[name]) for name in LAYERS}, count)


def cooled_gradients(net: NumpyNet, weights: dict[str, Array], data: list[Batch], temperature: float) -> dict[str, Array]:
    """Gradients of the loss of output / temperature: those of a net whose second layer is divided by it."""
    scaled = NumpyNet(
        {"0": weights["0"], "2": weights["2"] / temperature}, {"0": net.biases["0"], "2": net.biases["2"] / temperature}
    )
    sums = {name: np.zeros_like(weights[name]) for name in LAYERS}
    for x, y in data:
        gradients, _ = scaled.gradients(x.numpy(), y.numpy())
        sums["0"] += gradients["0"]
        sums["2"] += gradients["2"] / temperature
    return sums


def grasp_scores(net: NumpyNet, data: list[Batch], temperature: float) -> dict[str, Array]:
    """w * (H g) with the product by central differences of the gradient along g."""
    direction = cooled_gradients(net, net.weights, data, temperature)
    length = np.sqrt(sum((value**2).sum() for value in direction.values()))
    step = 1e-5 / length
    ahead, behind = (
        cooled_gradients(net, {n: net.weights[n] + sign * step * direction[n] for n in LAYERS}, data, temperature)
        for sign in (1, -1)
    )
    return {name: net.weights[name] * (ahead[name] - behind[name]) / (2 * step) for name in LAYERS}


def synflow_masks(net: NumpyNet, sparsity: float, rounds: int) -> dict[str, Array]:
    masks = {name: np.ones_like(net.weights[name], dtype=bool) for name in LAYERS}
    total = sum(mask.size for mask in masks.values())
    for k in range(1, rounds + 1):
        first, second = (np.abs(net.weights[name]) * masks[name] for name in LAYERS)
        hidden = first @ np.ones(12) + np.abs(net.biases["0"])
        flow = {"0": first * second.sum(0)[:, None], "2": second * hidden[None, :]}
        # a pruned weight has no flow; below every active one it cannot come back through a tie at 0
        ranked = {name: np.where(masks[name], flow[name], -1.0) for name in LAYERS}
        masks = keep_largest(ranked, int(np.floor((1 - sparsity) ** (k / rounds) * total + 0.5)))
    return masks


def numpy_steps(net: NumpyNet, masks: dict[str, Array], data: list[Batch], lr: float) -> None:
    optimizer = MomentumSGD(lr)
    for name in LAYERS:
        net.weights[name] *= masks[name]
    for x, y in data:
        gradients, bias_gradients = net.gradients(x.numpy(), y.numpy())
        optimizer.step(net, {name: gradients[name] * masks[name] for name in LAYERS}, bias_gradients)


TRANSCRIPTIONS: list[tuple[ScoredMask, Callable[[NumpyNet, list[Batch]], dict[str, Array]]]] = [
    (SNIP(sparsity=0.8), lambda net, data: snip_masks(net, data, 51)),  # 51.2 of 256 weights
    (GraSP(sparsity=0.8), lambda net, data: keep_largest(grasp_scores(net, data, 200.0), 51)),
    (GraSP(sparsity=0.5, temperature=1.0), lambda net, data: keep_largest(grasp_scores(net, data, 1.0), 128)),
    (SynFlow(sparsity=0.8), lambda net, data: synflow_masks(net, 0.8, 100)),
]


@pytest.mark.parametrize(("method", "transcription"), TRANSCRIPTIONS, ids=["snip", "grasp", "grasp-1", "synflow"])
def test_twenty_steps_match_numpy(
    method: ScoredMask, transcription: Callable[[NumpyNet, list[Batch]], dict[str, Array]]
) -> None:
    scoring, training = batches(3, seed=5), batches(20)
    model = torch_net()
    net = NumpyNet.like(model)
    masks = transcription(net, scoring)
    numpy_steps(net, masks, training, lr=0.05)
    model, run = start(method, model)
    run.score(scoring, loss_fn)
    train(run, model, torch.optim.SGD(run.param_groups(), lr=0.05, momentum=0.9), training)
    for layer in run.layers:
        np.testing.assert_array_equal(layer.active().numpy(), masks[layer.name])
        np.testing.assert_allclose(layer.weight().numpy(), net.weights[layer.name], atol=1e-6, rtol=0)


# ---------------------------------------------------------------------------------------------------- SNIP


def test_snip_scores_by_hand() -> None:
    model = nn.Sequential(nn.Linear(2, 1, bias=False)).double()
    model[0].weight.data = torch.tensor([[3.0, -1.0]]).double()
    _, run = start(SNIP(sparsity=0.5), model)
    # the output is 3 - 2 = 1, dL/dw = x = (1, 2) twice and (0, 4) once: G = (2, 8), |w G| = (6, 8)
    data = [torch.tensor([[1.0, 2.0]]).double()] * 2 + [torch.tensor([[0.0, 4.0]]).double()]
    scores = run.method.saliency(run, data, lambda m, x: m(x).sum())  # type: ignore[attr-defined]
    torch.testing.assert_close(scores["0"], torch.tensor([[6 / 14, 8 / 14]]).double())
    run.score(data, lambda m, x: m(x).sum())
    assert run.layers[0].weight().tolist() == [[0.0, -1.0]]


def test_snip_refuses_a_loss_without_gradient() -> None:
    _, run = start(SNIP())
    with pytest.raises(RuntimeError, match="every gradient is 0"):
        run.score(batches(1), lambda m, b: 0 * m(b[0]).sum())


# ---------------------------------------------------------------------------------------------------- GraSP


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU()], ids=["tanh", "relu"])
def test_grasp_product_equals_the_full_hessian(activation: nn.Module) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 3)).double()
    first, second = model[0].weight.detach().clone(), model[2].weight.detach().clone()
    biases = model[0].bias.detach().clone(), model[2].bias.detach().clone()
    data = [(torch.randn(6, 4).double(), torch.randn(6, 3).double()) for _ in range(2)]

    def total(flat: Tensor) -> Tensor:
        w0, w2 = flat[:20].reshape(5, 4), flat[20:].reshape(3, 5)
        outputs = [activation(x @ w0.T + biases[0]) @ w2.T + biases[1] for x, _ in data]
        return torch.stack([loss_of(output / 7.0, y) for output, (_, y) in zip(outputs, data, strict=True)]).sum()

    flat = torch.cat([first.reshape(-1), second.reshape(-1)]).requires_grad_()
    gradient = torch.autograd.grad(total(flat), flat)[0]
    expected = flat.detach() * (torch.autograd.functional.hessian(total, flat.detach()) @ gradient)
    _, run = start(GraSP(temperature=7.0), model)
    scores = run.method.saliency(run, data, loss_fn)  # type: ignore[attr-defined]
    found = torch.cat([scores["0"].reshape(-1), scores["2"].reshape(-1)])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)
    assert float(expected.abs().max()) > 1e-6


def test_grasp_differentiates_attention_twice() -> None:
    torch.manual_seed(0)
    attention = nn.TransformerEncoderLayer(12, 2, 8, dropout=0.0, batch_first=True).double()
    _, run = start(GraSP(sparsity=0.5), attention)
    run.score([torch.randn(2, 3, 12).double()], lambda m, x: (m(x) ** 2).sum())
    assert run.sparsity() == 0.5


def test_grasp_takes_an_iterator_and_sees_the_same_batches_twice() -> None:
    data = batches(3)
    _, listed = start(GraSP())
    listed.score(data, loss_fn)
    _, streamed = start(GraSP())
    streamed.score(iter(data), loss_fn)
    for name, mask in masks_of(listed).items():
        np.testing.assert_array_equal(mask, masks_of(streamed)[name])


def test_grasp_says_what_to_do_when_there_are_no_logits_to_divide() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch_net()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.net(x)}

    _, run = start(GraSP(), Named())
    with pytest.raises(TypeError, match="temperature=1"):
        run.score(batches(1), lambda m, b: loss_of(m(b[0])["logits"], b[1]))
    run.method = GraSP(temperature=1.0)
    run.score(batches(1), lambda m, b: loss_of(m(b[0])["logits"], b[1]))
    assert run.sparsity() == 1 - 26 / 256


# ---------------------------------------------------------------------------------------------------- SynFlow


def test_synflow_by_hand() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    model[0].weight.data = torch.tensor([[1.0, -2.0], [3.0, 0.5]])
    model[1].weight.data = torch.tensor([[-4.0, 1.0]])
    _, run = start(SynFlow(sparsity=0.5, rounds=1), model)
    # |w dR/dw|: first layer |w0| times |w1| of its unit, second layer |w1| times the unit's input sum (3 and 3.5)
    scores = run.method.saliency(run, [torch.zeros(5, 2)], None)  # type: ignore[attr-defined]
    assert scores["0"].tolist() == [[4.0, 8.0], [3.0, 0.5]]
    assert scores["1"].tolist() == [[12.0, 3.5]]
    run.score([torch.zeros(5, 2)], None)  # type: ignore[arg-type]
    assert masks_of(run)["0"].tolist() == [[True, True], [False, False]]
    assert masks_of(run)["1"].tolist() == [[True, False]]


def test_synflow_uses_no_data_and_no_signs() -> None:
    kept = []
    for value, sign in ((0.0, 1.0), (float("nan"), 1.0), (7.0, -1.0)):
        model = torch_net()
        for parameter in model.parameters():
            parameter.data *= sign
        _, run = start(SynFlow(), model)
        run.score([(torch.full((8, 12), value), None)], None)  # type: ignore[arg-type]
        kept.append(masks_of(run))
    for other in kept[1:]:
        for name in LAYERS:
            np.testing.assert_array_equal(kept[0][name], other[name])


def test_synflow_rounds_save_a_layer_that_one_round_would_empty() -> None:
    def thin() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*[nn.Linear(*size, bias=False) for size in ((40, 40), (40, 40), (40, 1), (1, 40), (40, 40))])

    _, many = start(SynFlow(sparsity=0.98), thin())
    many.score([torch.ones(2, 40)], None)  # type: ignore[arg-type]
    assert min(many.densities()) > 0
    _, single = start(SynFlow(sparsity=0.98, rounds=1), thin())
    with pytest.warns(SparsityWarning, match="no weight in 0"):
        single.score([torch.ones(2, 40)], None)  # type: ignore[arg-type]
    assert min(single.densities()) == 0
    assert single.sparsity() == many.sparsity()


def test_synflow_reads_other_forms_of_batches() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.linear = nn.Embedding(5, 4), nn.Linear(4, 3)

        def forward(self, ids: Tensor, scale: Tensor) -> tuple[Tensor, dict[str, Tensor | None]]:
            hidden = self.linear(self.embedding(ids)) * scale
            return hidden, {"twice": 2 * hidden, "nothing": None}

    kept = []
    ids, scale = torch.zeros(3, 2, dtype=torch.long), torch.zeros(3, 1, 1)
    for batch in (((ids, scale), None), {"ids": ids, "scale": scale}):
        torch.manual_seed(0)
        _, run = start(SynFlow(sparsity=0.5), Two(), include="linear")
        run.score([batch], None)  # type: ignore[arg-type]
        kept.append(masks_of(run)["linear"])
    np.testing.assert_array_equal(kept[0], kept[1])
    assert kept[0].sum() == 6
    _, run = start(SynFlow(), Two(), include="linear")
    with pytest.raises(TypeError, match="input shape"):
        run.score(["text"], None)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- all three


def conv_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Flatten(), nn.Linear(96, 3)
    )


IMAGES = [(torch.randn(8, 2, 6, 6), torch.randn(8, 3))]
EVERY = [SNIP, GraSP, SynFlow]


@pytest.mark.parametrize("cls", EVERY)
def test_scoring_leaves_everything_but_pruned_weights_as_it_was(cls: type[ScoredMask]) -> None:
    model, run = start(cls(sparsity=0.5), conv_net())
    model[1].eval()  # type: ignore[index]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    run.score(IMAGES, loss_fn)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, value in model.state_dict().items():
        if name.endswith("original"):
            mask = model.state_dict()[name.replace("original", "0.mask")]
            assert torch.equal(value, before[name] * mask)
            assert 0 < int(mask.sum()) < mask.numel()
        elif not name.endswith("mask"):
            assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("cls", EVERY)
@pytest.mark.parametrize("sparsity", [0.0, 0.37, 0.9])
def test_counts_are_exact(cls: type[ScoredMask], sparsity: float) -> None:
    _, run = start(cls(sparsity=sparsity, scope="layer"), conv_net())
    run.score(IMAGES, loss_fn)
    sizes = {"0": 108, "5": 288}
    assert {name: int(mask.sum()) for name, mask in masks_of(run).items()} == {
        name: int(np.floor(round(size * (1 - sparsity), 6) + 0.5)) for name, size in sizes.items()
    }
    _, run = start(cls(sparsity=sparsity), conv_net())
    run.score(IMAGES, loss_fn)
    assert sum(int(mask.sum()) for mask in masks_of(run).values()) == int(np.floor(396 * (1 - sparsity) + 0.5))


@pytest.mark.parametrize("cls", EVERY)
def test_training_without_scores_is_refused(cls: type[ScoredMask]) -> None:
    model, run = start(cls())
    optimizer = torch.optim.SGD(run.param_groups(), lr=0.1)
    with pytest.raises(RuntimeError, match=r"sp\.score"):
        train(run, model, optimizer, batches(1))


def test_scoring_twice_needs_the_dense_weights_again() -> None:
    dense = torch_net().state_dict()
    model, run = start(SNIP())
    run.score(batches(1, seed=2), loss_fn)
    with pytest.raises(RuntimeError, match="load_dense"):
        run.score(batches(1, seed=3), loss_fn)
    run.load_dense(dense)
    assert run.sparsity() == 0
    with pytest.raises(RuntimeError, match=r"sp\.score"):
        train(run, model, torch.optim.SGD(run.param_groups(), lr=0.1), batches(1))
    run.score(batches(1, seed=3), loss_fn)
    _, fresh = start(SNIP())
    fresh.score(batches(1, seed=3), loss_fn)
    for name, mask in masks_of(run).items():
        np.testing.assert_array_equal(mask, masks_of(fresh)[name])


@pytest.mark.parametrize("cls", EVERY)
def test_a_scored_run_resumes(cls: type[ScoredMask]) -> None:
    model, run = start(cls())
    run.score(batches(1), loss_fn)
    other_model, other = start(cls())
    other_model.load_state_dict(model.state_dict())
    other.load_state_dict(run.state_dict())
    for net, sparsifier in ((model, run), (other_model, other)):
        train(sparsifier, net, torch.optim.SGD(sparsifier.param_groups(), lr=0.1, momentum=0.9), batches(3))
    for mine, theirs in zip(run.layers, other.layers, strict=True):
        assert torch.equal(mine.weight(), theirs.weight())


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.AdamW])
def test_no_optimizer_revives_a_pruned_weight(optimizer_class: type[torch.optim.Optimizer]) -> None:
    model, run = start(SNIP(sparsity=0.7))
    run.score(batches(1), loss_fn)
    settings_ = {"momentum": 0.9} if optimizer_class is torch.optim.SGD else {}
    optimizer = optimizer_class(run.param_groups(weight_decay=0.1), lr=0.01, **settings_)  # type: ignore[call-arg]
    train(run, model, optimizer, batches(5))
    for layer in run.layers:
        pruned = ~layer.active()
        assert pruned.any()
        assert torch.all(layer.weight()[pruned] == 0)
        for value in run.optimizer_state(layer).values():
            if isinstance(value, Tensor) and value.shape == layer.shape:
                assert torch.all(value[pruned] == 0)


def test_the_ledger_counts_training_and_scoring() -> None:
    for method, dense_steps in ((SNIP(), 3), (GraSP(), 12), (SynFlow(rounds=10), 2)):  # 10 samples of ones: 2 steps of 8
        model, run = start(method, example_input=torch.zeros(1, 12).double())
        run.score(batches(3), loss_fn)
        train(run, model, torch.optim.SGD(run.param_groups(), lr=0.1), batches(4))
        weights = sum(int(mask.sum()) for mask in masks_of(run).values())
        assert run.cost.train_fraction == pytest.approx((4 * weights + dense_steps * 256) / (4 * 256))
        assert run.cost.test_fraction == pytest.approx(weights / 256)


def test_every_field_changes_the_mask() -> None:
    variants: dict[type[ScoredMask], list[dict[str, Any]]] = {
        SNIP: [{}, {"sparsity": 0.8}, {"scope": "layer"}, {"dense_first": True}, {"dense_last": True}],
        GraSP: [{}, {"sparsity": 0.8}, {"scope": "layer"}, {"temperature": 1.0}, {"dense_first": True}, {"dense_last": True}],
        SynFlow: [{}, {"sparsity": 0.8}, {"scope": "layer"}, {"rounds": 2}, {"dense_first": True}, {"dense_last": True}],
    }
    seen = []
    for cls, options in variants.items():
        for fields in options:
            _, run = start(cls(**fields))
            run.score(batches(2), loss_fn)
            seen.append(tuple(bool(v) for v in torch.cat([w.reshape(-1) for w in run.dense_state_dict().values()]) != 0))
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (SNIP, {"sparsity": 1.0}),
        (SNIP, {"sparsity": -0.1}),
        (GraSP, {"scope": "channel"}),
        (GraSP, {"temperature": 0.0}),
        (SynFlow, {"rounds": 0}),
    ],
)
def test_bad_fields_are_refused(cls: type[ScoredMask], fields: dict[str, Any]) -> None:
    (name, value), *_ = fields.items()
    with pytest.raises(ValueError, match=f"{name} = {value!r}"):
        cls(**fields)


@pytest.mark.parametrize("cls", EVERY)
def test_bad_batches_are_refused_and_nothing_changes(cls: type[ScoredMask]) -> None:
    _, run = start(cls())
    with pytest.raises(ValueError, match="batches is empty"):
        run.score([], loss_fn)
    with pytest.raises(TypeError, match="iterable of batches"):
        run.score(batches(1)[0][0], loss_fn)
    with pytest.raises(TypeError, match="iterable of batches"):
        run.score(None, loss_fn)  # type: ignore[arg-type]
    if cls is not SynFlow:
        with pytest.raises(TypeError, match="loss_fn"):
            run.score(batches(1), None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"\(8, 4\)"):
            run.score(batches(1), lambda m, b: m(b[0]))
    broken = torch_net()
    broken[0].weight.data[0, 0] = float("nan")
    _, run_broken = start(cls(), broken)
    with pytest.raises(RuntimeError, match="not finite"):
        run_broken.score(batches(1), loss_fn)
    assert run.sparsity() == 0
    run.score(batches(1), loss_fn)
    assert run.sparsity() == 1 - 26 / 256


def test_an_emptied_layer_is_called_out() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[0].weight.data.fill_(1.0)
    model[1].weight.data.fill_(1.0)
    _, run = start(SNIP(sparsity=0.5), model)
    with pytest.warns(SparsityWarning, match=r"no weight in 1\b"):  # all scores tie, the first layer takes them all
        run.score([torch.ones(1, 8)], lambda m, x: m(x).sum())


def test_a_layer_that_the_loss_does_not_reach_scores_zero() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)  # type: ignore[no-any-return]

    _, run = start(SNIP(), Unused())
    gradients, seen = summed_gradients(run, [torch.ones(4, 3)], lambda m, x: m(x).sum(), "")
    assert seen == 1
    assert torch.all(gradients["unused"] == 0)
    assert torch.all(gradients["used"] == 4)


def test_the_progress_bar_is_silent_outside_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        terminal = False

        def isatty(self) -> bool:
            return self.terminal

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert list(progress(iter([1, 2]), "scoring")) == [1, 2]
    assert screen.getvalue() == ""
    screen.terminal = True
    assert list(progress(iter([1, 2]), "scoring")) == [1, 2]
    assert "scoring" in screen.getvalue()


@pytest.mark.slow
def test_two_ranks_with_half_of_the_batches_choose_the_mask_of_one(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys
        import torch
        import torch.distributed as dist
        from autosparse import sparsify
        from autosparse.methods.grasp import GraSP
        from autosparse.methods.snip import SNIP
        from autosparse.methods.synflow import SynFlow

        rank, folder = int(sys.argv[1]), sys.argv[2]
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
        saved = torch.load(f"{folder}/input.pt")
        found = {}
        for cls in (SNIP, GraSP, SynFlow):
            model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).double()
            model.load_state_dict(saved["model"])
            run = sparsify(model, cls(), epochs=1, steps_per_epoch=1)
            run.score(saved["data"][2 * rank : 2 * rank + 2], lambda m, b: ((m(b[0]) - b[1]) ** 2).sum() / (2 * len(b[1])))
            found[cls.__name__] = [layer.active() for layer in run.layers]
        torch.save(found, f"{folder}/output{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()
        """
    )
    data = batches(4)
    torch.save({"model": torch_net().state_dict(), "data": data}, tmp_path / "input.pt")
    command = [sys.executable, "-c", script]
    workers = [subprocess.Popen([*command, str(rank), str(tmp_path)], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    # torch's gloo processes may abort (SIGABRT) while the interpreter shuts down, after all work is written: that is compared
    for worker in workers:
        error = worker.communicate(timeout=120)[1]
        raced = worker.returncode == -signal.SIGABRT and "terminate called without an active exception" in error
        assert worker.returncode == 0 or raced, error
    first, second = (torch.load(tmp_path / f"output{rank}.pt") for rank in range(2))
    for cls in EVERY:
        _, run = start(cls())
        run.score(data, loss_fn)
        for layer, mine, theirs in zip(run.layers, first[cls.__name__], second[cls.__name__], strict=True):
            assert torch.equal(mine, theirs)
            assert torch.equal(mine, layer.active())
