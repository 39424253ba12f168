"""Runs the notebooks and keeps their outputs: python notebooks/run.py [NAME...]. The tests execute them with `executed`."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
SECONDS = 600


def executed(path: Path, folder: Path) -> Any:
    """The notebook with fresh outputs, run in a folder of its own by this very interpreter."""
    notebook = nbformat.read(path, as_version=4)
    sources = os.pathsep.join(filter(None, [str(FOLDER.parent / "src"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": sources, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.create_kernel_manager()
    client.km.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]  # type: ignore[union-attr]
    client.execute(env=environment)
    return notebook


def cleaned(notebook: Any, folder: Path) -> Any:
    """Without times of execution and places of this machine, so that a new run changes only what is new."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "text" in output:
                    output["text"] = plain(output["text"].replace(str(folder), "."))
    return notebook


def plain(text: str) -> str:
    """Without colours, and without the Trainer's line of times."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("{'train_runtime'"))


def main(names: list[str]) -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            notebook = cleaned(executed(path, Path(scratch)), Path(scratch))
        nbformat.write(notebook, path)
        print(f"{path.name}: {sum(len(cell.get('outputs', [])) for cell in notebook.cells)} outputs")


if __name__ == "__main__":
    main(sys.argv[1:])
