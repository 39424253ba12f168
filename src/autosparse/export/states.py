"""What of a model goes into a file: its plain tensors, tied ones once, weights in fewer bits if the user asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from autosparse.common.precisions import PRECISIONS, precision_name
from autosparse.common.tensors import is_sharded
from autosparse.parametrizations import SparseParametrization
from autosparse.quantization.affine import WEIGHT_LIMIT, quantize_weight, weight_scales
from autosparse.quantization.fake import is_quantization_aware

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in PRECISIONS}


@dataclass(frozen=True)
class State:
    """Tensors by name, on the CPU and contiguous; `tied` maps further names to the one that holds the tensor."""

    tensors: dict[str, Tensor]
    tied: dict[str, str]

    def all(self) -> dict[str, Tensor]:
        """Every name, tied ones too."""
        return {**self.tensors, **{name: self.tensors[target] for name, target in self.tied.items()}}


def plain_state(model: nn.Module | Mapping[str, Any]) -> State:
    """The tensors of a finished model or of a plain state_dict."""
    if isinstance(model, nn.Module):
        refuse_sparsified(model)
        model = model.state_dict()
    elif not isinstance(model, Mapping):
        raise TypeError(f"give a model or a state_dict, got {type(model).__name__}")
    tensors: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    places: dict[Any, str] = {}
    for name, value in model.items():
        _check(name, value)
        # equal places alone make a tie: views of different parts of one storage are tensors of their own
        place = (value.device, value.data_ptr(), value.shape, value.stride(), value.dtype) if value.numel() else name
        if place in places:
            tied[name] = places[place]
        else:
            places[place] = name
            tensors[name] = value.detach().cpu().contiguous()
    return State(tensors, tied)


def refuse_sparsified(model: nn.Module) -> None:
    """A model with thresholds or masks still on its weights is not what will be used."""
    for name, module in model.named_modules():
        for parametrization in getattr(module, "parametrizations", {}).values() if parametrize.is_parametrized(module) else ():
            if any(isinstance(part, SparseParametrization) for part in parametrization):
                raise ValueError(
                    f"the model is still being trained sparsely ({name or 'the model itself'} has its threshold or mask on): "
                    "call sp.finalize() first, or save sp.dense_state_dict()"
                )
    if is_quantization_aware(model):
        raise ValueError("the model still trains with fake quantization: call finalize() on what quantize_aware returned first")


def compact(tensor: Tensor) -> Tensor:
    """The tensor without the rest of a larger storage that it is a view of, which a file would take along."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _check(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; only tensors can be saved (a module's extra state cannot)")
    if is_sharded(value):
        raise ValueError(f"{name} is sharded over processes: build a plain model and call sp.finalize(into=plain) first")
    if value.is_meta:
        raise ValueError(f"{name} is on the meta device: it has no numbers to save")
    if value.layout != torch.strided or value.is_quantized:
        raise ValueError(f"{name} is a {value.layout} tensor; make it an ordinary one with .to_dense() first")


def precision(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The precision that the user names."""
    if dtype is None or isinstance(dtype, torch.dtype):
        if dtype is not None and dtype not in DTYPES.values():
            raise ValueError(f"dtype {dtype} is not known; give {', '.join(PRECISIONS)}, or none to keep what the model has")
        return dtype
    return DTYPES[precision_name(dtype, "dtype")]


def narrow(name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A weight with numbers of at most this precision; vectors (biases, norms and their statistics) stay as they are."""
    if dtype is None or tensor.ndim < 2 or not tensor.is_floating_point() or tensor.itemsize <= dtype.itemsize:
        return tensor
    narrowed = tensor.to(dtype)
    if bool((narrowed.isinf() & tensor.isfinite()).any()):
        raise ValueError(
            f"{name} has numbers beyond the range of {dtype}: use bfloat16, which has the range of float32, or float32"
        )
    return narrowed


def as_integers(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """A weight as int8 with one scale per row; what that does not suit (vectors, NaN, tiny rows) as it is, without scales."""
    if not tensor.is_floating_point() or tensor.ndim < 2 or tensor.itemsize < 2 or not bool(tensor.float().isfinite().all()):
        return tensor, None
    if tensor.numel() + 4 * len(tensor) >= tensor.nbytes:
        return tensor, None
    scales = weight_scales(tensor)
    if not bool((scales * WEIGHT_LIMIT).to(tensor.dtype).isfinite().all()):
        return tensor, None
    return quantize_weight(tensor, scales), scales
