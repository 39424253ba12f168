"""The public surface is frozen: a name that appears or goes is a decision, not an accident."""

from __future__ import annotations

import inspect
import subprocess
import sys

import autosparse


def test_every_public_name_exists():
    for name in autosparse.__all__:
        assert getattr(autosparse, name) is not None
    assert set(dir(autosparse)) == set(autosparse.__all__)


def test_the_sparsifier_has_the_promised_names():
    promised = {
        "alpha", "bind", "compute", "cost", "dense_state_dict", "end_epoch", "finalize", "load_dense", "load_state_dict",
        "next_round", "param_groups", "penalty", "report", "score", "sparsity", "state_dict", "thresholds",
    }  # fmt: skip
    assert promised <= {name for name, _ in inspect.getmembers(autosparse.Sparsifier)}


def test_sparsify_takes_the_promised_arguments():
    parameters = inspect.signature(autosparse.sparsify).parameters
    assert list(parameters)[:8] == [
        "model",
        "method",
        "epochs",
        "steps_per_epoch",
        "include",
        "exclude",
        "example_input",
        "seed",
    ]


def test_importing_the_package_does_not_import_torch():
    code = "import sys, autosparse, autosparse.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
