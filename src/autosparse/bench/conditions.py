"""Where something is measured, and with what: every figure must be read with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autosparse.training.machine import cores, cpu_model, installed_version


def conditions(kernels: str | None, packages: Sequence[str], **how: str) -> dict[str, Any]:
    """The machine, the kernels in use, versions, and `how` it is measured."""
    versions = {package: installed_version(package) for package in ("autosparse", "torch", *packages)}
    return {"cpu": cpu_model(), "cores": cores(), "kernels": kernels, **versions, **how}
