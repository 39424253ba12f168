"""The `autosparse` command: one file per verb, torch imported inside the verbs only so that `--help` answers at once."""

import os
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

import typer

from autosparse import __version__
from autosparse.cli import bench, compare, docs, env, export, flops, methods, paper, predict, recipes, report, train
from autosparse.cli import eval as eval_verb
from autosparse.cli.options import help_of
from autosparse.common.output import unbreakable_output

# What the library raises for bad input (pydantic's errors are ValueErrors); anything else is a bug: traceback.
USER_ERRORS = (ValueError, TypeError, RuntimeError, ImportError, OSError)

app = typer.Typer(
    name="autosparse",
    help="Trains sparse neural networks by itself.",
    add_completion=False,
    no_args_is_help=True,
    # rich would draw nicer help but costs a third of the time budget of `--help`
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
# A verb is a file with a function `run`; the file's docstring is its help.
VERBS: dict[str, ModuleType] = {
    **{"train": train, "eval": eval_verb, "predict": predict, "compare": compare, "paper": paper, "export": export},
    **{"docs": docs, "env": env, "flops": flops, "methods": methods, "recipes": recipes, "report": report},
}
for name, verb in VERBS.items():
    app.command(name, help=help_of(verb))(verb.run)
app.add_typer(bench.app, name="bench")


def show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"autosparse {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=show_version, is_eager=True, help="Show the version and exit."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error; so does AUTOSPARSE_DEBUG=1."),
) -> None:
    """Trains sparse neural networks by itself."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a verb; a user's error becomes one line on stderr and exit code 2, and a closed output is no error."""
    with unbreakable_output():
        run_verb(arguments)


def run_verb(arguments: Sequence[str] | None) -> NoReturn:
    """Run a verb and exit with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # `--debug` is taken from any place, so that it can be appended to a command that has just failed
    debug = "--debug" in words or os.environ.get("AUTOSPARSE_DEBUG", "0") not in ("", "0")
    words = [argument for argument in words if argument != "--debug"]
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.showwarning = show_warning
            code = app(words, standalone_mode=False)
    except typer.Abort:
        raise SystemExit(130) from None
    except Exception as error:
        message = one_line(error)
        if debug or message is None:
            raise
        typer.echo(f"error: {message}", err=True)
        raise SystemExit(2) from None
    raise SystemExit(code if isinstance(code, int) else 0)


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line, without the place in our sources that Python would add."""
    typer.echo(f"warning: {' '.join(str(message).split())}", err=True)


def one_line(error: Exception) -> str | None:
    """The message of a user's error on one line, or a line per mistake where it lists several; None for a bug of ours."""
    # typer's usage errors: recognised by their method since typer carries its own copy of click, without a public name
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        return f"{' '.join(format_message().split())} (see `autosparse --help`)"
    if not isinstance(error, USER_ERRORS):
        return None
    listed = str(error).split("\n  - ")
    return "\n  - ".join(" ".join(part.split()) for part in listed) or type(error).__name__
