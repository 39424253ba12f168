"""Forks processes that run `autosparse` with everything imported, since a trial would spend most of its time on imports.

One JSON object per line on stdin: the arguments, the folder, the environment, limits and the file for the output; the exit
code goes to stdout. Run by killing.py, never imported.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).with_name("startup")))

import matplotlib.pyplot
import sitecustomize as startup
import sklearn.datasets
import torch.utils.tensorboard  # noqa: F401

from autosparse.cli import main
from autosparse.export import hub, onnx  # noqa: F401
from autosparse.report import write_report  # noqa: F401
from autosparse.training import run  # noqa: F401

SECONDS = 60  # ten times what a command takes


def be_born(order: dict[str, Any]) -> None:
    """Become the process that the command would be."""
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for descriptor, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(source, descriptor)
    os.chdir(order["folder"])
    os.environ.update(order["environment"])
    limit(order["limits"])
    sys.argv = ["autosparse", *order["arguments"]]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    startup.begin()
    main(order["arguments"])


def limit(limits: dict[str, int]) -> None:
    """Bytes of a file, and bytes of memory beyond what the imports take."""
    if "file" in limits:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file"], limits["file"]))
    if "memory" in limits:
        # Thread.start waits for ever for a thread that had no memory to begin: as under a batch system, time is limited too
        signal.alarm(SECONDS)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + limits["memory"],) * 2)


def serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            be_born(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    matplotlib.pyplot.switch_backend("agg")
    sklearn.datasets.load_digits()
    serve()
