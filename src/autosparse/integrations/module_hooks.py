"""Moments of a user's module for which its framework has no callback; the module's class is not touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from autosparse.cost import Recorder
from autosparse.sparsifier import Sparsifier


def follow(module: nn.Module, name: str, action: Callable[..., None]) -> None:
    """Do something after the module's method `name`, until `unfollow`."""
    unfollow(module, name)
    method = getattr(module, name)

    def followed(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        action(*args, **kwargs)
        return result

    vars(module)[name] = followed


def unfollow(module: nn.Module, *names: str) -> None:
    for name in names:
        vars(module).pop(name, None)


def count_macs(sp: Sparsifier, module: nn.Module, name: str) -> None:
    """Take the MACs from the next call of the module's method `name`, which may run its parts without its forward."""
    unfollow(module, name)
    method, recorder = getattr(module, name), Recorder(module)
    recorder.close()

    def watched(*args: Any, **kwargs: Any) -> Any:
        unfollow(module, name)
        result = recorder.call(method, module, *args, **kwargs)
        if sp.cost.profile is None and recorder.profile is not None:
            sp.ledger.set_profile(recorder.profile)
        return result

    vars(module)[name] = watched
