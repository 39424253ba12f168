"""A plain model beside the deployed one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from autosparse.serving import Deployed, deploy
from autosparse.serving.agreement import agree


def deployed_beside(model: nn.Module, example: Any) -> tuple[nn.Module, Deployed]:
    """The model with zeros, and deployed."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= torch.rand_like(parameter) < 0.5
    model = model.eval()
    return model, deploy(model, example, threads=1)


def assert_same(deployed: nn.Module, model: nn.Module, *inputs: Any, **named: Any) -> None:
    with torch.no_grad():
        expected = model(*inputs, **named)
    result = deployed(*inputs, **named)
    assert type(result) is type(expected)
    assert agree(result, expected)


def reason(deployed: Deployed, name: str) -> str:
    (row,) = [row for row in deployed.layers() if row.name == name]
    assert row.how == "torch"
    return row.reason
