"""Twenty thousand damaged files; what must hold is in tests/fuzzing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..export.test_format_hostile import Parts, check_forgeries, example, quantized_example
from ..fuzzing.checks import fuzz
from ..fuzzing.files import targets
from ..fuzzing.test_files import NAMES
from ..fuzzing.test_states import fuzz_states
from .tally import scaled, seed, tally

CASES = 20_000
FORGERIES, STATES = 500, 1_000  # forgeries of each kind
PER_FILE = -(-(CASES - 2 * FORGERIES - STATES) // len(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    with tally(f"fuzzed: {name}") as counted:
        target = next(target for target in targets(tmp_path) if target.name == name)
        counted.trials = scaled(PER_FILE)
        counted.note = f"{fuzz(target, tmp_path / 'folder', counted.trials, seed())} taken, the others refused"


@pytest.mark.parametrize("kind", [example, quantized_example])
def test_forged_sparse_files(kind: Callable[[], tuple[dict[str, Any], Parts]], tmp_path: Path) -> None:
    with tally(f"fuzzed: a sparse file with right checksums, {kind.__name__}") as counted:
        counted.trials = scaled(FORGERIES)
        check_forgeries(counted.trials, tmp_path / "file", *kind())


def test_damaged_states() -> None:
    with tally("fuzzed: the state of a Sparsifier") as counted:
        counted.trials = scaled(STATES)
        counted.note = f"{fuzz_states(counted.trials, seed())} taken, the others refused and nothing changed"
