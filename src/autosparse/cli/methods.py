"""`autosparse methods`: every registered method in one table."""

import typer

COLUMNS = ("name", "year", "family", "budget", "pruned_gradient", "train_flops", "reference")


def run(as_json: bool = typer.Option(False, "--json", help="Print JSON, with a line of description per method.")) -> None:
    """List the methods and what sets them apart."""
    import autosparse
    from autosparse.cli.output import print_json
    from autosparse.common.tables import Table
    from autosparse.methods import describe

    described = [describe(name) for name in autosparse.list_methods()]
    if as_json:
        print_json([{field: getattr(one, field) for field in (*COLUMNS, "doc")} for one in described])
        return
    headings = [column.replace("_", " ") for column in COLUMNS]
    Table(headings, [[str(getattr(one, field)) for field in COLUMNS] for one in described]).show()
