"""Whole networks: half of their channels die, and the smaller ones compute the same, train on, and are saved and loaded."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForSequenceClassification

import autosparse
from autosparse.export import save_onnx
from autosparse.models import mobilenet_v1, resnet20, small_conv, small_transformer
from autosparse.structure import CannotFollow, Plan

from .kill import kill_half, trained_looking

IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
DIGITS = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
TOKENS = {"input_ids": torch.arange(24).reshape(2, 12), "attention_mask": torch.ones(2, 12, dtype=torch.long)}


def bert() -> nn.Module:
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 50}
    return BertForSequenceClassification(BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "resnet20": (resnet20, IMAGES),
    "mobilenet": (lambda: mobilenet_v1(width=0.125, classes=10), IMAGES),
    "small_conv": (lambda: small_conv(width=4), DIGITS),
    "transformer": (lambda: small_transformer(image_size=8, rows=1, size=16, blocks=1, heads=4, feed_forward=32), DIGITS),
    "bert": (bert, TOKENS),
}


SLOW = pytest.mark.slow


def call(model: nn.Module, example: Any) -> Tensor:
    output = model(**example) if isinstance(example, dict) else model(example)
    return output if isinstance(output, Tensor) else output.logits


def flops(model: nn.Module, example: Any) -> int:
    """By torch's own counter, with attention in products that it knows."""
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        call(model.eval(), example)
    return counter.get_total_flops()


@pytest.mark.parametrize("name", [pytest.param(each, marks=SLOW if each == "mobilenet" else ()) for each in NETWORKS])
def test_a_network_without_its_dead_channels(name: str, tmp_path: Path) -> None:
    build, example = NETWORKS[name]
    torch.manual_seed(0)
    model = build()
    trained_looking(model)
    assert kill_half(model, example) > 3
    before, kinds = copy.deepcopy(model), [type(module) for module in model.modules()]
    report = autosparse.shrink(model, example)
    assert report.removed > 0
    assert sum(parameter.numel() for parameter in model.parameters()) == report.parameters_after < report.parameters_before
    assert [type(module) for module in model.modules()] == kinds
    assert list(model.state_dict()) == list(before.state_dict())
    for training in (True, False):
        expected, found = (call(copy.deepcopy(each).train(training), example) for each in (before, model))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert flops(model, example) < flops(before, example)
    train_a_step(model, example)
    # a second time nothing is left to do: what has moved is alive
    autosparse.save_sparse(model, tmp_path / "model.safetensors")
    (tmp_path / "plan.json").write_text(json.dumps(report.plan.to_dict()))
    fresh = autosparse.shrink_like(build(), json.loads((tmp_path / "plan.json").read_text()))
    autosparse.load_sparse(tmp_path / "model.safetensors", fresh)
    assert torch.equal(call(fresh.eval(), example), call(model.eval(), example))


def train_a_step(model: nn.Module, example: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    call(model.train(), example).square().sum().backward()
    optimizer.step()
    assert any(not torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_a_plan_of_another_model_is_refused() -> None:
    model = small_conv(width=4)
    kill_half(model, DIGITS)
    plan = autosparse.shrink(model, DIGITS).plan
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    with pytest.raises(ValueError, match=r"the plan is of another model: it cuts bn1\.weight of shape"):
        autosparse.shrink_like(small_conv(width=8), plan)


@pytest.mark.slow
def test_a_shrunk_network_is_written_to_onnx(tmp_path: Path) -> None:
    model = small_conv(width=4)
    trained_looking(model)
    kill_half(model, DIGITS)
    autosparse.shrink(model, DIGITS)
    assert save_onnx(model, tmp_path / "model.onnx", [DIGITS]) < 1e-4


def test_a_training_mode_that_needs_more_than_one_sample_is_still_looked_at() -> None:
    model = small_conv(width=4)
    kill_half(model, DIGITS)
    assert autosparse.shrink(model, DIGITS[:1]).notes == ()


def test_finalize_shrinks_after_any_method() -> None:
    """Here STR, whose threshold is above every weight of some channels."""
    torch.manual_seed(0)
    model = small_conv(width=4)
    with torch.no_grad():
        model.conv3.weight[[1, 5]] *= 1e-3
    sp = autosparse.sparsify(model, autosparse.STR(start_sparsity=0.5), epochs=1, steps_per_epoch=1, example_input=DIGITS)
    expected = model.eval()(DIGITS)
    assert sp.finalize(shrink=True) is model
    assert sp.shrinkage is not None
    assert model.conv3.out_channels <= 6
    torch.testing.assert_close(model(DIGITS), expected, rtol=1e-5, atol=1e-6)
    other = autosparse.sparsify(small_conv(width=4), autosparse.STR(), epochs=1, steps_per_epoch=1)
    with pytest.raises(ValueError, match="give it an example_input"):
        other.finalize(shrink=True)
    assert other.finalize(shrink=True, example_input=DIGITS) is not None


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x)) if x.sum() > 0 else self.first(self.second(x))
        return result


def test_a_forward_that_looks_at_values_is_refused_in_plain_words() -> None:
    with pytest.raises(CannotFollow, match="Deciding: its forward decides by the values of a tensor"):
        autosparse.sparsify(Deciding(), autosparse.method("3sp"), epochs=1, steps_per_epoch=2, example_input=torch.ones(2, 8))
