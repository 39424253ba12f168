"""Writes docs/methods/README.md, the table of all methods, from what the methods say of themselves.

python docs/make_methods_table.py
"""

from __future__ import annotations

from pathlib import Path

from autosparse.methods import describe, list_methods

FILE = Path(__file__).parent / "methods" / "README.md"
HEAD = """# Methods

All of these attach through `autosparse.sparsify(model, autosparse.method(name, ...), ...)`, run in the same training loop and
report through the same ledger. `autosparse methods` prints this table too. To add one of your own see
[writing a method](../writing-a-method.md).

- **learned** methods find their own sparsity, layer by layer; **budgeted** ones are given it and meet it exactly.
- `G` is the gradient of the effective weight. `f_D` and `f_S` are the dense and the sparse forward FLOPs of a sample; a dense
  training step costs `3 f_D`.

This file is made by `python docs/make_methods_table.py`; a test compares the two.

| name | year | family | sparsity | gradient of pruned weights | training FLOPs | reference |
|---|---|---|---|---|---|---|
"""


def table() -> str:
    """The whole page."""
    rows = []
    for name in list_methods():
        about = describe(name)
        cells = (
            f"[{name}]({name}.md)",
            str(about.year),
            about.family,
            about.budget,
            about.pruned_gradient,
            f"`{about.train_flops}`",
            about.reference,
        )
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    FILE.write_text(table(), encoding="utf-8")
