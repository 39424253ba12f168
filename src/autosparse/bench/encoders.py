"""Encoders that `bench infer` knows by a name, built from their configuration: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autosparse.common.packages import need

NAMES = ("bert_base",)
TOKENS = 128


def bert_base() -> nn.Module:
    """BERT-base of Hugging Face with new weights."""
    transformers: Any = need("transformers", "bert_base", "transformers")
    model: nn.Module = transformers.BertModel(transformers.BertConfig()).eval()
    return model


def sentences(batch: int) -> Tensor:
    """Ids of tokens."""
    return torch.randint(1000, 30000, (batch, TOKENS))
