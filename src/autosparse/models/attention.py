"""Attention and feed-forward branches made of separate linear layers, so that each weight has a name of its own."""

import torch.nn.functional as F
from torch import Tensor, nn

from autosparse.models.checks import whole


class Attention(nn.Module):
    """Multi-head attention of `states` over `memory`; where `mask` is True a key may be seen."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        whole("heads", heads)
        if size % heads:
            raise ValueError(f"the model's size must be a multiple of heads, got size {size} and {heads} heads")
        self.heads = heads
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        self.out = nn.Linear(size, size)

    def forward(self, states: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = self.query(states), self.key(memory), self.value(memory)
        seen = F.scaled_dot_product_attention(self._split(query), self._split(key), self._split(value), attn_mask=mask)
        result: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return result

    def _split(self, states: Tensor) -> Tensor:
        batch, length, size = states.shape
        return states.reshape(batch, length, self.heads, size // self.heads).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with ReLU between them."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Linear(size, whole("feed_forward", hidden))
        self.contract = nn.Linear(hidden, size)

    def forward(self, states: Tensor) -> Tensor:
        result: Tensor = self.contract(F.relu(self.expand(states)))
        return result
