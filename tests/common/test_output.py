"""Streams that break are given up, and the work goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRINTS = """
import os, sys
from autosparse.common.output import unbreakable_output
with unbreakable_output():
    for stream in (sys.stdout, sys.stderr):
        for _ in range(3):
            print("a line", file=stream, flush=True)
    if sys.argv[1] == "closed":
        sys.stdout.close()
        print("a line", flush=True)
    number = os.open(os.devnull, os.O_RDONLY)
    assert number > 2, f"a file of ours was opened as {number}"
    open(sys.argv[2], "w").write("worked to the end")
"""


@pytest.mark.parametrize("output", ["broken pipe", "full disk", "none", "closed"])
def test_work_goes_on_without_its_output(tmp_path: Path, output: str) -> None:
    if output == "full disk" and not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    redirections = {"broken pipe": "2>&1 | true", "full disk": ">/dev/full 2>&1", "none": ">&- 2>&- <&-", "closed": ""}
    (tmp_path / "prints.py").write_text(PRINTS)
    command = (
        f"set -o pipefail; {sys.executable} {tmp_path / 'prints.py'} '{output}' {tmp_path / 'done'} {redirections[output]}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "done").read_text() == "worked to the end"
    assert "Exception ignored" not in done.stderr
