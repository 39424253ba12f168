"""List the pages of the documentation, or print one.

Examples:

  autosparse docs get-started

  autosparse docs faq | less
"""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from autosparse.common.tables import Table

INSTALLED = Path(__file__).parents[1] / "docs"
LONGEST = 54  # of a title, so that the list fits 80 columns
CHECKOUT = Path(__file__).parents[3] / "docs"


def run(
    page: str | None = typer.Argument(None, help="A page, such as recipes or methods/rigl; all are listed without one."),
) -> None:
    folder = docs_folder()
    found = [path for path in sorted(folder.rglob("*.md")) if readable(path)]
    pages = {path.relative_to(folder).with_suffix("").as_posix(): path for path in found}
    if page is None:
        rows = [[name, title(path)] for name, path in pages.items() if "/" not in name or name.endswith("README")]
        Table(
            ["page", "about"], rows, notes=["", "`autosparse docs PAGE` prints one; methods/NAME is the page of a method."]
        ).show()
        return
    name = page.removeprefix("docs/").removesuffix(".md")
    if name not in pages:
        from autosparse.common.words import did_you_mean

        raise ValueError(f"there is no page {page!r}{did_you_mean(name, pages)}; `autosparse docs` lists them")
    text = pages[name].read_text(encoding="utf-8")
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console(width=min(100, Console().width)).print(Markdown(text))


def docs_folder() -> Path:
    """Where the pages are: in the installed package, or in the checkout it is imported from."""
    for folder in (INSTALLED, CHECKOUT):
        if (folder / "get-started.md").is_file():
            return folder
    raise FileNotFoundError("this installation holds no documentation: install the wheel, or use a checkout")


def readable(path: Path) -> bool:
    """Whether the page is text; others are filled in when the site is built."""
    return not any(line.startswith(("--8<--", "::: ")) for line in path.read_text(encoding="utf-8").splitlines())


def title(path: Path) -> str:
    """The first heading of a page."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line[2 : 2 + LONGEST] for line in lines if line.startswith("# ")), "")
