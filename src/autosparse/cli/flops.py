"""`autosparse flops`: parameters and MACs of a model, layer by layer, dense or at a given sparsity."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from torch import Tensor, nn

    from autosparse.cost import Profile

IMAGE = "1,3,224,224"
SMALL_IMAGE = "1,3,32,32"
GREY_IMAGE = "1,1,28,28"
INPUTS = {
    "mobilenet_v1": IMAGE,
    "resnet20": SMALL_IMAGE,
    "resnet32": SMALL_IMAGE,
    "resnet50": IMAGE,
    "small_conv": GREY_IMAGE,
    "small_transformer": GREY_IMAGE,
    "transformer": "1,32",
}
# Models that read token numbers, and how many tensors of them: a source and a target sentence.
TOKEN_TENSORS = {"transformer": 2}


def run(
    model: str = typer.Argument(help="A built-in model, or package.module:callable that returns an nn.Module."),
    shape: str | None = typer.Option(None, "--input", help="Shape of the example input, such as 1,3,224,224."),
    settings: list[str] = typer.Option([], "--set", help="Argument of the model, such as width=0.5; repeatable."),
    sparsity: float | None = typer.Option(None, help="Fraction of zeros to count with, such as 0.9."),
    distribution: str = typer.Option("uniform", help="How the zeros spread over layers: uniform, er or erk."),
    dense: list[str] = typer.Option([], help="A layer that stays dense; repeatable."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Count the weights and the multiply-accumulates of one sample, layer by layer."""
    import autosparse
    from autosparse.cli.output import print_json

    if dense and sparsity is None:
        raise ValueError("--dense was given without --sparsity; add --sparsity 0.9, or leave --dense out")
    network = build(model, parse_settings(settings))
    example_input = example(model, shape)
    network.eval()
    profile = autosparse.profile(network, example_input)
    densities = None if sparsity is None else spread(network, profile, sparsity, distribution, dense)
    rows, totals = rows_of(profile, densities), totals_of(profile, densities)
    if as_json:
        print_json({"model": model, **totals, "layers": rows})
    else:
        print_summary(rows, totals)


def build(model: str, settings: dict[str, Any]) -> nn.Module:
    """A built-in model by name, or whatever the callable at package.module:callable returns."""
    from torch import nn

    from autosparse import models

    module_name, colon, attribute = model.partition(":")
    if not colon:
        return models.build(model, **settings)
    # an installed command does not look for modules in the current folder, which is where a user's model is
    sys.path.insert(0, str(Path.cwd()))
    maker = getattr(importlib.import_module(module_name), attribute, None)
    if not callable(maker):
        raise ValueError(f"{module_name} has no callable named {attribute!r}; give package.module:callable")
    made = maker(**settings)
    if not isinstance(made, nn.Module):
        raise TypeError(f"{model} returned {type(made).__name__}; it must return a torch.nn.Module")
    return made


def parse_settings(settings: list[str]) -> dict[str, Any]:
    """`width=0.5` as {"width": 0.5}; values are read as YAML."""
    import yaml

    parsed = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"--set {setting} is not of the form name=value")
        parsed[name] = yaml.safe_load(value)
    return parsed


def example(model: str, shape: str | None) -> Tensor | tuple[Tensor, ...]:
    """A tensor of the asked or usual shape; token numbers for models that read tokens."""
    import torch

    shape = shape or INPUTS.get(model)
    if shape is None:
        raise ValueError(f"the input of {model} is not known; give its shape, such as --input {IMAGE}")
    sizes = shape.split(",")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise ValueError(f"--input {shape} is not a shape; give positive whole numbers, such as --input {IMAGE}")
    dimensions = [int(size) for size in sizes]
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
    """One row a layer; density and sparse MACs only when a sparsity was asked for."""
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
        kept = {layer.tied_to or layer.name: layer.params * density_of(layer, densities) for layer in profile.layers}
        fraction = profile.inference_fraction(densities)
        totals |= {"density": sum(kept.values()) / profile.params, "sparse_macs": round(profile.macs * fraction)}
        totals["test_fraction"] = fraction
    return totals


def print_summary(rows: list[dict[str, Any]], totals: dict[str, Any]) -> None:
    """The table of layers with its totals."""
    from autosparse.cli.output import print_table

    last = {"name": "total", **totals}
    headings = {"macs": "MACs", "sparse_macs": "sparse MACs"}
    columns = list(rows[0])
    print_table(
        [headings.get(column, column) for column in columns],
        [[row[column] for column in columns] for row in rows],
        [last.get(column, "") for column in columns],
    )
    if "test_fraction" in totals:
        print(f"Test F {totals['test_fraction']:.4f}: sparse MACs over MACs, counted (layers compute densely)")
