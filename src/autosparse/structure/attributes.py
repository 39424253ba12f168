"""The numbers that modules keep of their own size, after a cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from autosparse.layer import is_transposed_linear

# What other people call the number of heads, and the width of all heads together.
HEADS = frozenset({
    "heads", "num_heads", "n_heads", "n_head", "nhead", "num_attention_heads", "num_key_value_heads", "num_kv_heads",
    "num_q_heads", "h",
})  # fmt: skip
WIDTHS = frozenset({"all_head_size", "inner_dim", "inner_kv_dim", "attn_dim", "embed_dim", "dim", "hidden_size", "d_model"})


def sizes(module: nn.Module, groups: int | None) -> dict[str, Any]:
    """The attributes of a module of torch as its tensors are now; `groups` where their number has changed."""
    weight = getattr(module, "weight", None)
    shape = () if weight is None else tuple(weight.shape)
    if isinstance(module, _ConvTransposeNd):
        return {"in_channels": shape[0], "out_channels": shape[1] * module.groups}
    if isinstance(module, _ConvNd):
        count = module.groups if groups is None else groups
        return {"in_channels": shape[1] * count, "out_channels": shape[0], "groups": count}
    if isinstance(module, nn.Linear):
        return {"in_features": shape[1], "out_features": shape[0]}
    if is_transposed_linear(module):
        return {"nx": shape[0], "nf": shape[1]}
    if isinstance(module, _NormBase):
        mean = module.running_mean
        return {"num_features": len(mean) if mean is not None else shape[0] if shape else module.num_features}
    if isinstance(module, nn.GroupNorm):
        return {"num_channels": shape[0], "num_groups": module.num_groups if groups is None else groups}
    if isinstance(module, nn.Embedding):
        return {"num_embeddings": shape[0], "embedding_dim": shape[1]}
    if isinstance(module, nn.PReLU):
        return {"num_parameters": shape[0]}
    return {}


def head_counts(module: nn.Module, before: tuple[int, int], after: tuple[int, int]) -> Iterator[tuple[str, int]]:
    """The attributes that hold the number of heads, or the width of all together, with their new values."""
    for name, value in vars(module).items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        if name in HEADS and value == before[0]:
            yield name, after[0]
        elif name in WIDTHS and value == before[1]:
            yield name, after[1]
