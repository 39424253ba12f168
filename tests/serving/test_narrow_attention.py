"""Attention in bfloat16 inside models of Hugging Face that are served in int8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import autosparse
from autosparse.kernels import library
from autosparse.serving.quantized import attention

transformers = pytest.importorskip("transformers")
engine = library.engine()
pytestmark = [
    pytest.mark.skipif(engine is None or engine.halves is None, reason="the processor multiplies no bfloat16"),
    pytest.mark.filterwarnings("ignore:deploy"),
]
TOKENS = 40


@pytest.mark.parametrize("mask", ["none", "bool", "float"])
def test_attention_is_that_of_torch(mask: str) -> None:
    query, key, value = torch.randn(3, 2, 4, TOKENS, 16).unbind(0)
    allowed = torch.rand(2, 1, TOKENS, TOKENS) < 0.7
    allowed[..., 0] = True
    given = {"none": None, "bool": allowed, "float": torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)}[mask]
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=given, scale=0.3)
    found = attention.attend(query, key, value, given, 0.3)
    assert found.dtype == torch.float32
    assert 0 < float((found - expected).norm() / expected.norm()) < 0.01


def bert(**settings: Any) -> torch.nn.Module:
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**sizes), **settings).eval()  # type: ignore[no-any-return]


def test_a_served_bert_attends_in_bfloat16_and_the_users_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = bert(), []
    inner = attention.attend
    monkeypatch.setattr(attention, "attend", lambda *given: calls.append(given[3]) or inner(*given))
    tokens = torch.randint(3, 64, (2, TOKENS))
    batch = {"input_ids": tokens, "attention_mask": (torch.arange(TOKENS) < torch.tensor([[TOKENS], [30]])).long()}
    served = autosparse.deploy(model, batch, threads=1, precision="int8", calibration=[batch])
    assert model.config._attn_implementation == "sdpa"
    calls.clear()
    with torch.no_grad():
        found, expected = served(**batch).last_hidden_state, model(**batch).last_hidden_state
    assert len(calls) == 2
    assert calls[0] is not None
    assert float((found - expected).norm() / expected.norm()) < 0.05
    short = tokens[:, : attention.FEWEST_TOKENS - 1]
    served(short)
    assert len(calls) == 2


def test_float32_and_decoders_keep_their_attention() -> None:
    tokens = torch.randint(3, 64, (1, TOKENS))
    assert autosparse.deploy(bert(), (tokens,), threads=1).config._attn_implementation == "sdpa"
    config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=4)
    writer = autosparse.deploy(
        transformers.GPT2LMHeadModel(config).eval(), (tokens,), threads=1, precision="int8", calibration=[(tokens,)]
    )
    assert writer.config._attn_implementation == "sdpa"


def test_a_loaded_bert_attends_in_the_same_way(tmp_path: Path) -> None:
    tokens = torch.randint(3, 64, (1, TOKENS))
    served = autosparse.deploy(bert(), (tokens,), threads=1, precision="int8", calibration=[(tokens,)])
    served.save(tmp_path / "served")
    again = autosparse.load_deployed(tmp_path / "served", bert())
    assert again.config._attn_implementation == served.config._attn_implementation == attention.NAME
    assert torch.equal(again(tokens).last_hidden_state, served(tokens).last_hidden_state)
