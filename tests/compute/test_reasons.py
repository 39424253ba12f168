"""Why a layer is dense: the true reason for every kind of layer and of training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import autosparse
from autosparse import AutoSparse, kernels
from autosparse.kernels import library
from autosparse.sparsifier import Sparsifier

pytestmark = pytest.mark.skipif(not kernels.available(), reason="without kernels there is one reason for all")


def trained(
    model: nn.Module,
    x: Tensor,
    start: float = 0.9,
    autocast: torch.dtype | None = None,
    call: Callable[..., object] | None = None,
) -> Sparsifier:
    """A model after one step, in which the planner has looked at it."""
    method = AutoSparse(start_sparsity=start, alpha=0.0, schedule="constant")
    sp = autosparse.sparsify(model, method, epochs=1, steps_per_epoch=10, guard=None)
    optimizer = torch.optim.SGD(sp.param_groups(weight_decay=1e-4), lr=0.01)
    sp.bind(optimizer)
    with torch.autocast("cpu", autocast) if autocast else nullcontext():
        output = (model if call is None else call)(x)
    first = output[0] if isinstance(output, tuple) else output
    first.float().square().mean().backward()
    optimizer.step()
    return sp


def reasons(sp: Sparsifier) -> list[str]:
    return [plan.reason for plan in sp.layer_plans()]


def test_small_layers_and_layers_without_zeros() -> None:
    assert all(reason.startswith("too small: ") for reason in reasons(trained(nn.Linear(4, 4), torch.randn(2, 4))))
    (reason,) = reasons(trained(nn.Linear(512, 256), torch.randn(256, 512), start=0.3))
    assert reason == "not yet sparse enough: kernels gain from 40% zeros on"


@pytest.mark.parametrize(
    ("model", "shape", "reason"),
    [
        (nn.Conv2d(4, 4, 3, groups=2), (2, 4, 8, 8), "grouped convolution: no kernel"),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), (2, 4, 8, 8), "padding_mode 'circular': no kernel"),
        (nn.ConvTranspose2d(4, 4, 2), (2, 4, 8, 8), "ConvTranspose2d: no kernel"),
        (nn.Conv1d(4, 4, 3), (2, 4, 8), "Conv1d: no kernel"),
        (nn.LSTM(4, 4), (3, 2, 4), "torch's own RNN kernel computes it"),
    ],
)
def test_kinds_without_a_kernel(model: nn.Module, shape: tuple[int, ...], reason: str) -> None:
    assert set(reasons(trained(model, torch.randn(shape)))) == {reason}


def test_attention() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            attended: Tensor = self.attention(x, x, x)[0]
            return attended

    assert set(reasons(trained(Attends(), torch.randn(2, 3, 8)))) == {"attention's own kernel computes it"}


def test_autocast_and_double_precision() -> None:
    half = trained(nn.Linear(8, 8), torch.randn(2, 8), autocast=torch.float16)
    assert reasons(half) == ["autocast: the kernels take bfloat16 alone"]
    (plan,) = trained(nn.Linear(8, 8), torch.randn(2, 8), autocast=torch.bfloat16).layer_plans()
    assert str(plan).startswith("dense in bfloat16: too small")
    assert "float64" in reasons(trained(nn.Linear(8, 8).double(), torch.randn(2, 8).double()))[0]


def test_bfloat16_where_no_kernel_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIABLE, "portable")
    library.load.cache_clear()
    (reason,) = reasons(trained(nn.Linear(8, 8), torch.randn(2, 8), autocast=torch.bfloat16))
    assert reason == "autocast: no bfloat16 kernels for portable, they need AVX2 or AVX-512"


def test_compiled() -> None:
    model = nn.Linear(8, 8)
    torch._dynamo.reset()
    sp = trained(model, torch.randn(2, 8), call=lambda x: torch.compile(model, backend="eager")(x))
    assert reasons(sp) == ["compiled"]


def test_what_the_user_chose_and_what_is_still_to_come() -> None:
    model = nn.Linear(8, 8)
    sp = autosparse.sparsify(model, AutoSparse(), epochs=1, steps_per_epoch=10)
    torch._dynamo.utils.counters.clear()
    assert reasons(sp) == ["not measured yet"]
    sp.compute("dense")
    assert reasons(sp) == ['sp.compute("dense")']
    sp.finalize()
    assert reasons(sp) == ["finalized"]


def test_a_layer_that_skips_zeros_says_in_which_passes() -> None:
    model = nn.Linear(8, 8)
    sp = autosparse.sparsify(model, AutoSparse(alpha=0.5), epochs=1, steps_per_epoch=10)
    sp.compute("sparse")
    (plan,) = sp.layer_plans()
    assert str(plan) == "skips zeros: all passes"
    assert "skips zeros" in str(sp)
