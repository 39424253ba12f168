"""`autosparse env`."""

import json
import platform

import pytest
import torch

from autosparse import cli, kernels
from autosparse.training import machine


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["env", *arguments])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_json_holds_the_facts(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(shown(capsys, "--json"))
    assert facts["python"] == platform.python_version()
    assert facts["torch"] == torch.__version__
    assert facts["simd"] == torch.backends.cpu.get_cpu_capability()
    assert facts["torch_threads"] == torch.get_num_threads()
    assert facts["cuda"] is torch.cuda.is_available()
    assert facts["cores"] >= 1
    assert facts["cpu"]
    assert facts["bfloat16_kernels"] in ("none", "in float32", "pairs in bfloat16")
    assert (facts["bfloat16_kernels"] == "none") != kernels.available(torch.bfloat16)
    assert facts["native_kernels"] == (kernels.instruction_set() if kernels.available() else f"none: {kernels.why_not()}")


def test_text_has_one_line_a_fact(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys).splitlines()
    assert len(lines) == len(cli.env.environment())
    assert any(line.startswith("torch threads") and line.endswith(f" {torch.get_num_threads()}") for line in lines)
    assert any(line.split() == ["cuda", "yes" if torch.cuda.is_available() else "no"] for line in lines)


def test_a_missing_package_is_said_to_be_missing() -> None:
    assert machine.installed_version("no-such-package-anywhere") == "not installed"
