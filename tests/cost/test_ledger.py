"""The ledger against the formulas of the methods, by hand."""

import copy
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from autosparse import models
from autosparse.cost import LayerCost, Ledger, Profile, profile

# conv1 is dense and first, b is sparsified, head is dense
SMALL = Profile(
    (
        LayerCost("conv1", "conv2d", 10, 100, (2, 5), first=True),
        LayerCost("b", "linear", 20, 300, (4, 5)),
        LayerCost("head", "linear", 30, 600, (6, 5)),
    )
)


def passes(*rows: float, layers: int = 1) -> Tensor:
    """Densities of the three passes, the same for every layer."""
    return torch.tensor(rows, dtype=torch.float64)[:, None].expand(3, layers)


def ledger(names: list[str], counted: Profile | None = SMALL, **options: object) -> Ledger:
    made = Ledger(names, **options)
    if counted is not None:
        made.set_profile(counted)
    return made


@pytest.fixture(scope="module")
def resnet50() -> Profile:
    with torch.device("meta"):
        return profile(models.resnet50(), torch.empty(1, 3, 224, 224))


@pytest.mark.parametrize(("backward", "fraction"), [(1.0, 0.4823), (0.5, 0.3206)])
def test_topkast_80_with_dense_first_and_last(resnet50: Profile, backward: float, fraction: float) -> None:
    names = [layer.name for layer in resnet50.layers[1:-1]]
    made = ledger(names, resnet50)
    for _ in range(3):
        made.add(passes(0.2, 0.2, backward, layers=52))
    assert made.train_fraction == pytest.approx(fraction, abs=5e-5)


def test_rigl_mixes_sparse_steps_and_one_dense_gradient(resnet50: Profile) -> None:
    names = [layer.name for layer in resnet50.layers[1:]]
    made = ledger(names, resnet50)
    for _ in range(100):
        made.add(passes(0.2, 0.2, 0.2, layers=53))
    made.add(passes(0.2, 0.2, 1.0, layers=53))
    sparse = resnet50.inference_fraction(dict.fromkeys(names, 0.2))
    assert made.train_fraction == pytest.approx((3 * sparse * 100 + 2 * sparse + 1) / 101 / 3)
    assert made.steps == 101


def test_autosparse_with_changing_density() -> None:
    made = ledger(["b", "head"])
    made.add(torch.tensor([[0.5, 0.4], [0.5, 0.4], [1.0, 1.0]], dtype=torch.float64))  # alpha > 0: 2 f_S + f_D
    made.add(torch.tensor([[0.3, 0.2], [0.3, 0.2], [0.3, 0.2]], dtype=torch.float64))  # alpha = 0: 3 f_S
    spent = 2 * 3 * 100 + 300 * (2 * 0.5 + 1) + 600 * (2 * 0.4 + 1) + 3 * (300 * 0.3 + 600 * 0.2)
    assert made.train_fraction == pytest.approx(spent / (2 * 3 * 1000))


def test_columns_follow_the_given_order_of_names() -> None:
    made = ledger(["head", "b"])
    made.add(torch.tensor([[0.1, 0.9]] * 3, dtype=torch.float64))
    assert made.train_fraction == pytest.approx(0.1 + 0.3 * 0.9 + 0.6 * 0.1)
    assert made.test_fraction([0.1, 0.9]) == pytest.approx(0.1 + 0.3 * 0.9 + 0.6 * 0.1)


def test_reference_steps_are_spent_but_not_in_the_baseline() -> None:
    made = ledger(["b", "head", "conv1"])
    for _ in range(10):
        made.add(passes(0.5, 0.5, 0.5, layers=3))
    made.add_dense_steps(9)
    assert made.train_fraction == pytest.approx(0.5 + 0.9)
    assert made.steps == 10


@pytest.mark.parametrize(("baseline", "fraction"), [(None, 0.5), (5, 1.0), (20, 0.25)])
def test_baseline_of_another_length(baseline: int | None, fraction: float) -> None:
    made = ledger(["b", "head", "conv1"], baseline_steps=baseline)
    for _ in range(10):
        made.add(passes(0.5, 0.5, 0.5, layers=3))
    assert made.train_fraction == pytest.approx(fraction)


def test_exact_convention_has_no_input_gradient_for_the_first_layer() -> None:
    made = ledger(["conv1"], convention="exact")
    made.add(passes(0.5, 0.25, 1.0))
    made.add_dense_steps(1)
    dense = 2 * 100 + 3 * 900
    assert made.train_fraction == pytest.approx((100 * 1.5 + 3 * 900 + dense) / dense)
    paper = ledger(["conv1"])
    paper.add(passes(0.5, 0.25, 1.0))
    assert paper.train_fraction == pytest.approx((100 * 1.75 + 2700) / 3000)


