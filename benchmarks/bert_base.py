"""BERT-base from its configuration, with random weights: eight sequences of 128 tokens, for `autosparse bench train`.

autosparse bench train bert_base:build --inputs bert_base:batch --sparsity 0.9 --precision bfloat16
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import BertConfig, BertModel, PreTrainedModel

SEQUENCES, TOKENS = 8, 128


def build() -> PreTrainedModel:
    model: PreTrainedModel = BertModel(BertConfig(return_dict=False), add_pooling_layer=False)
    return model.train()


def batch() -> Tensor:
    return torch.randint(1000, 30000, (SEQUENCES, TOKENS), generator=torch.Generator().manual_seed(0))
