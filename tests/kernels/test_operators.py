"""The torch operators: registration, compilation, autocast, passes chosen one by one, fallbacks and bad input."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autosparse import kernels
from autosparse.kernels.autograd import sparse_layer

from .reference import Case, check, run_sparse, sparse_weight

SPARSE = [True, True, True]


def linear_case(tokens: int = 50) -> Case:
    generator = torch.Generator().manual_seed(0)
    return Case(torch.randn(tokens, 40, generator=generator), sparse_weight((30, 40), 0.2, generator), torch.randn(30))


def conv_case(**options: int) -> Case:
    generator = torch.Generator().manual_seed(0)
    return Case(
        torch.randn(3, 8, 9, 9, generator=generator), sparse_weight((6, 8, 3, 3), 0.2, generator), torch.randn(6), options
    )


@pytest.mark.parametrize("wanted", ["all", "active", "mask"])
def test_linear_passes_opcheck(native: None, wanted: str) -> None:
    case = linear_case()
    mask = torch.rand(case.weight.shape) < 0.3 if wanted == "mask" else None
    x, weight, bias = (each.clone().requires_grad_() for each in (case.x, case.weight, case.bias))  # type: ignore[union-attr]
    torch.library.opcheck(sparse_layer, (x, weight, bias, [], wanted, mask, SPARSE))
    torch.library.opcheck(sparse_layer, (x, weight, None, [], wanted, mask, [False, True, False]))


@pytest.mark.parametrize("wanted", ["all", "active", "mask"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_conv2d_passes_opcheck(native: None, wanted: str, memory_format: torch.memory_format) -> None:
    case = conv_case()
    mask = torch.rand(case.weight.shape) < 0.3 if wanted == "mask" else None
    x, weight = (each.clone(memory_format=memory_format).requires_grad_() for each in (case.x, case.weight))
    bias = case.bias.clone().requires_grad_()  # type: ignore[union-attr]
    torch.library.opcheck(sparse_layer, (x, weight, bias, [2, 1, 1, 1, 1, 1, 1], wanted, mask, SPARSE))


def test_opcheck_without_kernels(without_kernels: None) -> None:
    case = conv_case()
    x, weight = (each.clone().requires_grad_() for each in (case.x, case.weight))
    torch.library.opcheck(sparse_layer, (x, weight, None, [1, 1, 1, 1, 1, 1, 1], "active", None, SPARSE))
    case = linear_case()
    x, weight = (each.clone().requires_grad_() for each in (case.x, case.weight))
    torch.library.opcheck(sparse_layer, (x, weight, None, [], "active", None, SPARSE))


@pytest.mark.parametrize("passes", [(f, i, w) for f in (False, True) for i in (False, True) for w in (False, True)])
def test_every_choice_of_passes_gives_the_same(native: None, passes: tuple[bool, bool, bool]) -> None:
    for case in (linear_case(), conv_case(stride=2, padding=1)):
        for wanted in ("all", "active", torch.rand(case.weight.shape) < 0.5):
            check(case, wanted, passes)


class SparseNet(nn.Module):
    """A convolution and a linear layer with sparse weights, in the forms the operators have."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.conv = nn.Parameter(sparse_weight((8, 3, 3, 3), 0.4, generator))
        self.linear = nn.Parameter(sparse_weight((5, 8 * 16), 0.3, generator))
        self.bias = nn.Parameter(torch.randn(5, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(kernels.sparse_conv2d(x, self.conv, None, 2, 1, gradient_entries="active"))
        return kernels.sparse_linear(x.flatten(1), self.linear, self.bias, "active")

    def gradients(self, x: Tensor, call: Callable[[Tensor], Tensor]) -> list[Tensor]:
        self.zero_grad()
        call(x).square().sum().backward()
        return [p.grad.clone() for p in self.parameters() if p.grad is not None]


def test_compiles_whole(native: None) -> None:
    net, x = SparseNet(), torch.randn(4, 3, 8, 8)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), net(x))
    for ours, eager in zip(net.gradients(x, compiled), net.gradients(x, net), strict=True):
        torch.testing.assert_close(ours, eager)


def test_autocast_gives_its_own_type(native: None) -> None:
    x = torch.randn(4, 3, 8, 8).bfloat16()
    net = SparseNet()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(x)
        reference = F.linear(torch.relu(F.conv2d(x, net.conv, None, 2, 1)).flatten(1), net.linear, net.bias)
    assert y.dtype is reference.dtype is torch.bfloat16
    torch.testing.assert_close(y, reference, rtol=0.05, atol=0.05)
    y.float().sum().backward()
    assert net.conv.grad is not None
    assert net.conv.grad.dtype is torch.float32


def test_a_frozen_input_or_weight_gets_no_gradient(native: None) -> None:
    case = conv_case()
    weight = case.weight.clone().requires_grad_()
    kernels.sparse_conv2d(case.x, weight, None).sum().backward()
    assert weight.grad is not None
    x = case.x.clone().requires_grad_()
    kernels.sparse_conv2d(x, case.weight, None).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("kernel", [(3, 3), (2, 4)])
