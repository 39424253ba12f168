"""What the kernels must give: torch in float64, with an error bound that grows with the terms that were added up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from autosparse import kernels

# float32 rounds by 6e-8; sums of up to a few hundred terms in any order stay well below this
RELATIVE_ERROR = 4e-6


@dataclass(frozen=True)
class Results:
    """Output and gradients of a layer."""

    output: Tensor
    x: Tensor
    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class Case:
    """A layer with its input and the gradient of its output; convolution arguments, or None for a linear layer."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    conv: dict[str, int | tuple[int, int]] | None = None

    def dense(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias) if self.conv is None else F.conv2d(x, weight, bias, **self.conv)  # type: ignore[arg-type]

    def sparse(self, x: Tensor, weight: Tensor, bias: Tensor | None, wanted: str | Tensor, passes: tuple[bool, ...]) -> Tensor:
        if self.conv is None:
            return kernels.sparse_linear(x, weight, bias, wanted, passes)
        return kernels.sparse_conv2d(x, weight, bias, gradient_entries=wanted, sparse=passes, **self.conv)  # type: ignore[arg-type]

    @property
    def crashes_torch(self) -> bool:
        """torch 2.13's float32 convolution can crash where the last windows lie wholly in the padding behind the input."""
        if self.conv is None:
            return False
        rows, cols = self.grad().shape[2:]
        stride, padding = (
            torch.nn.modules.utils._pair(self.conv.get(key, value)) for key, value in (("stride", 1), ("padding", 0))
        )
        last = [(count - 1) * step - edge for count, step, edge in zip((rows, cols), stride, padding, strict=True)]
        return any(first >= size for first, size in zip(last, self.x.shape[2:], strict=True))

    def grad(self) -> Tensor:
        shape = self.dense(self.x.to("meta"), self.weight.to("meta"), None).shape
        return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def _leaf(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().requires_grad_()


def run_sparse(case: Case, wanted: str | Tensor, passes: tuple[bool, ...] = (True, True, True)) -> Results:
    x, weight, bias = (_leaf(each) for each in (case.x, case.weight, case.bias))
    output = case.sparse(x, weight, bias, wanted, passes)  # type: ignore[arg-type]
    output.backward(case.grad())
    return Results(output.detach(), x.grad, weight.grad, None if bias is None else bias.grad)  # type: ignore[union-attr, arg-type]


def run_dense(case: Case, magnitudes: bool = False) -> Results:
    """In float64; with magnitudes, the sums of the absolute values of the terms."""
    given = [None if each is None else each.double() for each in (case.x, case.weight, case.bias)]
    grad = case.grad().double()
    if magnitudes:
        given, grad = [None if each is None else each.abs() for each in given], grad.abs()
    x, weight, bias = (_leaf(each) for each in given)
    output = case.dense(x, weight, bias)  # type: ignore[arg-type]
    output.backward(grad)
    return Results(output.detach(), x.grad, weight.grad, None if bias is None else bias.grad)  # type: ignore[union-attr, arg-type]


def check(case: Case, wanted: str | Tensor, passes: tuple[bool, ...] = (True, True, True)) -> None:
    """Every result within the bound, and the weight gradient exactly zero where it is not wanted."""
    found, exact, bound = run_sparse(case, wanted, passes), run_dense(case), run_dense(case, magnitudes=True)
    receives = torch.ones_like(case.weight, dtype=torch.bool)
    if isinstance(wanted, Tensor):
        receives = wanted
    elif wanted == "active":
        receives = case.weight != 0
    for name in ("output", "x", "weight", "bias"):
        ours, theirs, size = (getattr(each, name) for each in (found, exact, bound))
        if ours is None:
            assert theirs is None
            continue
        assert ours.dtype is torch.float32
        assert ours.shape == theirs.shape
        if name == "weight":
            assert not ours[~receives].any(), "a gradient where none was wanted"
            theirs = theirs * receives
        error = (ours.double() - theirs).abs()
        assert bool((error <= RELATIVE_ERROR * size).all()), f"{name}: off by {float(error.max()):.2e}"


def sparse_weight(shape: tuple[int, ...], density: float, generator: torch.Generator) -> Tensor:
    weight = torch.randn(shape, generator=generator)
    return weight * (torch.rand(shape, generator=generator) < density)
