"""Greedy translation with cached keys and values gives what the whole model gives token by token."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from autosparse import models
from autosparse.bench.decoding import DecoderStep, decoding_with
from autosparse.models.transformer import Transformer, greedy
from autosparse.serving import deploy
from autosparse.serving.translation import DeployedTransformer

SOURCE = torch.tensor([[4, 5, 6, 7, 8], [9, 3, 2, 0, 0], [11, 12, 0, 0, 0]])


def small(norm: str) -> Transformer:
    torch.manual_seed(3)
    model = models.transformer(vocabulary=30, size=32, heads=4, feed_forward=64, encoder_layers=1, decoder_layers=2, norm=norm)  # type: ignore[arg-type]
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear) and module is not model.output:
                module.weight *= 5.0 * (torch.rand_like(module.weight) < 0.3)
    # tied to the embedding it would repeat its last token for ever
    model.output.weight = nn.Parameter(torch.randn(30, 32))
    return model.eval()


def whole_model(model: Transformer, source: Tensor, end_id: int, max_length: int) -> Tensor:
    """The whole target again for every token."""
    start = torch.full((len(source),), 1)
    with torch.no_grad():
        return greedy(
            lambda tokens: model(source, tokens)[:, -1].argmax(-1), start, end_id=end_id, padding_id=0, max_length=max_length
        )


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_cached_keys_and_values_change_nothing(norm: str) -> None:
    model = small(norm)
    expected = whole_model(model, SOURCE, 2, 12)
    assert torch.equal(model.generate(SOURCE, 1, 2, 12), expected)
    assert len(set(expected.flatten().tolist())) > 1  # it depends on the source


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_step_that_can_be_exported_translates_alike(norm: str) -> None:
    model = small(norm)
    step = DecoderStep(model).eval()
    with torch.no_grad():
        decode = decoding_with(step, model, step.memory(model.encode(SOURCE)), SOURCE, 12)
        first, again = decode(), decode()
    assert isinstance(first, Tensor)
    assert isinstance(again, Tensor)
    assert torch.equal(first, whole_model(model, SOURCE, -1, 12))
    assert torch.equal(first, again)


@pytest.mark.filterwarnings("ignore:deploy")
def test_the_deployed_transformer_translates_alike() -> None:
    model = small("pre")
    deployed = deploy(model, (SOURCE, SOURCE), threads=1)
    assert isinstance(deployed, DeployedTransformer)
    assert torch.equal(deployed.generate(SOURCE, 1, 2, 12), whole_model(model, SOURCE, 2, 12))
    assert torch.equal(deployed.generate(SOURCE[:1], 1, 2, 3), whole_model(model, SOURCE[:1], 2, 3))


def test_serving_imports_no_model() -> None:
    code = "import sys, autosparse.serving; sys.exit(any(name.startswith('autosparse.models') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
