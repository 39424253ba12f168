"""The processor that this process runs on."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

# What decides how fast the engines compute in low precision, by the system's names.
LOW_PRECISION = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8")


def _first_value(name: str) -> str:
    """What the system says of its first processor under this name; nothing where it does not tell."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def instruction_sets() -> list[str]:
    """Those of the processor's instruction sets that decide how fast int8 and bfloat16 are; empty where unknown."""
    flags = _first_value("flags").split()
    return [name for name in LOW_PRECISION if name in flags]


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    return _first_value("model name") or platform.processor() or platform.machine()
