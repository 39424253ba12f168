"""The model card: a README.md whose head machines read, written from a run's own files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import torch
import yaml
from torch import Tensor

from autosparse.common.files import kind_of, read_json, read_text
from autosparse.common.tables import Table
from autosparse.common.words import gain_words

BENCH = "bench.json"  # {"rows": [{column: value}], "machine": {...}}: what `autosparse bench infer` measured on this run
TAGS = ("autosparse", "model_hub_mixin", "pruning", "pytorch_model_hub_mixin", "sparse")


@dataclass(frozen=True)
class Facts:
    """A run's own files, as plain values; all may be empty for a model without a run."""

    recipe: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    bench: Mapping[str, Any] = field(default_factory=dict)

    @property
    def translates(self) -> bool:
        return dict(self.recipe.get("data") or {}).get("kind") == "translation"


def read_facts(folder: str | Path) -> Facts:
    """What a run's folder says of the run; a file that is not there leaves its part empty."""
    folder = Path(folder)
    names = {"recipe": "recipe.yaml", "result": "result.json", "run": "run.json", "bench": BENCH}
    return Facts(**{part: _read(folder / name) for part, name in names.items()})


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    if path.suffix == ".json":
        return read_json(path)
    try:
        content = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it holds {kind_of(content)}, not names and values")
    return content


def model_card(facts: Facts, state: Mapping[str, Tensor], model: str, usage: str) -> str:
    """The card of a model with these weights; figures that were not measured say so."""
    result, run = facts.result, facts.run
    name = str(result.get("name") or model)
    method = str(result.get("method") or "not recorded")
    layers = list(result.get("layers") or layers_of(state))
    zeros, weights = sum(layer["zeros"] for layer in layers), sum(layer["weights"] for layer in layers)
    sparsity = zeros / weights if weights else 0.0
    sections = [
        f"---\n{yaml.safe_dump(_head(facts, name, method), sort_keys=False, allow_unicode=True)}---\n",
        f"# {name}: {model} with {_percent(sparsity)} zeros\n",
        Table(("", ""), _figures(facts, model, method, sparsity)).markdown(),
        f"## Use\n\n```python\n{usage}\n```\n\nSafetensors and numpy alone read the weights too, "
        "in ten lines that autosparse's page on the format shows.\n",
        "## Sparsity per layer\n\n" + _layers(layers),
        "## Speed\n\n" + _speed(facts.bench),
        "## Training\n\n" + Table(("", ""), _training(result, run)).markdown(),
        f"## Recipe\n\n{_recipe(facts.recipe)}",
    ]
    return "\n".join(sections)


