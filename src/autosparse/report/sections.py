"""The text of the page: key figures, tables, events, the recipe, the origin of a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import yaml

from autosparse.common.words import counted, duration, gain_words
from autosparse.report.comparison import Compared, compare_runs
from autosparse.report.runs import DENSE, Run, block, number

STATUS_WORDS = {"running": "still running", "stopped": "stopped", "failed": "failed", "done": "done"}
DASH = "&ndash;"
# attribute of a compared run, heading, decimal places
COLUMNS = (
    ("base", "Base", 2),
    ("accuracy", "Top1(S)", 2),
    ("drop", "Drop %", 2),
    ("sparsity", "S %", 2),
    ("train_fraction", "Train F", 3),
    ("test_fraction", "Test F", 3),
    ("seconds", "Seconds", 1),
    ("bleu", "BLEU", 2),
)
BEST = {"accuracy": max, "drop": min, "train_fraction": min, "test_fraction": min}


def tiles(run: Run) -> str:
    """The most important figures."""
    row = compare_runs([run])[0]
    shown: list[tuple[str, str, str]] = []
    gap = None if row.base is None or row.accuracy is None else row.accuracy - row.base
    against = "" if gap is None or run.is_dense else f"dense {row.base:.2f} %: {gap:+.2f} points"
    if row.accuracy is not None:
        shown.append(("Token accuracy" if run.translates else "Accuracy", f"{row.accuracy:.2f} %", against))
    if row.bleu is not None:
        shown.append(("BLEU", f"{row.bleu:.2f}", "on the test sentences"))
    if not run.is_dense and row.sparsity is not None:
        weights, zeros = (sum(int(layer[key]) for layer in run.layers) for key in ("weights", "zeros"))
        shown.append(("Sparsity", f"{row.sparsity:.2f} %", f"{zeros:,} of {weights:,} weights are zero" if weights else ""))
    if not run.is_dense and row.train_fraction is not None:
        shown.append(("Train F", f"{row.train_fraction:.3f}", "of the dense run's training FLOPs"))
    if not run.is_dense and row.test_fraction is not None:
        shown.append(("Test F", f"{row.test_fraction:.3f}", "of the dense FLOPs of one forward pass"))
    if run.is_dense and (loss := run.last("loss")) is not None:
        shown.append(("Training loss", f"{loss:.4g}", "mean of the last epoch"))
    if (speed := (run.result or {}).get("speed")) and not run.is_dense:
        shown.append(_speed_tile(speed))
    if (gain := (run.result or {}).get("gain")) and not run.is_dense:
        shown.append(("Whole run", f"{float(gain['ratio']):.2f}x", gain_words(gain)))
    elif row.seconds is not None:
        shown.append(("Time", duration(row.seconds), counted(len(run.metrics), "epoch")))
    boxes = "".join(
        f'<div class="tile"><span>{name}</span><strong>{value}</strong><small>{small}</small></div>'
        for name, value, small in shown
    )
    return f'<div class="tiles">{boxes}</div>' if boxes else ""


def _speed_tile(speed: Mapping[str, Any]) -> tuple[str, str, str]:
    """How many times as fast as dense training, in either direction."""
    ours, dense = float(speed["milliseconds"]), float(speed["dense_milliseconds"])
    verdict = "" if dense >= ours else "dense would have been faster: "
    times = f"{verdict}{ours:.3g} ms per step, dense about {dense:.3g} ms; "
    return "Speed", f"{dense / ours:.2f}x", f"{times}{int(speed['skipping'])} of {int(speed['layers'])} layers skip zeros"


def banner(run: Run, label: str = "") -> str:
    """Warnings about the figures: an unfinished run, a damaged last line."""
    lines = list(run.notes)
    if not run.finished:
        reached = run.metrics[-1]["epoch"] if run.metrics else 0
        planned = f" of {run.epochs}" if run.epochs is not None else ""
        word = STATUS_WORDS[run.status]
        lines.insert(
            0, f"This run is not finished ({word}): {reached}{planned} epochs so far. All figures show what is there now."
        )
        if run.info.get("message"):
            lines.insert(1, str(run.info["message"]))
    if not lines:
        return ""
    head = f"<b>{escape(label)}</b> " if label else ""
    return f'<div class="banner" role="note">{head}{"<br>".join(map(escape, lines))}</div>'


def badge(run: Run) -> str:
    """The run's state in a word."""
    kind = "done" if run.finished else "open"
    return f'<span class="badge {kind}">{STATUS_WORDS[run.status]}</span>'


