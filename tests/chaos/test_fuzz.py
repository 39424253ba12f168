"""Twenty thousand damaged files; what must hold is in tests/fuzzing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..export.test_format_hostile import check_forgeries
from ..fuzzing.checks import fuzz
from ..fuzzing.files import targets
from ..fuzzing.test_files import NAMES
from ..fuzzing.test_states import fuzz_states
from .tally import scaled, seed, tally

CASES = 20_000
FORGERIES, STATES = 1_000, 1_000
PER_FILE = -(-(CASES - FORGERIES - STATES) // len(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    with tally(f"fuzzed: {name}") as counted:
        target = next(target for target in targets(tmp_path) if target.name == name)
        counted.trials = scaled(PER_FILE)
        counted.note = f"{fuzz(target, tmp_path / 'folder', counted.trials, seed())} taken, the others refused"


def test_forged_sparse_files(tmp_path: Path) -> None:
    with tally("fuzzed: a sparse file with right checksums") as counted:
        counted.trials = scaled(FORGERIES)
        check_forgeries(counted.trials, tmp_path / "file")


def test_damaged_states() -> None:
    with tally("fuzzed: the state of a Sparsifier") as counted:
        counted.trials = scaled(STATES)
        counted.note = f"{fuzz_states(counted.trials, seed())} taken, the others refused and nothing changed"
