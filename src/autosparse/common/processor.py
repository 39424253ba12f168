"""The processor that this process runs on."""

from __future__ import annotations

import platform
import sys
from pathlib import Path


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
