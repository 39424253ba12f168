"""Name the classes of pictures with a finished run's model.

Pictures are brought to the run's size, colours and normalisation, as its validation images were.

Examples:

  autosparse predict runs/cifar10-resnet20 cat.png dog.jpg

  autosparse predict runs/cifar10-resnet20 photos/*.jpg --top 3 --precision int8 --json
"""

from dataclasses import asdict
from pathlib import Path

import typer

from autosparse.cli.options import ALLOW_CODE


def run(
    folder: Path = typer.Argument(metavar="MODEL", help="Folder of a finished run, such as runs/digits."),
    files: list[Path] = typer.Argument(help="Pictures: png, jpg and other formats that Pillow reads."),
    top: int = typer.Option(1, min=1, help="Classes to show of each picture."),
    precision: str | None = typer.Option(None, help="Deploy the model first: float32, bfloat16, int8 or auto."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    allow_code: list[str] = ALLOW_CODE,
) -> None:
    from autosparse.cli.output import print_json
    from autosparse.common.precisions import precision_name
    from autosparse.training.deployed import SERVED
    from autosparse.training.predict import predict

    word = None if precision is None else precision_name(precision, "--precision", SERVED)
    found = predict(folder, files, top=top, precision=word)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    for each in found:
        shown = (f"{name} ({chance:.1%})" for name, chance in zip(each.names, each.probabilities, strict=True))
        typer.echo(f"{each.file}: {', '.join(shown)}")
