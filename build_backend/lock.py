"""`make lock`: requirements.lock, every package that the application needs with its version and hashes, but torch.

torch is installed first through constraints.txt: its file, and the CUDA packages it asks for, differ by platform.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
HEAD = """# Made by `make lock`. torch comes first, by its own file for each platform:
#   pip install -c constraints.txt torch
#   pip install --require-hashes -r requirements.lock
#   pip install --no-deps dist/autosparse-*.whl
"""
OF_TORCH = ("torch==", "nvidia-", "cuda-", "triton==")
OPTIONS = ("--generate-hashes", "--no-header", "--no-annotate", "--quiet", "--python-version", "3.11")


def main() -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "compile", "pyproject.toml", "--extra", "app", "--constraint", "constraints.txt", *OPTIONS]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    LOCK.write_text(HEAD + without_torch(text), encoding="utf-8")


def without_torch(text: str) -> str:
    """The lines of all packages that do not come with torch; a package begins at a line that is not indented."""
    kept, keep = [], True
    for line in text.splitlines(keepends=True):
        if not line.startswith((" ", "#")):
            keep = not line.startswith(OF_TORCH)
        if keep:
            kept.append(line)
    return "".join(kept)


if __name__ == "__main__":
    main()
