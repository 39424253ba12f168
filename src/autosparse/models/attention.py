"""Attention and feed-forward branches made of separate linear layers, so that every weight has its own name."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autosparse.models.checks import whole

KeysAndValues = tuple[Tensor, Tensor]  # both (batch, heads, length, size of a head)


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

    def forward(self, states: Tensor, memory: Tensor | KeysAndValues, mask: Tensor | None = None) -> Tensor:
        keys, values = memory if isinstance(memory, tuple) else self.keys_and_values(memory)
        attended = _attention(self.split(self.query(states)), keys, values, mask)
        result: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return result

    def keys_and_values(self, memory: Tensor) -> KeysAndValues:
        """What `forward` takes instead of `memory`, for callers that use it more than once."""
        return self.split(self.key(memory)), self.split(self.value(memory))

    def split(self, states: Tensor) -> Tensor:
        """(batch, length, size) as (batch, heads, length, size of a head)."""
        batch, length, size = states.shape
        return states.reshape(batch, length, self.heads, size // self.heads).transpose(1, 2)


def _attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    if queries.device.type == "cpu" and queries.dtype == torch.bfloat16:
        # torch's bf16 attention on a CPU takes 2 to 7 times as long as the fp32 one for sentences of 16 to 128 tokens
        with torch.autocast("cpu", enabled=False):
            seen = F.scaled_dot_product_attention(queries.float(), keys.float(), values.float(), attn_mask=mask)
        return seen.to(queries.dtype)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


class FeedForward(nn.Module):
    """Two linear layers with ReLU between them."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Linear(size, whole("feed_forward", hidden))
        self.contract = nn.Linear(hidden, size)

    def forward(self, states: Tensor) -> Tensor:
        result: Tensor = self.contract(F.relu(self.expand(states)))
        return result
