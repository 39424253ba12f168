import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosparse import distributions

Shape = tuple[int, ...]


def resnet50() -> tuple[dict[str, Shape], dict[str, int]]:
    """Shapes and MACs of the 54 prunable layers of ResNet-50 v1.5 at 224 x 224 pixels."""
    shapes: dict[str, Shape] = {"conv1": (64, 3, 7, 7)}
    pixels = {"conv1": 112 * 112}

    def add(name: str, shape: Shape, side: int) -> None:
        shapes[name], pixels[name] = shape, side * side

    channels, side = 64, 56
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        width = 32 * 2**stage
        for block in range(blocks):
            prefix = f"layer{stage}.{block}"
            out_side = side // 2 if stage > 1 and block == 0 else side
            add(f"{prefix}.conv1", (width, channels, 1, 1), side)
            add(f"{prefix}.conv2", (width, width, 3, 3), out_side)
            add(f"{prefix}.conv3", (4 * width, width, 1, 1), out_side)
            if block == 0:
                add(f"{prefix}.downsample.0", (4 * width, channels, 1, 1), out_side)
            channels, side = 4 * width, out_side
    add("fc", (1000, 2048), 1)
    return shapes, {name: math.prod(shape) * pixels[name] for name, shape in shapes.items()}


def kept_macs(sparsities: dict[str, float], macs: dict[str, int]) -> float:
    return sum((1.0 - sparsities[name]) * macs[name] for name in macs) / sum(macs.values())


def overall(sparsities: dict[str, float], shapes: dict[str, Shape]) -> float:
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    return sum(sparsities[name] * size for name, size in sizes.items()) / sum(sizes.values())


def test_resnet50_list_is_the_published_one() -> None:
    shapes, macs = resnet50()
    assert len(shapes) == 54
    assert sum(map(math.prod, shapes.values())) == 25_502_912
    assert sum(macs.values()) == 4_089_184_256


@pytest.mark.parametrize(("sparsity", "fraction"), [(0.8, 0.4138), (0.9, 0.2418), (0.95, 0.1217)])
def test_erk_on_resnet50(sparsity: float, fraction: float) -> None:
    shapes, macs = resnet50()
    sparsities = distributions.erk(shapes, sparsity)
    assert kept_macs(sparsities, macs) == pytest.approx(fraction, abs=5e-5)
    assert overall(sparsities, shapes) == pytest.approx(sparsity, abs=1e-12)


@pytest.mark.parametrize(("sparsity", "fraction"), [(0.8, 0.2231), (0.9, 0.1260), (0.95, 0.0774)])
def test_uniform_on_resnet50_with_a_dense_first_layer(sparsity: float, fraction: float) -> None:
    shapes, macs = resnet50()
    sparsities = distributions.uniform(shapes, sparsity, dense=("conv1",))
    assert kept_macs(sparsities, macs) == pytest.approx(fraction, abs=5e-5)
    assert set(sparsities.values()) == {0.0, sparsity}


def test_er_by_hand() -> None:
    # n = 8, 32; scale = 6/8, 12/32; n * scale = 6, 12; half of 40 weights = 20: share = 20/18, densities 5/6 and 5/12.
    sparsities = distributions.er({"small": (4, 2), "large": (8, 4)}, 0.5)
    assert sparsities == pytest.approx({"small": 1 / 6, "large": 7 / 12})


def test_er_makes_a_layer_dense_that_cannot_use_its_share() -> None:
    # n = 4, 100; n * scale = 4, 20; 26 may stay: share 26/24 gives "small" 1.083 > 1. "large" keeps the other 22.
    sparsities = distributions.er({"small": (2, 2), "large": (10, 10)}, 0.75)
    assert sparsities == pytest.approx({"small": 0.0, "large": 0.78})


def test_er_ignores_the_kernel_and_erk_does_not() -> None:
    shapes = {"point": (8, 8, 1, 1), "wide": (8, 8, 3, 3)}
    # ER: same scale, so the same density. ERK: n * scale = 18, 22; 64 of 640 weights stay: share 1.6.
    assert distributions.er(shapes, 0.9) == pytest.approx({"point": 0.9, "wide": 0.9})
    assert distributions.erk(shapes, 0.9) == pytest.approx({"point": 1 - 1.6 * 18 / 64, "wide": 1 - 1.6 * 22 / 576})


def test_er_and_erk_agree_on_matrices() -> None:
    shapes = {"a": (30, 20), "b": (10, 30), "c": (5, 10)}
    assert distributions.er(shapes, 0.7) == pytest.approx(distributions.erk(shapes, 0.7))


def test_dense_layers_lie_outside_the_budget_of_er() -> None:
    # the 40 weights of the others are spread as in test_er_by_hand, whatever "first" holds
    sparsities = distributions.er({"first": (40, 50), "small": (4, 2), "large": (8, 4)}, 0.5, dense=["first"])
    assert sparsities == pytest.approx({"first": 0.0, "small": 1 / 6, "large": 7 / 12})


