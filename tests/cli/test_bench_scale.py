"""`autosparse bench scale` and the refusals of `autosparse bench run`."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from autosparse.cli import app

TIMES = ("--parameters", "1000", "--dense-ms", "100", "--sparse-ms", "40")


def test_the_table_has_every_network() -> None:
    done = CliRunner().invoke(app, ["bench", "scale", *TIMES, "--annealed-ms", "80", "--machines", "8,64"])
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.output.splitlines() if line[:1].isdigit()]
    assert [row[:2] for row in rows] == [[count, speed] for count in ("8", "64") for speed in ("1", "10", "100")]
    assert float(rows[0][2]) > 100
    assert 68 < float(rows[0][3]) < float(rows[0][2]), "0.7 of 80 ms and 0.3 of 40 ms, and the exchange"


def test_bad_options_are_refused() -> None:
    with pytest.raises(ValueError, match="--gigabits fast: give numbers above zero"):
        CliRunner().invoke(app, ["bench", "scale", *TIMES, "--gigabits", "fast"], catch_exceptions=False)
    with pytest.raises(ValueError, match="is dense: give a recipe with a method"):
        CliRunner().invoke(app, ["bench", "run", "digits", "--set", "method=dense", "--set", "train.dense_beside=false"],
                           catch_exceptions=False)  # fmt: skip