def test_padding_by_name(native: None, padding: str, kernel: tuple[int, int]) -> None:
    x, weight = torch.randn(2, 3, 7, 8), torch.randn(4, 3, *kernel)
    found = kernels.sparse_conv2d(x, weight, None, padding=padding, dilation=(1, 2))
    torch.testing.assert_close(found, F.conv2d(x, weight, None, padding=padding, dilation=(1, 2)))


def test_an_input_without_a_batch(native: None) -> None:
    x, weight = torch.randn(3, 7, 8), torch.randn(4, 3, 3, 3)
    torch.testing.assert_close(kernels.sparse_conv2d(x, weight), F.conv2d(x, weight))


@pytest.mark.parametrize("wanted", ["all", "active"])
def test_groups_are_computed_densely(native: None, wanted: str) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = sparse_weight((8, 2, 3, 3), 0.5, generator)
    check(Case(torch.randn(2, 4, 6, 6, generator=generator), weight, None, {"groups": 2, "padding": 1}), wanted)


@pytest.mark.parametrize("wanted", ["all", "active"])
def test_without_kernels_it_is_exactly_torch(without_kernels: None, wanted: str) -> None:
    assert not kernels.available()
    for case in (linear_case(), conv_case(stride=2, padding=1), conv_case()):
        found = run_sparse(case, wanted)
        x, weight, bias = (each.clone().requires_grad_() for each in (case.x, case.weight, case.bias))  # type: ignore[union-attr]
        y = case.dense(x, weight, bias)
        y.backward(case.grad())
        assert torch.equal(found.output, y)
        assert x.grad is not None
        assert weight.grad is not None
        assert bias.grad is not None
        assert torch.equal(found.x, x.grad)
        assert torch.equal(found.weight, weight.grad * (case.weight != 0) if wanted == "active" else weight.grad)
        assert found.bias is not None
        torch.testing.assert_close(found.bias, bias.grad)


@pytest.mark.parametrize("kernels_there", [True, False])
def test_what_does_not_fit_is_refused(kernels_there: bool, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("native" if kernels_there else "without_kernels")
    x, weight = torch.randn(4, 8), torch.randn(5, 8)
    images, filters = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    with pytest.raises(ValueError, match="last dimension must be 8"):
        kernels.sparse_linear(torch.randn(4, 7), weight)
    with pytest.raises(ValueError, match=r"must be \(out_features, in_features\)"):
        kernels.sparse_linear(x, filters)
    with pytest.raises(ValueError, match=r"bias of shape \(4,\); it must be \(5,\)"):
        kernels.sparse_linear(x, weight, torch.randn(4))
    with pytest.raises(TypeError, match=r"input is torch.float64; the sparse kernels take torch.float32"):
        kernels.sparse_linear(x.double(), weight)
    with pytest.raises(TypeError, match=r"weight is torch.bfloat16"):
        kernels.sparse_linear(x, weight.bfloat16())
    with pytest.raises(ValueError, match="gradient_entries='most'; allowed: all, active, mask"):
        kernels.sparse_linear(x, weight, gradient_entries="most")
    with pytest.raises(ValueError, match=r"must be torch.bool"):
        kernels.sparse_linear(x, weight, gradient_entries=torch.ones(5, 8))
    with pytest.raises(ValueError, match=r"must be torch.bool, shape"):
        kernels.sparse_linear(x, weight, gradient_entries=torch.ones(8, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match="it needs three"):
        kernels.sparse_linear(x, weight, sparse=(True,))
    with pytest.raises(ValueError, match="does not fit a weight"):
        kernels.sparse_conv2d(torch.randn(2, 4, 8, 8), filters)
    with pytest.raises(ValueError, match="the output would be empty"):
        kernels.sparse_conv2d(torch.randn(2, 3, 2, 8), filters)
    with pytest.raises(ValueError, match="stride and dilation must be at least 1"):
        kernels.sparse_conv2d(images, filters, stride=0)
    with pytest.raises(ValueError, match="groups must divide"):
        kernels.sparse_conv2d(images, filters, groups=3)
    with pytest.raises(ValueError, match="one number or two"):
        kernels.sparse_conv2d(images, filters, stride=(1, 2, 3))
    with pytest.raises(ValueError, match="'same' with stride 1"):
        kernels.sparse_conv2d(images, filters, stride=2, padding="same")


def test_a_window_that_does_not_fit_is_refused(native: None) -> None:
    x = torch.empty(1, 1, 2, 2)
    with pytest.raises(ValueError, match="too large for the sparse kernels"):
        kernels.sparse_conv2d(x, torch.ones(1, 1, 3, 3), padding=2**20, dilation=2**20)


def test_a_second_derivative_is_refused(native: None) -> None:
    x, weight = torch.randn(4, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    (first,) = torch.autograd.grad(kernels.sparse_linear(x, weight).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_threads_of_python_do_not_disturb_each_other(native: None) -> None:
    cases = [linear_case(200 + each) for each in range(4)]
    exact = [case.x.double() @ case.weight.double().t() for case in cases]

    def worst(index: int) -> float:
        found = (kernels.sparse_linear(cases[index].x, cases[index].weight) for _ in range(50))
        return max(float((each - exact[index]).abs().max()) for each in found)

    with ThreadPoolExecutor(len(cases)) as pool:
        assert max(pool.map(worst, range(len(cases)))) < 1e-4
