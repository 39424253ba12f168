"""Show versions, processor and devices."""

import platform
from typing import Any

import typer

PACKAGES = ("torch", "numpy", "safetensors", "pydantic", "PyYAML", "typer", "rich")


def run(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
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
    from autosparse.kernels.library import how_bfloat16_is_multiplied
    from autosparse.training.machine import cores, cpu_model, installed_version

    return {
        "autosparse": __version__,
        **{package.lower(): installed_version(package) for package in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": cores(),
        "torch_threads": torch.get_num_threads(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "native_kernels": kernels.instruction_set() if kernels.available() else f"none: {kernels.why_not()}",
        "bfloat16_kernels": how_bfloat16_is_multiplied(),
    }
