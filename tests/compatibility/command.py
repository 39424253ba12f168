"""`python -m autosparse` without the seconds that a new process takes to import torch."""

from __future__ import annotations

import io
import json
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch


def run_command(*arguments: str, code: int = 0) -> str:
    """What a command prints; one that ends with another exit code is an error."""
    output, errors = io.StringIO(), io.StringIO()
    ended = 0
    try:
        with patch.object(sys, "argv", ["autosparse", *arguments]), redirect_stdout(output), redirect_stderr(errors):
            runpy.run_module("autosparse", run_name="__main__")
    except SystemExit as stopped:
        ended = int(stopped.code or 0)
    assert ended == code, f"{arguments} ended with {ended}: {errors.getvalue()}"
    return output.getvalue()


def json_of(*arguments: str) -> Any:
    """What a command prints with --json."""
    return json.loads(run_command(*arguments, "--json"))
