"""Channels removed from networks, and the time plain torch takes before and after: 3SP, shrink, train on, save, load, ONNX.

python benchmarks/channels.py [--networks resnet20 resnet50 mobilenet timm-resnet bert] [--flops 0.5 0.25] [--rounds 15]
The timm network needs the extra `zoo`. Weights and data are made up: times do not depend on them.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

import autosparse
from autosparse.common.turns import clock_for, take_turns
from autosparse.models import mobilenet_v1, resnet20, resnet50
from autosparse.structure import Shrinkage

HEAD = "| network | input | FLOPs asked | FLOPs left (torch's counter) | parameters left | forward | training step | ONNX |"


def timm_resnet() -> nn.Module:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.zoo.torchvision_stand_in import torchvision_or_stand_in

    with torchvision_or_stand_in():
        import timm
    return timm.create_model("resnet34", num_classes=1000)


class Classifier(nn.Module):
    """Logits alone, for the exporter; BERT with its own settings, without dropout so that both sides compute the same."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        self.net = BertForSequenceClassification(BertConfig(num_hidden_layers=4, hidden_dropout_prob=0.0))

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.net(input_ids=input_ids).logits
        return logits


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], int]] = {
    "resnet20": (resnet20, lambda: torch.randn(32, 3, 32, 32), 10),
    "resnet50": (resnet50, lambda: torch.randn(4, 3, 224, 224), 1000),
    "mobilenet": (mobilenet_v1, lambda: torch.randn(4, 3, 224, 224), 1000),
    "timm-resnet": (timm_resnet, lambda: torch.randn(4, 3, 224, 224), 1000),
    "bert": (Classifier, lambda: torch.randint(0, 30000, (4, 128)), 2),
}


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def flops(model: nn.Module, inputs: Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model.eval()(inputs[:2])
    return counter.get_total_flops()


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Callable[[], float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> float:
        model.train()
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def forward(model: nn.Module, inputs: Tensor) -> Callable[[], Any]:
    def run() -> Any:
        model.eval()
        with torch.inference_mode():
            return model(inputs)

    return run


def pruned(build: Callable[[], nn.Module], batch: tuple[Tensor, Tensor], left: float) -> tuple[nn.Module, Shrinkage, float]:
    """By 3SP, with two steps of training, then without the channels; Test F of the ledger is the third."""
    model, method = build(), autosparse.ThreeSP(flops=left)
    sp = autosparse.sparsify(model, method, epochs=1, steps_per_epoch=2, example_input=batch[0][:2])
    sp.announces_speed = False
    sp.score([batch], loss_of)
    optimizer = torch.optim.SGD(sp.param_groups(), lr=1e-3, momentum=0.9)
    sp.bind(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    sp.end_epoch()
    counted = sp.cost.test_fraction
    sp.finalize(shrink=True)
    assert sp.shrinkage is not None
    return model, sp.shrinkage, counted


def reloaded(build: Callable[[], nn.Module], model: nn.Module, report: Shrinkage, inputs: Tensor) -> None:
    """Saved as weights and a plan, and loaded into a fresh model: the same outputs."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    fresh = autosparse.shrink_like(build(), json.loads(json.dumps(report.plan.to_dict())))
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(forward(fresh, inputs[:2])(), forward(model, inputs[:2])())


@contextmanager
def quietly() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def exported(model: nn.Module, inputs: Tensor) -> str:
    from autosparse.export import save_onnx

    try:
        with tempfile.TemporaryDirectory() as folder, quietly():
            difference = save_onnx(copy.deepcopy(model), Path(folder) / "model.onnx", [inputs[:2]])
        return f"yes, {difference:.0e} apart"
    except Exception as error:  # the exporter's own limits
        return f"no: {type(error).__name__}"


def row(name: str, left: float, rounds: int, onnx: bool) -> str:
    build, data, classes = NETWORKS[name]
    torch.manual_seed(0)
    inputs = data()
    batch = inputs, torch.randint(classes, (len(inputs),))
    model, report, counted = pruned(build, batch, left)
    dense = build()
    share = flops(model, inputs) / flops(dense, inputs)
    assert abs(share - counted) < 1e-9, (share, counted)
    reloaded(build, model, report, inputs)
    clock = clock_for(torch.get_num_threads())
    forwards = {"dense": forward(dense, inputs), "smaller": forward(model, inputs)}
    steps = {"dense": training_step(dense, batch), "smaller": training_step(model, batch)}
    cells = []
    for calls in (forwards, steps):
        take_turns(calls, 2, clock=clock)
        seconds = {key: 1000 * median(each) for key, each in take_turns(calls, rounds, clock=clock).items()}
        cells.append(f"{seconds['dense']:.1f} to {seconds['smaller']:.1f} ms: {seconds['dense'] / seconds['smaller']:.2f}")
    shape = "x".join(map(str, inputs.shape))
    kept = report.parameters_after / report.parameters_before
    onnx_cell = exported(model, inputs) if onnx else "not tried"
    return f"| {name} | {shape} | {left:.2f} | {share:.3f} | {kept:.3f} | {cells[0]} | {cells[1]} | {onnx_cell} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--flops", nargs="+", type=float, default=[0.5, 0.25])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-onnx", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(HEAD)
    print("|---|---|---|---|---|---|---|---|")
    for name in arguments.networks:
        for left in arguments.flops:
            print(row(name, left, arguments.rounds, not arguments.no_onnx), flush=True)


if __name__ == "__main__":
    main()
