"""Attention in bfloat16 inside models of Hugging Face that are served in int8; their own registry of attentions takes it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.kernels.library import Engine

NAME, PLAIN = "autosparse_bfloat16", "sdpa"
FEWEST_TOKENS = 32  # fewer are not worth the conversions


def use_narrow_attention(model: nn.Module, engine: Engine) -> None:
    """In place, where the processor multiplies bfloat16 and the model's attention is torch's own."""
    if engine.halves is None:
        return
    for part in model.modules():
        choose: Any = getattr(part, "set_attn_implementation", None)
        if callable(choose) and getattr(getattr(part, "config", None), "_attn_implementation", None) == PLAIN:
            _register()
            choose(NAME)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """softmax(scale * query key^T + mask) value for (samples, heads, tokens, columns), in bfloat16 with float32 sums."""
    narrow = {"dtype": torch.bfloat16, "memory_format": torch.contiguous_format}
    query, key, value = ((query * scale).to(**narrow), key.to(**narrow), value.to(**narrow))  # type: ignore[call-overload]
    scores = query @ key.transpose(-1, -2)
    if mask is not None:
        scores = (
            torch.where(mask, scores, torch.finfo(scores.dtype).min) if mask.dtype == torch.bool else scores + mask.to(scores)
        )
    return (torch.softmax(scores, -1) @ value).float()


def _register() -> None:
    functions: Any = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    masks: Any = import_module("transformers.masking_utils").ALL_MASK_ATTENTION_FUNCTIONS
    if NAME not in functions:
        plain = functions[PLAIN]
        masks.register(NAME, masks[PLAIN])
        functions.register(NAME, lambda *args, **named: _forward(plain, *args, **named))


def _forward(
    plain: Any, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **named: Any
) -> tuple[Tensor, None]:
    """As transformers' own, which computes what this one does not know."""
    causal = named.get("is_causal", getattr(module, "is_causal", True))
    given = {name for name, setting in named.items() if setting is not None and name not in ("scaling", "is_causal")}
    known = not causal and given <= {"dropout"} and not named.get("dropout")
    tensors = [query, key, value]
    fits = all(tensor.dtype == torch.float32 and tensor.shape[:2] == query.shape[:2] for tensor in tensors)
    if not (known and fits and query.shape[2] >= FEWEST_TOKENS and (mask is None or mask.dim() == query.dim())):
        result: tuple[Tensor, None] = plain(module, query, key, value, mask, **named)
        return result
    scale = named.get("scaling")
    attended = attend(query, key, value, mask, query.shape[-1] ** -0.5 if scale is None else scale)
    return attended.transpose(1, 2).contiguous(), None
