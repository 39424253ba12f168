"""Measured times in a file, written the moment they are taken: a run that is killed and resumed plans from the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from autosparse import kernels
from autosparse.common.files import read_json, write_json
from autosparse.common.warnings import warn
from autosparse.compute.planner import Planner, all_times

FORMAT, VERSION = "autosparse times", 1


class KeptTimes:
    """The file of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def give(self, planner: Planner) -> None:
        """Let a planner begin with what is in the file, and write what it measures; other kernels or threads measure anew."""
        if self.path.exists():
            try:
                content = read_times(self.path)
                if (content["kernels"], content["threads"]) == _conditions():
                    planner.add_times(content["times"])
            except (ValueError, OSError) as error:
                warn(f"{error}; layers are measured again, so that the last bits may differ from the run's before")
        planner.measured = self._write

    def _write(self, planner: Planner) -> None:
        kernel, threads = _conditions()
        times = planner.state_dict()["times"]
        write_json(self.path, {"format": FORMAT, "version": VERSION, "kernels": kernel, "threads": threads, "times": times})


def _conditions() -> tuple[str | None, int]:
    return kernels.instruction_set(), torch.get_num_threads()


def read_times(path: Path) -> Mapping[str, Any]:
    """The content of the file, checked."""
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
        raise ValueError(f"{path} is damaged, or not a file of measured times")
    try:
        all_times(content["times"])
        return {"kernels": str(content["kernels"]), "threads": int(content["threads"]), "times": content["times"]}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path} is damaged: its times cannot be read ({type(error).__name__}: {error})") from error
