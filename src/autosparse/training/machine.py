"""Facts of the machine and the software that a result must be read with."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

from autosparse.common.processor import cpu_model as cpu_model


def installed_version(package: str) -> str:
    """The version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """What made a run."""
    from autosparse import __version__

    return {"autosparse": __version__, "torch": installed_version("torch"), "python": platform.python_version()}


def machine(device: str) -> dict[str, Any]:
    """Where a run was made."""
    import torch

    return {"cpu": cpu_model(), "cores": cores(), "threads": torch.get_num_threads(), "device": device}
