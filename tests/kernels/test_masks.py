"""The product with a mask by the kernels: torch's own bits, for every instruction set."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autosparse import functional
from autosparse.functional import gated_mask
from autosparse.kernels import masks


def results(weight: Tensor, grad: Tensor, mask: Tensor, gate: float | None, receives: Tensor | None) -> list[Tensor]:
    leaf = weight.clone().requires_grad_()
    effective = gated_mask(leaf, mask, gate, receives)
    effective.backward(grad)
    assert leaf.grad is not None
    return [effective.detach(), leaf.grad]


@pytest.mark.parametrize("shape", [(1,), (7, 5), (8, 3, 3, 3), (130, 140), (20001,)])
@pytest.mark.parametrize("gate", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("restricted", [False, True])
def test_it_equals_torch(instruction_set: str, shape: tuple[int, ...], gate: float | None, restricted: bool) -> None:
    weight, grad = torch.randn(shape), torch.randn(shape)
    if len(shape) == 4:
        weight = weight.contiguous(memory_format=torch.channels_last)
    mask = torch.rand_like(weight) < 0.4
    receives = torch.rand_like(weight) < 0.7 if restricted else None
    assert masks.fits(weight, mask, receives)
    ours = results(weight, grad, mask, gate, receives)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional.masks, "fits", lambda *_, **__: False)
        theirs = results(weight, grad, mask, gate, receives)
    for mine, torchs in zip(ours, theirs, strict=True):
        assert torch.equal(mine.view(torch.int32), torchs.view(torch.int32)), "signs of zeros too"
        assert mine.stride() == torchs.stride()


def test_it_counts_what_is_left_outside_the_mask(instruction_set: str) -> None:
    torch.set_num_threads(2)
    weight, mask = torch.randn(40_000), torch.rand(40_000) < 0.5
    product, strays = masks.masked_product(weight, mask)
    assert strays == int((~mask).sum())
    assert masks.masked_product(product, mask)[1] == 0
    assert masks.masked_product(product, mask, into=product)[0] is product


def test_not_a_number_is_not_hidden(instruction_set: str) -> None:
    product, _ = masks.masked_product(torch.tensor([float("nan"), 2.0]), torch.tensor([False, True]))
    assert product.isnan().tolist() == [True, False]


def test_what_cannot_be_read_directly_goes_to_torch(native: None) -> None:
    weight, mask = torch.randn(4, 6), torch.ones(4, 6, dtype=torch.bool)
    assert masks.fits(weight, mask)
    assert not masks.fits(weight.double(), mask)
    assert not masks.fits(weight.t(), mask.t().contiguous())
    assert not masks.fits(weight[:, ::2], mask[:, ::2])
    assert not masks.fits(weight, mask.float())
    twice = torch.autograd.gradgradcheck
    assert twice(lambda w: gated_mask(w, mask[0, :3], 0.5).square(), torch.randn(3, dtype=torch.double, requires_grad=True))