def layers_of(state: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """The weights (two sides or more) of a plain state_dict and their zeros."""
    weights = {name: value for name, value in state.items() if value.ndim > 1 and value.is_floating_point()}
    zeros = {name: value.numel() - int(torch.count_nonzero(value)) for name, value in weights.items()}
    return [
        {"name": name.removesuffix(".weight"), "weights": value.numel(), "zeros": zeros[name]}
        for name, value in weights.items()
    ]


def _head(facts: Facts, name: str, method: str) -> dict[str, Any]:
    task = "translation" if facts.translates else "image-classification"
    data = dict(facts.recipe.get("data") or {})
    head: dict[str, Any] = {"library_name": "autosparse", "tags": sorted({*TAGS, *([method] if facts.result else [])})}
    if not facts.result:
        return head
    metrics = [(key, facts.result[key]) for key in ("accuracy", "bleu") if facts.result.get(key) is not None]
    names = {"accuracy": "Token accuracy" if facts.translates else "Accuracy", "bleu": "BLEU"}
    source = str(data.get("hub") or data.get("source"))
    results = {
        "task": {"type": task},
        "dataset": {"name": source, "type": source},
        "metrics": [{"type": key, "name": names[key], "value": value} for key, value in metrics],
    }
    head |= {"pipeline_tag": task, "metrics": [key for key, _ in metrics]}
    if data.get("hub") and not Path(data["hub"]).is_absolute():
        head["datasets"] = [source]
    return head | {"model-index": [{"name": name, "results": [results]}]}


def _figures(facts: Facts, model: str, method: str, sparsity: float) -> list[tuple[str, str]]:
    result = facts.result
    what = "Token accuracy" if facts.translates else "Accuracy"
    dense = result.get("base_accuracy")
    beside = f" (dense run of the same length: {_percent(dense)})" if dense is not None else ""
    rows = [
        ("Model", model),
        ("Method", method),
        ("Recipe", str(facts.recipe.get("name", "not recorded"))),
        (what, _percent(result.get("accuracy")) + beside),
        ("Sparsity", f"{_percent(sparsity)} of the weights below are zero"),
        ("Train F", _fraction(result.get("train_fraction"), "of a dense run's multiply-adds were spent in training")),
        ("Test F", _fraction(result.get("test_fraction"), "of the dense model's multiply-adds make one prediction")),
    ]
    if result.get("bleu") is not None:
        rows.insert(4, ("BLEU", f"{result['bleu']:.2f} ({result.get('bleu_signature', 'signature not recorded')})"))
    return rows


def _layers(layers: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            layer["name"],
            layer.get("kind", ""),
            layer["weights"],
            layer["zeros"],
            _percent(layer["zeros"] / layer["weights"] if layer["weights"] else 0.0),
            f"{layer['threshold']:.3g}" if isinstance(layer.get("threshold"), float) else "",
            layer.get("macs"),
        )
        for layer in layers
    ]
    return Table(("Layer", "Kind", "Weights", "Zeros", "Sparsity", "Threshold", "MACs"), rows).markdown()


def _speed(bench: Mapping[str, Any]) -> str:
    rows = [row for row in bench.get("rows") or [] if isinstance(row, Mapping)]
    if not rows:
        return "Not measured.\n"
    columns = list(dict.fromkeys(key for row in rows for key in row))
    heads = [column.replace("_", " ") for column in columns]
    cells = [[_cell(row.get(column, "")) for column in columns] for row in rows]
    machine = ", ".join(f"{key} {value}" for key, value in dict(bench.get("machine") or {}).items())
    return f"{Table(heads, cells).markdown()}\nMeasured on: {machine or 'a machine that was not recorded'}.\n"


def _training(result: Mapping[str, Any], run: Mapping[str, Any]) -> list[tuple[str, str]]:
    machine, versions, data = (dict(run.get(key) or {}) for key in ("machine", "versions", "data"))
    seconds, gain = result.get("seconds"), result.get("gain")
    return [
        ("Machine", ", ".join(f"{key} {value}" for key, value in machine.items()) or "not recorded"),
        ("Processes", str(run.get("world", "not recorded"))),
        ("Time", "not recorded" if seconds is None else f"{seconds:,.0f} s for {result.get('epochs')} epochs"),
        ("Against dense", f"{gain['ratio']:.2f} times as fast: {gain_words(gain)}" if gain else "not recorded"),
        ("Seed", str(result.get("seed", "not recorded"))),
        ("Data", ", ".join(f"{key}: {value}" for key, value in data.items()) or "not recorded"),
        ("Versions", ", ".join(f"{key} {value}" for key, value in versions.items()) or "not recorded"),
    ]


def _recipe(recipe: Mapping[str, Any]) -> str:
    if not recipe:
        return "Not recorded.\n"
    shown = dict(recipe)
    data = dict(shown.get("data") or {})
    for key in ("path", "hub"):
        # a card is public: do not leak local paths
        if data.get(key) and Path(str(data[key])).is_absolute():
            data[key] = PurePath(data[key]).name
    shown["data"] = data
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    fence = "`" * max(3, 1 + max((len(run) for run in text.split() if set(run) == {"`"}), default=0))
    return f"{fence}yaml\n{text}{fence}\n"


def _percent(value: Any) -> str:
    return f"{value:.2%}".replace("%", " %") if isinstance(value, int | float) else "not recorded"


def _fraction(value: Any, meaning: str) -> str:
    return f"{value:.3f} {meaning}" if isinstance(value, int | float) else "not recorded"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
