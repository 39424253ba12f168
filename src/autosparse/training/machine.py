"""Facts of the machine and the software that a result must be read with."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any


def installed_version(package: str) -> str:
    """The version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


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
