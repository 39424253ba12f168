"""One category for all warnings of the package, so that users can filter them or turn them into errors."""

from __future__ import annotations

import warnings


class SparsityWarning(UserWarning):
    """Something about a sparse run that the user should know now."""


def warn(message: str) -> None:
    warnings.warn(message, SparsityWarning, stacklevel=3)
