"""The processor that this process runs on."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

# What decides how fast the engines compute in low precision, by the system's names.
LOW_PRECISION = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8")


def instruction_sets() -> list[str]:
    """Those of the processor's instruction sets that decide how fast int8 and bfloat16 are; empty where unknown."""
    if sys.platform != "linux":
        return []
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            flags = line.partition(":")[2].split()
            return [name for name in LOW_PRECISION if name in flags]
    return []


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
