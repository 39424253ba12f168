"""The pretended device itself: what it refuses, what it counts, and that it survives copies and files."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from .pretend import DEVICE, READS, PretendTensor


def on_device(*values: float) -> Tensor:
    return torch.tensor([float(value) for value in values], device=DEVICE)


def test_factories_and_moves_give_tensors_of_the_device() -> None:
    made = [torch.zeros(2, device=DEVICE), torch.arange(3, device=DEVICE), on_device(1.0), torch.ones(2).to(DEVICE)]
    made += [torch.zeros_like(made[0]), made[0].new_ones(2), made[0] + 1, made[0][0]]
    assert all(isinstance(each, PretendTensor) and each.device == DEVICE for each in made)
    assert made[0].cpu().device.type == "cpu"
    assert on_device(1, 2).tolist() == [1, 2]


MIXED: list[Callable[[Tensor], object]] = [
    lambda x: x + torch.ones(3),
    lambda x: x.mul_(torch.ones(3)),
    lambda x: torch.ones(3).add_(x),
    lambda x: torch.tensor(1.0).add_(x[0]),
    lambda x: torch.cat([x, torch.ones(3)]),
    lambda x: torch.stack([x[0], torch.tensor(1.0)]),
    lambda x: torch.where(torch.ones(3) > 0, x, x),
    lambda x: torch.add(x, x, out=torch.empty(3)),
    lambda x: nn.Linear(3, 2)(x),
]


@pytest.mark.parametrize("mix", MIXED)
def test_cpu_tensors_are_refused(mix: Callable[[Tensor], object]) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        mix(on_device(1, 2, 3))


def test_numbers_and_indices_of_the_cpu_are_taken() -> None:
    x = on_device(1, 2, 3)
    assert (x * torch.tensor(2.0)).tolist() == [2, 4, 6]
    assert x[torch.tensor([2, 0])].tolist() == [3, 1]


READING: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool(x[0] > 0),
    "float": lambda x: float(x[0]),
    "list": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "copy": lambda x: torch.empty(3).copy_(x),
    "equal": lambda x: torch.equal(x, x),
    "mask": lambda x: x[x > 1],
    "nonzero": lambda x: x.nonzero(),
    "masked select": lambda x: x.masked_select(x > 1),
}
WAITING_FOR_NOTHING: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda x: x.add(1).sum(),
    "upload": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "copy": lambda x: x.copy_(torch.ones(3)),
    "fill": lambda x: x.masked_fill_(x > 1, 0),
    "where": lambda x: torch.where(x > 1, x, 0),
    "mask set to a number": lambda x: x.__setitem__(x > 1, 0.0),  # type: ignore[func-returns-value]
    "rows": lambda x: x[torch.tensor([0, 1], device=x.device)],
}


@pytest.mark.parametrize("name", READING)
def test_reads_are_counted(name: str) -> None:
    with READS.watch() as reads:
        READING[name](on_device(1, 2, 3))
    assert len(reads) == 1


@pytest.mark.parametrize("name", WAITING_FOR_NOTHING)
def test_what_needs_no_answer_is_not_counted(name: str) -> None:
    with READS.watch() as reads:
        WAITING_FOR_NOTHING[name](on_device(1, 2, 3))
    assert reads == []


def test_views_and_writes_reach_the_same_values() -> None:
    x = on_device(1, 2, 3, 4)
    rows = x.view(2, 2)
    assert rows.add_(1) is rows
    assert x.tolist() == [2, 3, 4, 5]


def test_gradients_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    net, x = (
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)),
        torch.randn(4, 2, 4, 4),
    )
    twin = copy.deepcopy(net).to(DEVICE)
    net(x).square().sum().backward()
    twin(x.to(DEVICE)).square().sum().backward()
    for plain, other in zip(net.parameters(), twin.parameters(), strict=True):
        assert plain.grad is not None
        assert other.grad is not None
        assert torch.equal(plain.grad, other.grad.cpu())
    assert torch.equal(net[1].running_var, twin[1].running_var.cpu())


def test_copies_and_files_stay_on_the_device() -> None:
    net = nn.Linear(3, 2).to(DEVICE)
    twin = copy.deepcopy(net)
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    buffer.seek(0)
    twin.weight.data.zero_()
    assert net.weight.abs().sum().item() > 0
    loaded = torch.load(buffer, weights_only=True)
    assert isinstance(loaded["weight"], PretendTensor)
    twin.load_state_dict(loaded)
    assert torch.equal(twin.weight, net.weight)
    assert isinstance(twin.weight, nn.Parameter)
