"""How sparsified layers compute. This version has dense torch operations only; zeros are counted, not skipped."""

from __future__ import annotations

MODES = ("auto", "dense", "sparse")


class Compute:
    """The choice between dense torch operations and sparse kernels, made for a whole model."""

    def __init__(self) -> None:
        self.mode = "auto"

    def choose(self, mode: str) -> None:
        if mode not in MODES:
            raise ValueError(f"compute mode {mode!r}; allowed: {', '.join(MODES)}")
        if mode == "sparse":
            raise RuntimeError(
                'there are no sparse kernels in this version: layers compute densely with torch; use "auto" or "dense"'
            )
        self.mode = mode

    def __str__(self) -> str:
        return "dense compute with torch: the zeros are counted, not skipped"
