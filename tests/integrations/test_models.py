"""Other people's models, unmodified: sparsified, trained, saved, resumed, finalized and exported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

import autosparse
from autosparse import AutoSparse

from ..states import differences

EPOCHS, STEPS = 2, 4
METHOD = AutoSparse(target_sparsity=0.6)


class Sequence(nn.Module):
    """torch's LSTM, both ways and two layers deep, behind an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.lstm = nn.LSTM(8, 12, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(24, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embed(tokens))[0][:, -1])
        return logits


class Nested(nn.Module):
    """A block that runs twice, a weight tied between two layers, modules in dicts in lists, and a free parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(12, 12)
        shared = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12))
        self.blocks = nn.ModuleList([nn.ModuleDict({"body": shared, "norm": nn.LayerNorm(12)}) for _ in range(2)])
        self.encode, self.decode = nn.Linear(12, 12), nn.Linear(12, 12, bias=False)
        self.decode.weight = self.encode.weight
        self.mixing = nn.Parameter(torch.randn(12, 12) / 4)

    def forward(self, data: Tensor) -> Tensor:
        hidden = self.stem(data)
        for block in self.blocks:
            hidden = block["norm"](hidden + block["body"](hidden))
        output: Tensor = self.decode(torch.tanh(self.encode(hidden))) @ self.mixing
        return output


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]
    layers: int  # counted by hand
    options: dict[str, Any] = field(default_factory=dict)
    warning: str | None = None


def tokens(**names: int) -> Callable[[], dict[str, Tensor]]:
    return lambda: {name: torch.randint(30, (4, length)) for name, length in names.items()}


def reals(**shapes: tuple[int, ...]) -> Callable[[], dict[str, Tensor]]:
    return lambda: {name: torch.randn(4, *shape) for name, shape in shapes.items()}


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
GPT2 = {"n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
CASES = {
    # query, key, value, output, two feed-forward; pooler and classifier
    "BERT": Case(lambda: BertForSequenceClassification(BertConfig(vocab_size=30, **SIZES)), tokens(input_ids=8), 2 * 6 + 2),
    # c_attn, c_proj, c_fc, c_proj; the head is tied to the embedding
    "GPT-2": Case(
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=30, **GPT2)), tokens(input_ids=8), 2 * 4, warning="lm_head is left dense"
    ),
    # the patches' convolution, six a block, the classifier
    "ViT": Case(
        lambda: ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, **SIZES)),
        reals(pixel_values=(3, 8, 8)),
        1 + 2 * 6 + 1,
    ),
    # the stem; two stages of one block with two convolutions and a shortcut; the classifier
    "ResNet": Case(
        lambda: ResNetForImageClassification(
            ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
        ),
        reals(pixel_values=(3, 32, 32)),
        1 + 2 + 3 + 1,
    ),
    # in_proj, out_proj and two linear layers in the encoder; a second attention in the decoder
    "nn.Transformer": Case(lambda: nn.Transformer(16, 2, 1, 1, 32, batch_first=True), reals(src=(6, 16), tgt=(5, 16)), 4 + 6),
    # weight_ih and weight_hh of two layers in two directions; the head
    "LSTM": Case(Sequence, tokens(tokens=6), 8 + 1),
    # the stem, two of the shared body, the tied pair, the parameter
    "nested and shared": Case(Nested, reals(data=(12,)), 5, {"include": (nn.Linear, "mixing")}),
}


class Run:
    """A plain loop around somebody's model."""

    def __init__(self, case: Case, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = case.build()
        self.kind, self.keys = type(self.model), list(self.model.state_dict())
        self.sp = autosparse.sparsify(self.model, METHOD, epochs=EPOCHS, steps_per_epoch=STEPS, **case.options)
        self.opt = torch.optim.AdamW(self.sp.param_groups(weight_decay=0.01), lr=1e-2)
        self.sp.bind(self.opt)
        self.inputs = case.inputs

    def train(self, steps: int) -> None:
        self.model.train()
        for _ in range(steps):
            torch.manual_seed(100 + self.sp.step)  # data and dropout of a step are the same in every run
            loss = first_tensor(self.model(**self.inputs())).square().mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if self.sp.step % STEPS == 0:
                self.sp.end_epoch(loss=loss)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "opt": self.opt.state_dict(), "sp": self.sp.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        for part in ("model", "opt", "sp"):
            getattr(self, part).load_state_dict(state[part])


def first_tensor(output: Any) -> Tensor:
    found = output if isinstance(output, Tensor) else output.logits
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor")
def test_the_whole_life_of_a_model(name: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    case = CASES[name]
    run = Run(case, seed=0)
    assert len(run.sp.layers) == case.layers
    run.train(STEPS + 1)
    torch.save(run.state(), tmp_path / "run.pt")
    run.train(STEPS - 1)
    assert run.sp.sparsity() == pytest.approx(0.6, abs=0.02)
    assert run.sp.cost.test_fraction < 0.9
    assert all(layer.macs for layer in run.sp.report().layers)

    resumed = Run(case, seed=1)
    resumed.load(torch.load(tmp_path / "run.pt", weights_only=True))
    resumed.train(STEPS - 1)
    assert differences(resumed.state(), run.state()) == []
    said = {str(each.message) for each in recwarn if issubclass(each.category, autosparse.SparsityWarning)}
    assert len(said) == (case.warning is not None)
    assert all(str(case.warning) in each for each in said)

    run.model.eval()
    inputs, zeros = case.inputs(), sum(layer.zeros for layer in run.sp.report().layers)
    with torch.no_grad():
        before = first_tensor(run.model(**inputs))
        plain = run.sp.finalize()
        after = first_tensor(plain(**inputs))
        assert plain is run.model
        assert type(plain) is run.kind
        assert list(plain.state_dict()) == run.keys
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-6)
        exported = torch.export.export(plain, (), inputs)
        torch.testing.assert_close(first_tensor(exported.module()(**inputs)), after, rtol=1e-4, atol=1e-6)
    keys = {layer.places[0].key for layer in run.sp.layers}
    assert sum(int((exported.state_dict[key] == 0).sum()) for key in keys) == zeros


@pytest.mark.filterwarnings("ignore:lm_head is left dense")
def test_gpt2_stores_its_inputs_first_and_its_plain_state_keeps_ties() -> None:
    model = CASES["GPT-2"].build()
    method = AutoSparse(threshold="channel", target_sparsity=0.6)
    sp = autosparse.sparsify(model, method, epochs=EPOCHS, steps_per_epoch=STEPS)
    assert [layer.kind for layer in sp.layers] == ["Conv1D"] * 8
    assert [tuple(each.shape) for each in sp.thresholds()[:2]] == [(1, 48), (1, 16)]
    plain = sp.dense_state_dict()
    assert plain["lm_head.weight"].data_ptr() == plain["transformer.wte.weight"].data_ptr()
    assert plain["transformer.wte.weight"].data_ptr() != model.transformer.wte.weight.data_ptr()
