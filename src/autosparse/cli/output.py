"""JSON for programs; tables for people are `common.tables`."""

import json
from typing import Any


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2))