def comparison_table(rows: Sequence[Compared]) -> str:
    """The paper's columns, the best accuracy and the smallest costs of finished sparse runs in bold."""
    columns = [column for column in COLUMNS if column[0] != "bleu" or any(row.bleu is not None for row in rows)]
    sparse = [row for row in rows if row.finished and row.method != DENSE]
    best = {key: pick(_values(sparse, key), default=None) for key, pick in BEST.items()}
    body = []
    for row in rows:
        cells = [
            f'<th scope="row">{escape(row.label)}{"" if row.finished else " <em>unfinished</em>"}</th>',
            f"<td>{escape(row.method)}</td>",
        ]
        for key, _, digits in columns:
            value = getattr(row, key)
            text = DASH if value is None else f"{value:,.{digits}f}"
            bold = len(sparse) > 1 and row in sparse and value is not None and best.get(key) == value
            cells.append(f'<td class="n">{f"<b>{text}</b>" if bold else text}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    return _table(["Run", "Method", *(heading for _, heading, _ in columns)], body, 2)


def _values(rows: Sequence[Compared], key: str) -> list[float]:
    return [value for row in rows if (value := getattr(row, key)) is not None]


def layer_table(run: Run) -> str:
    """Every sparsified layer in figures."""
    if not run.layers:
        return ""
    body = []
    for layer in run.layers:
        macs, threshold = number(layer.get("macs")), number(layer.get("threshold"))
        sparse_macs = None if macs is None else macs * (1 - float(layer["sparsity"]))
        cells = [
            f"{int(layer['weights']):,}",
            f"{int(layer['zeros']):,}",
            f"{100 * float(layer['sparsity']):.2f}",
            DASH if threshold is None else f"{threshold:.4g}",
            DASH if macs is None else f"{macs:,.0f}",
            DASH if sparse_macs is None else f"{sparse_macs:,.0f}",
        ]
        name = f'<th scope="row">{escape(str(layer["name"]))}</th><td>{escape(str(layer.get("kind", "")))}</td>'
        figures = "".join(f'<td class="n">{cell}</td>' for cell in cells)
        body.append(f"<tr>{name}{figures}<td>{escape(str(layer.get('computed', '')))}</td></tr>")
    heads = ["Layer", "Kind", "Weights", "Zeros", "S %", "Threshold", "MACs dense", "MACs sparse", "Computed"]
    return fold(f"Layers in figures ({len(body)})", _table(heads, body, 2))


def events(run: Run) -> str:
    """What the guard and the controller did, and the notes of the method."""
    result = run.result or {}
    guarded, notes = ([str(line) for line in result.get(key) or []] for key in ("events", "notes"))
    steered = result.get("controller") or []
    if run.is_dense and not (guarded or notes or steered):
        return ""
    parts = []
    if not run.finished:
        parts.append("<p>Events are written when a run ends.</p>")
    elif guarded:
        parts.append((f"<p>The guard acted {len(guarded)} times.</p>" if len(guarded) > 1 else "") + _list(guarded))
    else:
        parts.append("<p>The guard had nothing to do: no layer came near its density floor.</p>")
    if steered:
        _, goal, reached, factor = steered[-1]
        what = "of the multiply-adds gone" if block(run.recipe, "method").get("target_flops") is not None else "zeros"
        parts.append(
            f"<p>The target's controller acted {len(steered):,} times. In the end its goal was {100 * goal:.3f} % {what}, "
            f"{100 * reached:.3f} % were reached, and its last factor was {factor:.4g}.</p>"
        )
    if notes:
        parts.append(f"<p>Notes of the method:</p>{_list(notes)}")
    return f'<div class="card text wide"><h3>Guard and controller</h3>{"".join(parts)}</div>'


def recipe(run: Run) -> str:
    """The resolved recipe, ready to be run again."""
    text = yaml.safe_dump(run.recipe, sort_keys=False, allow_unicode=True, width=100)
    return fold("Recipe", f"<pre>{escape(text)}</pre>")


def origin(run: Run) -> str:
    """Versions, machine, seed, data and command."""
    info = run.info
    command = info.get("command")
    facts: dict[str, Any] = {
        "folder": run.folder.name,
        "started": info.get("started"),
        "seed": info.get("seed"),
        "processes": info.get("world"),
        "command": shlex.join(map(str, command)) if isinstance(command, list) else command,
    }
    groups = {"Run": facts, **{word.capitalize(): info.get(word) for word in ("versions", "machine", "data")}}
    tables = [
        f"<div><h4>{escape(name)}</h4><dl>{_facts(group)}</dl></div>"
        for name, group in groups.items()
        if isinstance(group, Mapping)
    ]
    return fold("Versions, machine, seed and data", f'<div class="origin">{"".join(tables)}</div>')


def fold(title: str, body: str) -> str:
    """A part that opens with a click; printing opens all."""
    return f'<details class="card wide"><summary>{escape(title)}</summary>{body}</details>'


def _facts(facts: Mapping[str, Any]) -> str:
    present = [(name, value) for name, value in facts.items() if value is not None]
    return "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(_plain(value))}</dd>" for name, value in present)


def _plain(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _table(heads: Sequence[str], rows: Sequence[str], texts: int) -> str:
    cells = "".join(f'<th scope="col"{"" if place < texts else " class=n"}>{head}</th>' for place, head in enumerate(heads))
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
