"""Folders of runs that 0.1.0 wrote: one stopped in the middle of an epoch, one finished."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import autosparse
from autosparse.deployment import SparseModel

from .command import json_of, run_command
from .numerics import assert_same, exact
from .plain_loops import FIXTURES

FINISHED = FIXTURES / "finished"
TIMES = ("seconds",)


def copied(name: str, target: Path) -> str:
    return str(shutil.copytree(FIXTURES / name, target / name))


def figures(path: Path) -> dict[str, Any]:
    """Every number of a JSON file under the way to it; times may differ."""
    texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    return dict(_numbers([json.loads(text) for text in texts], ""))


def _numbers(value: Any, path: str) -> Any:
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if key not in TIMES:
                yield from _numbers(each, f"{path}/{key}")
    elif isinstance(value, int | float):
        yield path, value


def assert_figures(found: Path, expected: Path) -> None:
    """All figures that 0.1.0 wrote, and perhaps more."""
    old, new = figures(expected), figures(found)
    assert old.keys() <= new.keys()
    now = {path: new[path] for path in old}
    assert now == (old if exact() else pytest.approx(old, rel=1e-3, abs=1e-4))


def test_a_stopped_run_ends_as_it_would_have_in_0_1_0(tmp_path: Path) -> None:
    out = copied("stopped", tmp_path)
    info = json.loads(Path(out, "run.json").read_text())
    assert info["status"] == "stopped"
    assert info["message"].startswith("stopped at epoch 3, step 39")
    run_command("train", "--resume", "--out", out, "--quiet", "--no-report")
    assert_same(load_file(Path(out, "model.safetensors")), load_file(FINISHED / "model.safetensors"))
    assert_figures(Path(out, "metrics.jsonl"), FINISHED / "metrics.jsonl")
    assert_figures(Path(out, "result.json"), FINISHED / "result.json")
    assert json.loads(Path(out, "run.json").read_text())["status"] == "done"


def test_a_stopped_run_is_reported_but_not_exported(tmp_path: Path) -> None:
    out = copied("stopped", tmp_path)
    assert "not finished yet" in run_command("report", out)
    run_command("export", out, code=2)
    assert not Path(out, "export").exists()


def test_a_finished_run_is_complete(tmp_path: Path) -> None:
    out = copied("finished", tmp_path)
    assert "complete already" in run_command("train", "--resume", "--out", out, "--no-report")


def test_the_report_of_a_finished_run(tmp_path: Path) -> None:
    out = copied("finished", tmp_path)
    run_command("report", out)
    page = Path(out, "report/report.html").read_text()
    result = json.loads((FINISHED / "result.json").read_text())
    assert f"{100 * result['accuracy']:.2f}" in page
    assert all(layer["name"] in page for layer in result["layers"])


@pytest.mark.parametrize("checkpoint", [[], ["--checkpoint", "best"]])
def test_a_finished_run_scores_as_before(checkpoint: list[str], tmp_path: Path) -> None:
    out = copied("finished", tmp_path)
    found, expected = json_of("eval", out, *checkpoint), json.loads((FIXTURES / "finished-eval.json").read_text())
    assert expected.keys() <= found.keys()
    for key, value in expected.items():
        if key not in ("run", "checkpoint", "recorded"):
            assert found[key] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value), key


def test_a_finished_run_is_exported(tmp_path: Path) -> None:
    out = copied("finished", tmp_path)
    expected = load_file(FINISHED / "model.safetensors")
    for kind in ("safetensors", "torch", "hub"):
        run_command("export", out, "--format", kind)
    sparse = autosparse.load_sparse(Path(out, "export/model.sparse.safetensors"), autosparse.models.small_conv(width=2))
    assert_same(sparse.state_dict(), expected, exactly=True)
    assert_same(torch.load(Path(out, "export/model.pt"), weights_only=True), expected, exactly=True)
    assert_same(SparseModel.from_pretrained(Path(out, "export/hub")).model.state_dict(), expected, exactly=True)