@pytest.mark.parametrize("sparsity", [0.8, 0.9, 0.99])
def test_a_dense_first_layer_takes_nothing_from_the_others_of_resnet50(sparsity: float) -> None:
    shapes, _ = resnet50()
    without = distributions.erk({name: shape for name, shape in shapes.items() if name != "conv1"}, sparsity)
    assert distributions.erk(shapes, sparsity, dense=("conv1",)) == {"conv1": 0.0, **without}


LAYERS = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 64), st.integers(1, 64)),
        st.tuples(st.integers(1, 64), st.integers(1, 64), st.integers(1, 5), st.integers(1, 5)),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("name", ["er", "erk"])
@settings(max_examples=100, deadline=None)
@given(layers=LAYERS, sparsity=st.floats(0.0, 0.999))
def test_the_whole_budget_is_spent(name: str, layers: list[Shape], sparsity: float) -> None:
    shapes = {f"layer{i}": shape for i, shape in enumerate(layers)}
    sparsities = distributions.distribute(name, shapes, sparsity)
    assert list(sparsities) == list(shapes)
    assert all(0.0 <= value < 1.0 for value in sparsities.values())
    assert overall(sparsities, shapes) == pytest.approx(sparsity, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(layers=LAYERS, sparsity=st.floats(0.0, 0.999), name=st.sampled_from(distributions.DISTRIBUTIONS))
def test_counts_miss_the_budget_by_less_than_one_weight_a_layer(name: str, layers: list[Shape], sparsity: float) -> None:
    shapes = {f"layer{i}": shape for i, shape in enumerate(layers)}
    active = distributions.counts(shapes, distributions.distribute(name, shapes, sparsity))
    total = sum(map(math.prod, shapes.values()))
    assert all(1 <= active[layer] <= math.prod(shape) for layer, shape in shapes.items())
    assert abs(sum(active.values()) - (1.0 - sparsity) * total) <= len(shapes)


@pytest.mark.parametrize(
    ("size", "sparsity", "active"),
    [(25, 0.9, 3), (10, 0.35, 7), (100, 0.333, 67), (100, 0.336, 66), (30, 0.99, 1), (30, 1.0, 1), (7, 0.0, 7)],
)
def test_counts_round_half_up_and_keep_one(size: int, sparsity: float, active: int) -> None:
    assert distributions.counts({"a": (size, 1)}, {"a": sparsity}) == {"a": active}


def test_counts_refuse_other_layers_and_bad_sparsities() -> None:
    with pytest.raises(ValueError, match="only one of them has b"):
        distributions.counts({"a": (2, 2)}, {"a": 0.5, "b": 0.5})
    with pytest.raises(ValueError, match=r"'a' has sparsity 1\.5"):
        distributions.counts({"a": (2, 2)}, {"a": 1.5})


@pytest.mark.parametrize("name", distributions.DISTRIBUTIONS)
@pytest.mark.parametrize("sparsity", [-0.1, 1.0, math.nan])
def test_sparsity_outside_its_range(name: str, sparsity: float) -> None:
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\)"):
        distributions.distribute(name, {"a": (2, 2)}, sparsity)


@pytest.mark.parametrize("name", ["er", "erk"])
def test_everything_may_be_dense(name: str) -> None:
    assert distributions.distribute(name, {"a": (8, 10), "b": (4, 5)}, 0.9, dense=("a", "b")) == {"a": 0.0, "b": 0.0}


def test_bad_names_and_shapes() -> None:
    shapes = {"conv1": (8, 8), "fc": (4, 4)}
    with pytest.raises(ValueError, match=r"'conv'.*did you mean 'conv1'"):
        distributions.uniform(shapes, 0.5, dense=("conv",))
    with pytest.raises(TypeError, match=r"\('fc',\)"):
        distributions.uniform(shapes, 0.5, dense="fc")
    with pytest.raises(ValueError, match="no layers"):
        distributions.uniform({}, 0.5)
    with pytest.raises(ValueError, match=r"'a' has shape \(0, 4\)"):
        distributions.erk({"a": (0, 4)}, 0.5)
    with pytest.raises(ValueError, match=r"'a' has shape \(4,\).*use uniform"):
        distributions.erk({"a": (4,)}, 0.5)
    with pytest.raises(ValueError, match="'uniforms'; allowed: uniform, er, erk; did you mean 'uniform'"):
        distributions.distribute("uniforms", shapes, 0.5)


def test_distribute_calls_the_named_one() -> None:
    shapes = {"point": (8, 8, 1, 1), "wide": (8, 8, 3, 3), "last": (2, 8)}
    for name in distributions.DISTRIBUTIONS:
        named = distributions.distribute(name, shapes, 0.8, dense=("last",))
        assert named == getattr(distributions, name)(shapes, 0.8, dense=("last",))
    assert len({tuple(distributions.distribute(name, shapes, 0.8).values()) for name in distributions.DISTRIBUTIONS}) == 3
