"""The one category of all warnings of the package, so that users can filter or escalate them."""

from __future__ import annotations

import warnings


class SparsityWarning(UserWarning):
    """Something about a sparse run that the user should know now."""


def warn(message: str) -> None:
    warnings.warn(message, SparsityWarning, stacklevel=3)
