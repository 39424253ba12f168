"""Count the weights and the multiply-accumulates of one sample, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from autosparse.cli.options import whole_numbers
from autosparse.common.tables import Table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from autosparse.cost import Profile


def run(
    model: str = typer.Argument(help="A built-in model, or package.module:callable that returns an nn.Module."),
    shape: str | None = typer.Option(None, "--input", help="Shape of the example input, such as 1,3,224,224."),
    settings: list[str] = typer.Option([], "--set", help="Argument of the model, such as width=0.5; repeatable."),
    sparsity: float | None = typer.Option(None, help="Fraction of zeros to count with, such as 0.9."),
    distribution: str = typer.Option("uniform", help="How the zeros spread over layers: uniform, er or erk."),
    dense: list[str] = typer.Option([], help="A layer that stays dense; repeatable."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    import autosparse
    from autosparse.cli.output import print_json
    from autosparse.training.build import build_named

    if dense and sparsity is None:
        raise ValueError("--dense was given without --sparsity; add --sparsity 0.9, or leave --dense out")
    network = build_named(model, parse_arguments(settings), typed=True)
    example_input = example(model, shape)
    network.eval()
    profile = autosparse.profile(network, example_input)
    densities = None if sparsity is None else spread(network, profile, sparsity, distribution, dense)
    rows, totals = rows_of(profile, densities), totals_of(profile, densities)
    if as_json:
        print_json({"model": model, **totals, "layers": rows})
    else:
        print_summary(rows, totals)


def parse_arguments(settings: list[str]) -> dict[str, Any]:
    """`width=0.5` as {"width": 0.5}; values are read as YAML."""
    from autosparse.recipes.overrides import parse

    arguments = {}
    for setting in settings:
        path, value = parse(setting) if "=" in setting else ([], None)
        if len(path) != 1 or not path[0].isidentifier():
            raise ValueError(f"--set {setting} is not of the form name=value")
        arguments[path[0]] = value
    return arguments


def example(model: str, shape: str | None) -> Tensor | tuple[Tensor, ...]:
    """A tensor of the given or usual shape; token ids for models that read tokens."""
    import torch

    from autosparse.models.inputs import INPUT_SHAPES, TOKEN_TENSORS

    if shape is None and model not in INPUT_SHAPES:
        raise ValueError(f"the input of {model} is not known; give its shape, such as --input 1,3,224,224")
    dimensions = (1, *INPUT_SHAPES[model]) if shape is None else whole_numbers(shape, "--input")
    if model in TOKEN_TENSORS:
        # token 1: token 0 is padding, and a sentence of padding alone attends to nothing
        return tuple(torch.ones(dimensions, dtype=torch.int64) for _ in range(TOKEN_TENSORS[model]))
    return torch.zeros(dimensions)


def spread(model: nn.Module, profile: Profile, sparsity: float, distribution: str, dense: list[str]) -> dict[str, float]:
    """Density by layer name when `sparsity` is spread over the layers that `sparsify` would take."""
    from autosparse.distributions import distribute
    from autosparse.sparsifier.selection import select

    used = {name for layer in profile.layers for name in (layer.name, layer.tied_to)}
    shapes = {layer.name: tuple(layer.shape) for layer in select(model) if layer.name in used}
    return {name: 1.0 - zeros for name, zeros in distribute(distribution, shapes, sparsity, dense).items()}


def rows_of(profile: Profile, densities: dict[str, float] | None) -> list[dict[str, Any]]:
    """One row per layer; density and sparse MACs only when a sparsity was asked for."""
    from autosparse.cost.layers import density_of

    rows: list[dict[str, Any]] = []
    for layer in profile.layers:
        row = {"name": layer.name, "kind": layer.kind, "params": layer.params, "macs": layer.macs}
        if densities is not None:
            density = density_of(layer, densities)
            row |= {"density": density, "sparse_macs": round(layer.macs * density)}
        rows.append(row)
    return rows


def totals_of(profile: Profile, densities: dict[str, float] | None) -> dict[str, Any]:
    """Weights and MACs of the whole model, and what is left of both at the asked sparsity."""
    from autosparse.cost.layers import density_of

    totals: dict[str, Any] = {"params": profile.params, "macs": profile.macs}
    if densities is not None:
        # a shared weight counts once, as it does in profile.params
        active = {layer.tied_to or layer.name: layer.params * density_of(layer, densities) for layer in profile.layers}
        fraction = profile.inference_fraction(densities)
        totals |= {"density": sum(active.values()) / profile.params, "sparse_macs": round(profile.macs * fraction)}
        totals["test_fraction"] = fraction
    return totals


def print_summary(rows: list[dict[str, Any]], totals: dict[str, Any]) -> None:
    """The table of layers with its totals."""
    last = {"name": "total", **totals}
    headings = {"macs": "MACs", "sparse_macs": "sparse MACs"}
    columns = list(rows[0])
    Table(
        [headings.get(column, column) for column in columns],
        [[row[column] for column in columns] for row in rows],
        [last.get(column, "") for column in columns],
    ).show()
    if "test_fraction" in totals:
        print(f"Test F {totals['test_fraction']:.4f}: sparse MACs over MACs, counted (layers compute densely)")
