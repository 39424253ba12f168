"""`autosparse env`: what a bug report needs to say about the machine."""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

PACKAGES = ("torch", "numpy", "safetensors", "pydantic", "PyYAML", "typer", "rich")


def run(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Show versions, processor and devices."""
    from autosparse.cli.output import print_json

    facts = environment()
    if as_json:
        print_json(facts)
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        shown = ("yes" if value else "no") if isinstance(value, bool) else value
        print(f"{name.replace('_', ' '):<{width}}  {shown}")


def environment() -> dict[str, Any]:
    """Facts by name, in the order they are shown."""
    import torch

    from autosparse import __version__, kernels

    return {
        "autosparse": __version__,
        **{package.lower(): installed_version(package) for package in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "native_kernels": kernels.instruction_set() if kernels.available() else f"none: {kernels.why_not()}",
    }


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
