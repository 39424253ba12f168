"""Convolutions of every kind run natively, or dense in torch with their reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autosparse.kernels import library
from autosparse.serving import kinds
from autosparse.serving.agreement import agree
from autosparse.serving.linear import PackedLinear
from autosparse.serving.native import NativeRegion

from .pairs import assert_same, deployed_beside, reason

pytestmark = [
    pytest.mark.skipif(library.engine() is None, reason=f"no engine: {library.why_not()}"),
    pytest.mark.filterwarnings("ignore:deploy"),
    pytest.mark.usefixtures("native_wins"),
]


class Branch(nn.Module):
    """Whatever is inside, torch.fx cannot follow."""

    def __init__(self, *inside: nn.Module) -> None:
        super().__init__()
        self.inside = nn.Sequential(*inside)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inside(x if float(x.sum()) < 1e9 else -x)
        return y


SEQUENCES, PICTURES = torch.randn(2, 6, 20), torch.randn(2, 6, 5, 5)
CONVOLUTIONS: dict[str, tuple[Callable[[], list[nn.Module]], Tensor, int]] = {
    "one": (lambda: [nn.Conv1d(6, 8, 3)], SEQUENCES, 1),
    "chain": (lambda: [nn.Conv1d(6, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 4, 5, 2, 2)], SEQUENCES, 1),
    "norm": (lambda: [nn.Conv1d(6, 8, 3, 2, 1, bias=False), nn.BatchNorm1d(8), nn.ReLU6()], SEQUENCES, 1),
    "dilated": (lambda: [nn.Conv1d(6, 8, 3, padding=4, dilation=4)], SEQUENCES, 1),
    "same": (lambda: [nn.Conv1d(6, 8, 5, padding="same")], SEQUENCES, 1),
    "grouped": (lambda: [nn.Conv1d(6, 8, 3, groups=2)], SEQUENCES, 1),
    "depthwise": (lambda: [nn.Conv1d(6, 6, 3, groups=6)], SEQUENCES, 1),
    "grouped pictures": (lambda: [nn.Conv2d(6, 8, 3, groups=2)], torch.randn(2, 6, 9, 9), 1),
    "depthwise pictures": (lambda: [nn.Conv2d(6, 6, 7, padding=3, groups=6)], torch.randn(2, 6, 9, 9), 1),
}


@pytest.mark.parametrize("wrap", [nn.Sequential, Branch])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_every_kind_have_a_kernel(name: str, wrap: Callable[..., nn.Module]) -> None:
    build, x, regions = CONVOLUTIONS[name]
    model, deployed = deployed_beside(wrap(*build()), x)
    assert len([part for part in deployed.modules() if isinstance(part, NativeRegion)]) == regions
    assert_same(deployed, model, x)
    assert_same(deployed, model, torch.cat([x, x], -1)[:1])
    assert not any("stay in torch" in note for note in deployed.notes if "layers are replaced" not in note)
    rows = deployed.layers(x)
    assert len(rows) == len([part for part in model.modules() if isinstance(part, nn.Conv1d | nn.Conv2d)])
    assert all(row.how != "torch" and not row.reason and row.microseconds for row in rows)


@pytest.mark.parametrize("change", [lambda x: x[0], lambda x: x[:, :3], lambda x: x[None], lambda x: x.double()])
@pytest.mark.parametrize("name", ["one", "chain", "grouped"])
def test_sequences_unlike_the_example(name: str, change: Callable[[Tensor], Tensor]) -> None:
    build, x, _ = CONVOLUTIONS[name]
    model, deployed = deployed_beside(nn.Sequential(*build()), x)
    try:
        with torch.no_grad():
            expected = model(change(x))
    except RuntimeError:
        with pytest.raises(RuntimeError):
            deployed(change(x))
    else:
        assert agree(deployed(change(x)), expected)


IN_TORCH: dict[str, tuple[Callable[[], nn.Module], Tensor, str]] = {
    "transposed": (lambda: nn.ConvTranspose2d(6, 4, 2, 2), PICTURES, "transposed convolutions have no kernel"),
    "transposed 1d": (lambda: nn.ConvTranspose1d(6, 4, 2, 2), SEQUENCES, "transposed convolutions have no kernel"),
    "three dimensions": (lambda: nn.Conv3d(6, 4, 2), torch.randn(2, 6, 3, 3, 3), "three dimensions have no kernel"),
    "reflected": (lambda: nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect"), PICTURES, "padding_mode='reflect'"),
    "strides": (lambda: nn.Conv2d(6, 4, 3, (2, 1)), PICTURES, r"unequal strides \(2, 1\)"),
    "reflected 1d": (lambda: nn.Conv1d(6, 4, 3, padding=1, padding_mode="circular"), SEQUENCES, "padding_mode='circular'"),
    "grows": (lambda: nn.Conv2d(6, 4, 2, padding=1), PICTURES, "layout cannot hold it"),
}  # fmt: skip


@pytest.mark.parametrize("wrap", [nn.Sequential, Branch])
@pytest.mark.parametrize("name", IN_TORCH)
def test_what_has_no_kernel_runs_dense_with_its_reason(name: str, wrap: Callable[..., nn.Module]) -> None:
    build, x, why = IN_TORCH[name]
    model, deployed = deployed_beside(wrap(build()), x)
    assert_same(deployed, model, x)
    (row,) = deployed.layers(x)
    assert row.how == "torch"
    assert re.search(why, row.reason)
    assert any("1 of 1 layers stay in torch" in note and re.search(why, note) for note in deployed.notes)


def test_recurrence_and_attention_name_their_reasons() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.attention = nn.LSTM(8, 8, batch_first=True), nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Any]:
            y, state = self.recurrent(x)
            return self.head(self.attention(y, y, y)[0]), state

    x = torch.randn(2, 5, 8)
    model, deployed = deployed_beside(Mixed(), x)
    assert_same(deployed, model, x)
    assert "recurrent" in reason(deployed, "recurrent")
    assert "attention projects" in reason(deployed, "attention")
    assert "MultiheadAttention computes" in reason(deployed, "attention.out_proj")
    assert [part.name for part in deployed.modules() if isinstance(part, PackedLinear)] == ["head"]


def test_a_conv1d_with_another_forward_is_no_linear_layer() -> None:
    conv1d = pytest.importorskip("transformers").pytorch_utils.Conv1D

    class Scaled(conv1d):  # type: ignore[misc, valid-type]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scaled: torch.Tensor = 2 * super().forward(x)
            return scaled

    assert kinds.is_linear(conv1d(8, 8))
    assert not kinds.is_linear(Scaled(8, 8))
