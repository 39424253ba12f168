"""The build backend: scikit-build-core, but an editable install is a plain path file with the library beside the sources.

The import hook of scikit-build-core's own editable installs overrules PYTHONPATH and knows only the files of that day.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from scikit_build_core import build as backend
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)
from scikit_build_core.build import get_requires_for_build_wheel as get_requires_for_build_editable

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]
SOURCES = Path("src")


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """The package with the pages of the documentation inside, for `autosparse docs`."""
    settings = {**(config_settings or {}), "wheel.force-include.docs": "autosparse/docs"}
    return backend.build_wheel(wheel_directory, settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """A wheel that holds no package, only the path of the sources; the library is installed there."""
    with tempfile.TemporaryDirectory() as folder:
        path_file = Path(folder) / "sources"
        path_file.write_text(f"{SOURCES.resolve()}\n", encoding="utf-8")
        settings = {
            **(config_settings or {}),
            "wheel.packages": [],
            f"wheel.force-include.{path_file}": "autosparse.pth",
            "cmake.define.AUTOSPARSE_BESIDE_SOURCES": "ON",
        }
        return backend.build_wheel(wheel_directory, settings, metadata_directory)
