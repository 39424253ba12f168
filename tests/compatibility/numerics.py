"""Comparing results with those of the machine that made the fixtures.

Trained weights agree bit for bit only between machines whose products and sums do: another instruction set, or another
version of torch, adds in another order. So a short training in plain torch is compared first. Where it gives the very
same weights, the fixtures must be met exactly; elsewhere closely, with exactly the same zeros.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .command import json_of
from .plain_loops import FIXTURES, make_net, scattered

MACHINE = FIXTURES / "machine.json"
RELATIVE, ABSOLUTE = 1e-4, 1e-6  # SSE, AVX2 and AVX-512 were seen to differ by a tenth of that


def fingerprint() -> dict[str, str]:
    """What decides the last bits: torch's arithmetic and that of our own kernels."""
    environment = json_of("env")
    return {"native_kernels": environment["native_kernels"], "plain_training": _digest_of_a_training()}


@functools.cache
def exact() -> bool:
    """Whether this machine computes as the maker of the fixtures did, to the last bit."""
    made_on: dict[str, str] = json.loads(MACHINE.read_text())
    return all(made_on[part] == value for part, value in fingerprint().items())


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], exactly: bool | None = None) -> None:
    """The same tensors under the same names: bit for bit where that can be asked for."""
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        if exact() if exactly is None else exactly:
            assert torch.equal(found[name], wanted), name
        else:
            assert torch.allclose(found[name].double(), wanted.double(), RELATIVE, ABSOLUTE), name
            assert torch.equal(found[name] == 0, wanted == 0), f"{name} has zeros elsewhere"


def _digest_of_a_training() -> str:
    """The weights of the fixtures' two nets after a few steps in which nothing of autosparse takes part."""
    digest = hashlib.sha256()
    for net, side in ((make_net(), 4), (_digits_net(), 8)):
        with torch.no_grad():
            for number, parameter in enumerate(net.parameters()):
                parameter.copy_(scattered(*parameter.shape, seed=number) / 2)
        optimizers = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), torch.optim.AdamW(net.parameters(), lr=0.01)
        for step in range(8):
            images, labels = scattered(32, 1, side, side, seed=step), torch.arange(32) % 3
            net.zero_grad()
            cross_entropy(net(images), labels, label_smoothing=0.1).backward()
            optimizers[step % 2].step()
        for value in net.state_dict().values():
            digest.update(value.sigmoid().numpy().tobytes() if value.is_floating_point() else b"")
            digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def _digits_net() -> nn.Module:
    """The shapes of the digits recipe at a width of 2."""
    layers: list[nn.Module] = []
    channels = 1
    for outputs, stride in ((2, 2), (2, 1), (4, 2), (4, 1), (8, 2), (8, 1)):
        layers += [nn.Conv2d(channels, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10, bias=False))
