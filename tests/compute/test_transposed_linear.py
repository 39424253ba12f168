"""GPT-2's layers, transformers' Conv1D with the weight transposed: the kernels serve them, with the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import autosparse
from autosparse import GMP, RigL, kernels
from autosparse.compute import reasons, routing

from .conftest import KINDS_OF_GRADIENTS

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(not kernels.available(), reason=f"no native kernels: {kernels.why_not()}")


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model.train()


def losses_and_gradients(method: autosparse.methods.Method, mode: str, bfloat16: bool) -> list[Tensor]:
    model = gpt2()
    sp = autosparse.sparsify(model, method, epochs=2, steps_per_epoch=2, include="transformer.h.*")
    optimizer = torch.optim.SGD(sp.param_groups(), lr=0.5)
    sp.bind(optimizer)
    sp.compute(mode)
    layers = [layer for layer in sp.layers if layer.kind == "Conv1D"]
    assert len(layers) >= 7  # some methods keep the first one dense
    assert all(routing.fits(layer) for layer in layers)
    tokens, seen = torch.randint(0, 50, (4, 12), generator=torch.Generator().manual_seed(1)), []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        seen += [loss.detach(), *(layer.stored.grad for layer in layers)]
        optimizer.step()
    return seen


@pytest.mark.parametrize("bfloat16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("method", [*KINDS_OF_GRADIENTS, RigL(sparsity=0.8)], ids=str)
def test_kernels_and_torch_agree(method: autosparse.methods.Method, bfloat16: bool) -> None:
    tolerance = {"rtol": 0.1, "atol": 2e-3} if bfloat16 else {"rtol": 1e-4, "atol": 1e-6}
    ours, torchs = (losses_and_gradients(method, mode, bfloat16) for mode in ("sparse", "dense"))
    for number, (first, second) in enumerate(zip(ours, torchs, strict=True)):
        torch.testing.assert_close(first, second, **tolerance, msg=lambda text, number=number: f"{number}: {text}")


def test_a_subclass_with_another_forward_stays_with_torch() -> None:
    class Scaled(transformers.pytorch_utils.Conv1D):
        def forward(self, x: Tensor) -> Tensor:
            scaled: Tensor = 2 * super().forward(x)
            return scaled

    sp = autosparse.sparsify(nn.Sequential(Scaled(32, 32)), GMP(sparsity=0.8), epochs=1, steps_per_epoch=1)
    assert not routing.fits(sp.layers[0])
    assert reasons._odd_kind(sp.layers[0]) == "Scaled: no kernel"
