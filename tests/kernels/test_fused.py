"""The fused operators against torch in double: chains of convolution, batch norm, ReLU and residual sum."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from autosparse.kernels import normalise, pixels
from autosparse.kernels.autograd import conv_norm, join, join_conv_norm
from autosparse.kernels.fused_layer import Norm
from autosparse.kernels.geometry import Geometry
from autosparse.kernels.layer_call import LayerCall

RELAXED = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)
SPARSE, DENSE = [True] * 3, [False] * 3
POINTWISE = Geometry((1, 1), (0, 0), (1, 1))
EPSILON = 1e-5


@dataclass
class Block:
    """A residual block with the first convolution of the next one: 1x1, k x k, depthwise or not, a shortcut with a stride."""

    images: int
    channels: tuple[int, int, int]
    size: tuple[int, int]
    kernel: int
    stride: int
    density: float
    depthwise: bool
    seed: int

    def tensors(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        inputs, middle, outputs = self.channels

        def weight(*shape: int) -> Tensor:
            kept = torch.rand(shape, generator=generator) < self.density
            return torch.randn(shape, generator=generator) * kept

        groups = middle if self.depthwise else 1
        found = {
            "x": torch.randn(self.images, inputs, *self.size, generator=generator),
            "w1": weight(middle, inputs, 1, 1),
            "w2": weight(middle, middle // groups, self.kernel, self.kernel),
            "w3": weight(outputs, middle, 1, 1),
            "shortcut": weight(outputs, inputs, 1, 1),
            "w4": weight(middle, outputs, 1, 1),
        }
        for place, count in enumerate((middle, middle, outputs, outputs, middle)):
            found[f"gamma{place}"] = torch.rand(count, generator=generator) + 0.5
            found[f"beta{place}"] = torch.randn(count, generator=generator)
        return found

    @property
    def groups(self) -> int:
        return self.channels[1] if self.depthwise else 1


def by_torch(block: Block, given: dict[str, Tensor], normed: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
    def norm(x: Tensor, place: int) -> Tensor:
        if normed is not None:
            normed.append(x.detach())
        return F.batch_norm(x, None, None, given[f"gamma{place}"], given[f"beta{place}"], True, 0.1, EPSILON)

    y = F.relu(norm(F.conv2d(given["x"], given["w1"]), 0))
    y = F.relu(norm(F.conv2d(y, given["w2"], None, block.stride, block.kernel // 2, 1, block.groups), 1))
    y = norm(F.conv2d(y, given["w3"]), 2) + norm(F.conv2d(given["x"], given["shortcut"], None, block.stride), 3)
    z = F.relu(y)
    return z, norm(F.conv2d(z, given["w4"]), 4)


def has_constant_channel(block: Block) -> bool:
    """Whether a batch norm divides by the root of its epsilon alone, which magnifies rounding."""
    normed: list[Tensor] = []
    by_torch(block, {name: each.double() for name, each in block.tensors().items()}, normed)
    spread = torch.cat([each.var(dim=(0, 2, 3), correction=0) for each in normed])
    largest = torch.cat([each.abs().amax(dim=(0, 2, 3)) for each in normed])
    return bool(((spread < 1e-4) & (largest > 0)).any())


def fused(block: Block, given: dict[str, Tensor], sparse: list[bool]) -> tuple[Tensor, Tensor]:
    def arguments(weight: str, place: int, stride: int = 1, padding: int = 0, groups: int = 1) -> tuple[LayerCall, Norm]:
        gamma = given[f"gamma{place}"]
        geometry = Geometry((stride, stride), (padding, padding), (1, 1), groups)
        call = LayerCall(given[weight], None, geometry, "active", None, sparse if groups == 1 else DENSE)
        return call, Norm(gamma, given[f"beta{place}"], torch.zeros(len(gamma)), EPSILON)

    y = conv_norm(given["x"], None, False, *arguments("w1", 0))[:2]
    y = conv_norm(*y, True, *arguments("w2", 1, block.stride, block.kernel // 2, block.groups))[:2]
    y = conv_norm(*y, True, *arguments("w3", 2))[:2]
    shortcut = conv_norm(given["x"], None, False, *arguments("shortcut", 3, block.stride))[:2]
    z, raw, folded, _ = join_conv_norm(*y, *shortcut, True, *arguments("w4", 4))
    return z, join(raw, folded, None, None, False)


def gradients(block: Block, dtype: torch.dtype, sparse: list[bool] | None) -> dict[str, Tensor]:
    given = {name: each.to(dtype).requires_grad_() for name, each in block.tensors().items()}
    z, out = by_torch(block, given) if sparse is None else fused(block, given, sparse)
    waves = (torch.linspace(0, 40, each.numel(), dtype=torch.float64).cos().view(each.shape).to(dtype) for each in (z, out))
    sum((each * wave).sum() for each, wave in zip((z, out), waves, strict=True)).backward()  # type: ignore[union-attr]
    # only non-zero weights are asked for a gradient
    found = {name: each.grad * (each != 0) if name[0] in "ws" else each.grad for name, each in given.items()}
    return {"z": z.detach(), "out": out.detach()} | found  # type: ignore[dict-item]


def distance(a: Tensor, b: Tensor) -> float:
    # A batch norm makes the scale of its input irrelevant: where one channel alone is alive, gradients of its weights are
    # terms of a thousand that cancel to hundredths. What rounding leaves of them is small beside 1, not beside the rest.
    return float((a.double() - b).norm() / (b.norm() + 1))


BLOCKS = st.builds(
    Block,
    images=st.integers(2, 5),
    channels=st.tuples(st.integers(1, 40), st.integers(2, 40), st.integers(1, 40)),
    size=st.tuples(st.integers(3, 12), st.integers(3, 12)),
    kernel=st.sampled_from([1, 3]),
    stride=st.sampled_from([1, 2]),
    density=st.sampled_from([1.0, 0.3]),
    depthwise=st.booleans(),
    seed=st.integers(0, 2**20),
)


@pytest.mark.parametrize("threads", [1, 2])
@RELAXED
@given(block=BLOCKS, sparse=st.tuples(*[st.booleans()] * 3))
def test_a_block_equals_torch_in_double(instruction_set: str, threads: int, block: Block, sparse: tuple[bool, ...]) -> None:
    assume(not has_constant_channel(block))
    torch.set_num_threads(threads)
    exact = gradients(block, torch.float64, None)
    single = gradients(block, torch.float32, None)
    ours = gradients(block, torch.float32, list(sparse))
    for name, value in exact.items():
        # where torch in single precision is far off a ReLU has flipped, or a variance is nearly zero
        assert distance(ours[name], value) <= 2e-4 + 20 * distance(single[name], value), name


@pytest.mark.parametrize("sparse", [SPARSE, DENSE])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_result_run_to_run(native: None, sparse: list[bool], threads: int) -> None:
    torch.set_num_threads(threads)
    block = Block(8, (24, 20, 40), (15, 13), 3, 2, 0.3, False, 0)
    first, second = (gradients(block, torch.float32, sparse) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("depthwise", [False, True])
def test_results_written_past_the_caches_are_the_same(
    instruction_set: str, depthwise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(2)
    block = Block(3, (32, 48, 16), (9, 11), 3, 2, 0.3, depthwise, 0)
    assert not pixels.streams_past_caches(torch.empty(3, 32, 9, 11))
    cached = gradients(block, torch.float32, SPARSE)
    monkeypatch.setattr(pixels, "STREAMED_BYTES", 0)
    assert pixels.streams_past_caches(torch.empty(3, 32, 9, 11))
    assert not pixels.streams_past_caches(torch.empty(3, 33, 9, 11))
    streamed = gradients(block, torch.float32, SPARSE)
    assert all(torch.equal(cached[name], streamed[name]) for name in cached)


def test_a_mean_far_from_zero_leaves_the_variance_exact(instruction_set: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8) + 1000
    weight = torch.eye(3).reshape(3, 3, 1, 1)
    for sparse in (SPARSE, DENSE):
        call = LayerCall(weight, None, POINTWISE, "all", None, sparse)
        _, _, found = conv_norm(x, None, False, call, Norm(None, None, torch.zeros(3), 0.0))
        variance = x.double().var(dim=(0, 2, 3), correction=0)
        assert torch.allclose(found[1], variance, rtol=1e-5)
        assert torch.allclose(found[2], variance.rsqrt(), rtol=1e-5)


@pytest.mark.parametrize("sparse", [SPARSE, DENSE])
def test_a_constant_channel_leaves_no_gradient_of_gamma(instruction_set: str, sparse: list[bool]) -> None:
    """Its normalised values are all zero, so is their product with any gradient: sums around zero would leave rounding."""
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    x[:, 1] = 7.3
    weight = torch.eye(3).reshape(3, 3, 1, 1)
    calls = [LayerCall(weight, None, POINTWISE, "active", None, sparse) for _ in range(3)]
    last = LayerCall(torch.randn(5, 3, 1, 1), None, POINTWISE, "active", None, sparse)
    gammas, betas = ([torch.ones(3).requires_grad_() for _ in range(3)] for _ in range(2))
    norms = [Norm(gamma, beta, torch.zeros(3), EPSILON) for gamma, beta in zip(gammas, betas, strict=True)]
    first, second, alone = (conv_norm(x, None, False, *each)[:2] for each in zip(calls, norms, strict=True))
    join(*first, *second, False).mul(torch.randn(4, 3, 8, 8)).sum().backward()
    through = conv_norm(*alone, True, last, Norm(None, None, torch.zeros(5), EPSILON))[:2]
    join(*through, None, None, False).mul(torch.randn(4, 5, 8, 8)).sum().backward()
    for gamma in gammas:
        assert gamma.grad is not None
        assert abs(gamma.grad[1]) < 1e-9
        assert abs(gamma.grad[0]) > 1e-3


def test_a_channel_without_weights_needs_no_second_look(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variance is zero and the running mean that it had before is far from that, but epsilon is larger than both."""
    x, weight = torch.randn(4, 3, 8, 8), torch.eye(3).reshape(3, 3, 1, 1).clone()
    weight[1] = 0
    again: list[Tensor] = []
    statistics = normalise.statistics
    monkeypatch.setattr(normalise, "statistics", lambda raw, shift: again.append(shift) or statistics(raw, shift))
    norm = Norm(None, None, torch.tensor([0.0, 0.01, 0.0]), EPSILON)
    _, folded, found = conv_norm(x, None, False, LayerCall(weight, None, POINTWISE, "all", None, SPARSE), norm)
    assert again == []
    assert found[0, 1] == pytest.approx(0.0, abs=1e-8)
    assert folded[1, 1] == pytest.approx(0.0, abs=1e-5), "what is left of the mean, times 1 / sqrt(epsilon)"
    far = Norm(None, None, torch.full((3,), 1000.0), EPSILON)
    conv_norm(x, None, False, LayerCall(weight, None, POINTWISE, "all", None, SPARSE), far)
    assert len(again) == 1
