"""JSON for programs, and a first line at once; tables for people are `common.tables`."""

import json
import sys
from typing import Any


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2))


def begin(what: str) -> None:
    """Say on a terminal what has begun: torch takes seconds to load, and nothing else is seen until then."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"{what} ...", file=sys.stderr, flush=True)
