"""`autosparse flops`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autosparse import cli

NETS = """
from torch import nn

def tiny(width=4):
    convolution, linear = nn.Conv2d(3, width, 3, bias=False), nn.Linear(36 * width, 10, bias=False)
    return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), linear)

def nothing():
    return None

number = 3
"""
# On a 1x3x8x8 input the convolution gives width x 6 x 6: 27 * 36 * width MACs; the linear layer 360 * width.
CONV, LINEAR = 27 * 36 * 4, 360 * 4
SIZES = "vocabulary=50 size=16 heads=2 feed_forward=32 encoder_layers=1 decoder_layers=1"
SMALL = [part for setting in SIZES.split() for part in ("--set", setting)]


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder a user works in, with a module of their own; sys.path is put back afterwards."""
    (tmp_path / "own_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as context:
        context.syspath_prepend(str(tmp_path))
        yield


def run(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["flops", *arguments])
    return stopped.value.code


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(*arguments, "--json") == 0
    counted: dict[str, Any] = json.loads(capsys.readouterr().out)
    return counted


def test_a_model_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    counted = as_json(capsys, "own_nets:tiny", "--input", "1,3,8,8")
    assert counted["macs"] == CONV + LINEAR
    assert counted["params"] == 27 * 4 + 360 * 4
    assert [(layer["name"], layer["macs"]) for layer in counted["layers"]] == [("0", CONV), ("3", LINEAR)]
    assert "test_fraction" not in counted
    assert "density" not in counted["layers"][0]


def test_set_reaches_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, "own_nets:tiny", "--input", "1,3,8,8", "--set", "width=8")["macs"] == 2 * (CONV + LINEAR)


def test_sparsity_is_spread_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    counted = as_json(capsys, "own_nets:tiny", "--input", "1,3,8,8", "--sparsity", "0.75", "--dense", "0")
    assert [layer["density"] for layer in counted["layers"]] == [1.0, 0.25]
    assert [layer["sparse_macs"] for layer in counted["layers"]] == [CONV, LINEAR // 4]
    assert counted["density"] == pytest.approx((108 + 360) / 1548)
    assert counted["sparse_macs"] == CONV + LINEAR // 4
    assert counted["test_fraction"] == pytest.approx((CONV + LINEAR / 4) / (CONV + LINEAR))


def test_distributions_differ(capsys: pytest.CaptureFixture[str]) -> None:
    def densities(kind: str) -> list[float]:
        arguments = ("own_nets:tiny", "--input", "1,3,8,8", "--sparsity", "0.5", "--distribution", kind)
        return [layer["density"] for layer in as_json(capsys, *arguments)["layers"]]

    assert densities("uniform") == [0.5, 0.5]
    # er: the convolution's share exceeds its 108 weights, so it is dense and the linear layer keeps 774 - 108 of 1,440.
    assert densities("er") == pytest.approx([1.0, 666 / 1440])
    assert densities("erk") == pytest.approx([13 * 774 / 167 / 108, 154 * 774 / 167 / 1440])


def test_the_table_has_layers_and_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("own_nets:tiny", "--input", "1,3,8,8", "--sparsity", "0.75", "--dense", "0") == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    assert ["0", "conv2d", "108", "3,888", "1.0000", "3,888"] in lines
    assert ["3", "linear", "1,440", "1,440", "0.2500", "360"] in lines
    assert ["total", "1,548", "5,328", "0.3023", "4,248"] in lines
    assert "Test F 0.7973" in shown


def test_a_built_in_model_knows_its_input(capsys: pytest.CaptureFixture[str]) -> None:
    counted = as_json(capsys, "mobilenet_v1", "--set", "width=0.25")
    assert counted["layers"][0]["params"] == 3 * 8 * 9
    assert counted["layers"][0]["macs"] == 3 * 8 * 9 * 112 * 112
    smaller = as_json(capsys, "mobilenet_v1", "--set", "width=0.25", "--input", "1,3,112,112")
    assert smaller["layers"][0]["macs"] == 3 * 8 * 9 * 56 * 56


def test_a_model_of_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    counted = as_json(capsys, "transformer", "--input", "1,5", *SMALL)
    macs = {layer["name"]: layer["macs"] for layer in counted["layers"]}
    expand = next(name for name in macs if name.endswith("expand"))
    assert macs[expand] == 5 * 16 * 32
    assert as_json(capsys, "transformer", "--input", "2,5", *SMALL)["macs"] == counted["macs"]


@pytest.mark.filterwarnings("always")
def test_a_warning_is_one_line_without_source_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("transformer", *SMALL, "--sparsity", "0.9") == 0
    shown = capsys.readouterr().err
    assert shown.startswith("warning: output is left dense")
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["resnet51"], "resnet50"),
        (["resnet20", "--input", "1,three,32,32"], "1,three,32,32"),
        (["resnet20", "--input", "1,3,0,32"], "whole numbers above zero"),
        (["resnet20", "--input", "1,5,32,32"], "5"),
        (["resnet20", "--set", "classes"], "name=value"),
        (["resnet20", "--set", "colour=red"], "colour"),
        (["resnet20", "--dense", "fc"], "--sparsity"),
        (["resnet20", "--sparsity", "1.5"], "1.5"),
        (["resnet20", "--sparsity", "0.5", "--distribution", "even"], "even"),
        (["resnet20", "--sparsity", "0.5", "--dense", "fcc"], "fcc"),
        (["own_nets:tiny"], "--input"),
        (["own_nets:absent", "--input", "1"], "absent"),
        (["own_nets:number", "--input", "1"], "number"),
        (["own_nets:nothing", "--input", "1"], "NoneType"),
        (["no_such_module_here:net", "--input", "1"], "no_such_module_here"),
    ],
)
def test_bad_input_is_one_line_that_names_it(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
