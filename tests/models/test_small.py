"""The small nets: shapes of the science notes, learning a tiny batch, clear errors."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autosparse.models import small_conv, small_transformer
from autosparse.models.attention import Attention

from .counting import macs, parameter_count, prunable


def final_loss(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(80):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize(
    "model", [small_conv, small_transformer, lambda: small_conv(width=8), lambda: small_transformer(rows=7, blocks=1)]
)
def test_overfits_a_tiny_batch(model: Callable[[], nn.Module]) -> None:
    images, labels = torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))
    assert final_loss(model(), images, labels) < 0.05


def test_small_conv_is_the_net_of_the_notes() -> None:
    model = small_conv()
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert [module.out_channels for module in convs] == [16, 16, 32, 32, 64, 64]
    assert [module.stride[0] for module in convs] == [2, 1, 2, 1, 2, 1]
    assert all(module.bias is None for module in convs)
    assert list(prunable(model)) == ["conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "fc"]
    assert sum(prunable(model).values()) == 144 + 2304 + 4608 + 9216 + 18432 + 36864 + 640 == 72_208
    assert parameter_count(model) == 72_208 + 2 * 2 * (16 + 32 + 64)
    # maps of 14x14, 7x7 and 4x4 pixels
    assert macs(model, 1, 28, 28) == 196 * (144 + 2304) + 49 * (4608 + 9216) + 16 * (18432 + 36864) + 640


def test_small_conv_arguments_change_its_shape() -> None:
    model = small_conv(classes=3, in_channels=2, width=8)
    assert model(torch.randn(4, 2, 8, 8)).shape == (4, 3)
    assert {name: tuple(p.shape) for name, p in model.named_parameters() if name in ("conv1.weight", "fc.weight")} == {
        "conv1.weight": (8, 2, 3, 3),
        "fc.weight": (3, 32),
    }


def test_small_conv_can_be_traced() -> None:
    model = small_conv().eval()
    images = torch.randn(2, 1, 28, 28)
    assert torch.equal(torch.fx.symbolic_trace(model)(images), model(images))


def test_small_transformer_is_the_net_of_the_notes() -> None:
    model = small_transformer()
    assert model.positions.shape == (14, 64)
    assert model.embed.in_features == 56
    linears = [f"attention.{part}" for part in ("query", "key", "value", "out")]
    linears += ["feed_forward.expand", "feed_forward.contract"]
    named = [f"blocks.{block}.{linear}" for block in range(2) for linear in linears]
    assert list(prunable(model)) == ["embed", *named, "head"]
    block = 4 * (64 * 64 + 64) + (64 * 128 + 128) + (128 * 64 + 64) + 4 * 64
    assert parameter_count(model) == (56 * 64 + 64) + 14 * 64 + 2 * block + 2 * 64 + (64 * 10 + 10)


def test_small_transformer_on_digits_has_a_token_a_row() -> None:
    model = small_transformer(image_size=8, rows=1)
    assert model.positions.shape == (8, 64)
    assert model(torch.randn(3, 1, 8, 8)).shape == (3, 10)


def test_small_transformer_arguments_change_its_shape() -> None:
    model = small_transformer(classes=3, in_channels=2, image_size=6, rows=3, size=8, blocks=1, heads=2, feed_forward=12)
    assert model(torch.randn(4, 2, 6, 6)).shape == (4, 3)
    sizes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert sizes["embed.weight"] == (8, 2 * 3 * 6)
    assert sizes["positions"] == (2, 8)
    assert sizes["blocks.0.feed_forward.expand.weight"] == (12, 8)
    assert "blocks.1.attention.query.weight" not in sizes
    assert [module.heads for module in model.modules() if isinstance(module, Attention)] == [2]


def test_a_token_holds_whole_neighbouring_rows_of_every_channel() -> None:
    model = small_transformer(in_channels=2, image_size=4, rows=2, size=4, heads=1)
    seen: list[torch.Tensor] = []
    model.embed.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    images = torch.zeros(1, 2, 4, 4)
    images[0, :, 2:] = 1.0
    model(images)
    assert seen[0].shape == (1, 2, 16)
    assert seen[0][0].sum(dim=1).tolist() == [0.0, 16.0]


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        small_conv(width=0)
    with pytest.raises(TypeError, match=r"width must be a whole number, got 0\.5 \(float\)"):
        small_conv(width=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="image_size must be a multiple of rows, got 28 and 3 rows"):
        small_transformer(rows=3)
    with pytest.raises(ValueError, match="multiple of heads, got size 64 and 5 heads"):
        small_transformer(heads=5)
    with pytest.raises(ValueError, match="blocks must be at least 1, got 0"):
        small_transformer(blocks=0)
    with pytest.raises(TypeError, match="classes must be a whole number, got True"):
        small_conv(classes=True)


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"images must be \(batch, 1, 28, 28\), got \(2, 3, 32, 32\)"):
        small_transformer()(torch.randn(2, 3, 32, 32))
