"""List the recipes, or show one.

Examples:

  autosparse recipes digits

  autosparse recipes digits --copy mine.yaml
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import typer

from autosparse.common.tables import Table

WIDE = 140


def run(
    name: str | None = typer.Argument(None, help="A recipe's name, or a file: shows it; all are listed without one."),
    schema: bool = typer.Option(False, "--schema", help="Print the JSON schema of recipes, for editors."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    copy: Path | None = typer.Option(None, "--copy", help="Write the recipe to this new file, to edit it."),
) -> None:
    from autosparse.cli.output import print_json
    from autosparse.recipes.files import recipe_names, recipe_text

    if schema:
        if name is not None or copy is not None:
            raise ValueError("--schema describes all recipes: leave the name and --copy out")
        from autosparse.recipes.json_schema import recipe_schema

        print_json(recipe_schema())
    elif copy is not None:
        if name is None:
            raise ValueError("--copy needs the recipe to copy: autosparse recipes digits --copy mine.yaml")
        print(copied(name, copy))
    elif name is not None:
        if as_json:
            from autosparse.recipes.loading import load_recipe

            print_json(load_recipe(name).model_dump(mode="json"))
        else:
            print(recipe_text(name), end="")
    else:
        rows = [row(recipe) for recipe in recipe_names()]
        if as_json:
            print_json(rows)
        else:
            # descriptions need a wide terminal: elsewhere they would break the lines of the table
            wide = sys.stdout.isatty() and shutil.get_terminal_size().columns >= WIDE
            columns = ("name", "model", "data", "method", *(["description"] if wide else []))
            notes = ["", "`autosparse recipes NAME` shows one with its description; --json: everything."]
            Table(columns, [[line[column] for column in columns] for line in rows], notes=notes).show()


def row(name: str) -> dict[str, Any]:
    """What the list says of a recipe; unchecked, since checking needs torch and this is to answer at once."""
    from autosparse.recipes.files import find_recipe, merged_block
    from autosparse.recipes.overrides import name_of

    block = merged_block(find_recipe(name))
    data = block["data"]
    return {
        "name": name,
        "description": block["description"],
        "model": name_of(block["model"]),
        "data": data.get("hub") or data.get("path") or data["source"],
        "method": name_of(block["method"]),
        "paper": block.get("paper"),
    }


def copied(name: str, target: Path) -> str:
    """Write a recipe to a file that does not exist yet; what to do next."""
    from autosparse.recipes.files import recipe_text

    text = recipe_text(name)
    if target.suffix not in (".yaml", ".yml"):
        raise ValueError(f"--copy {target}: a recipe file ends in .yaml")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise FileExistsError(f"{target} exists and is not overwritten: choose another name") from None
    return f"wrote {target}; edit it, then: autosparse train {target}"