def test_profile_may_come_after_the_first_steps() -> None:
    made = ledger(["b"], None)
    made.add(passes(0.5, 0.5, 0.5))
    with pytest.raises(RuntimeError, match="example_input to sparsify, or run one eager forward"):
        _ = made.train_fraction
    with pytest.raises(RuntimeError, match="example_input"):
        made.test_fraction([0.5])
    made.set_profile(SMALL)
    assert made.train_fraction == pytest.approx(0.85)


def test_nothing_spent_before_the_first_step() -> None:
    made = ledger(["b"])
    assert math.isnan(made.train_fraction)
    assert ledger(["b"], baseline_steps=10).train_fraction == 0


def test_tensors_without_macs_cost_nothing_and_tied_ones_cost_where_they_run() -> None:
    made = ledger(["embedding", "b"])
    made.add(passes(0.5, 0.5, 0.5, layers=2))
    assert made.train_fraction == pytest.approx(0.85)
    assert made.test_fraction([0.0, 0.5]) == pytest.approx(0.85)
    head = LayerCost("head", "linear", 30, 600, (6, 5), tied_to="embedding")
    made.set_profile(Profile((*SMALL.layers[:2], head)))
    assert made.train_fraction == pytest.approx(0.55)
    assert made.test_fraction([0.0, 0.5]) == pytest.approx(0.25)


@given(st.lists(st.tuples(*[st.floats(0, 1)] * 3), min_size=1, max_size=8))
def test_train_fraction_is_the_mean_cost_of_the_steps(steps: list[tuple[float, float, float]]) -> None:
    made = ledger(["b", "head", "conv1"])
    for step in steps:
        made.add(passes(*step, layers=3))
    assert made.train_fraction == pytest.approx(sum(map(sum, steps)) / 3 / len(steps))
    assert 0 <= made.train_fraction <= 1 + 1e-12


def test_state_is_exact_through_json() -> None:
    generator = torch.Generator().manual_seed(0)
    steps = torch.rand(40, 3, 2, generator=generator, dtype=torch.float64)
    whole, half = ledger(["b", "head"]), ledger(["b", "head"])
    for step in steps:
        whole.add(step)
    for step in steps[:20]:
        half.add(step)
    half.add_dense_steps(3)
    whole.add_dense_steps(3)
    resumed = ledger(["b", "head"], None)
    resumed.load_state_dict(json.loads(json.dumps(half.state_dict())))
    assert resumed.profile == SMALL
    for step in steps[20:]:
        resumed.add(step)
    assert resumed.state_dict() == whole.state_dict()
    assert resumed.train_fraction == whole.train_fraction


def test_added_tensors_are_not_kept_and_copies_are_independent() -> None:
    made = ledger(["b"])
    densities = passes(0.5, 0.5, 0.5).clone().requires_grad_()
    made.add(densities)
    with torch.no_grad():
        densities.fill_(1)
    twin = copy.deepcopy(made)
    twin.add(densities)
    assert made.train_fraction == pytest.approx(0.85)
    assert twin.train_fraction == pytest.approx(0.925)


def test_state_of_other_layers_is_refused() -> None:
    made = ledger(["b", "head"])
    with pytest.raises(ValueError, match=r"only saved: \['conv1'\], only here: \['head'\]"):
        made.load_state_dict(ledger(["b", "conv1"]).state_dict())
    with pytest.raises(ValueError, match="order differs"):
        made.load_state_dict(ledger(["head", "b"]).state_dict())
    with pytest.raises(ValueError, match="lacks steps"):
        made.load_state_dict({key: value for key, value in made.state_dict().items() if key != "steps"})


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="convention must be one of paper, exact, not 'rigl'"):
        Ledger([], convention="rigl")
    with pytest.raises(ValueError, match="baseline_steps must be at least 1, not 0"):
        Ledger([], baseline_steps=0)
    with pytest.raises(ValueError, match="names must differ: a, a"):
        Ledger(["a", "a"])
    made = ledger(["b"])
    with pytest.raises(ValueError, match=r"shape \(1, 3\); expected \(3, 1\)"):
        made.add(torch.ones(1, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="2 densities for 1 sparsified"):
        made.test_fraction([0.1, 0.2])
    with pytest.raises(ValueError, match="at least 0, not -1"):
        made.add_dense_steps(-1)
