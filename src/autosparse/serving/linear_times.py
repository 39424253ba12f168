"""How long the linear layers of a served model take, which are modules of their own."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import nn

from autosparse.common.turns import clock_for
from autosparse.serving.linear import PackedLinear

ROUNDS = 10


def seconds_of_linears(model: nn.Module, call: Callable[[], object], threads: int) -> dict[PackedLinear, float]:
    """The least time of each while the model is called; that of a layer which a call uses more than once adds up."""
    layers = [part for part in model.modules() if isinstance(part, PackedLinear)]
    clock, began, spent = clock_for(threads), {}, dict.fromkeys(layers, 0.0)

    def before(layer: nn.Module, _: Any) -> None:
        began[layer] = clock()

    def after(layer: nn.Module, _: Any, __: Any) -> None:
        assert isinstance(layer, PackedLinear)
        spent[layer] += clock() - began[layer]

    least = dict.fromkeys(layers, math.inf)
    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(before))
            hooks.enter_context(layer.register_forward_hook(after))
        for _ in range(ROUNDS if layers else 0):
            spent.update(dict.fromkeys(layers, 0.0))
            call()
            least = {layer: min(least[layer], spent[layer]) for layer in layers}
    return {layer: seconds for layer, seconds in least.items() if seconds > 0}
