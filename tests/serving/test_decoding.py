"""Greedy translation with kept keys and values gives what the plain model's `generate` gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autosparse import models
from autosparse.models.transformer import Transformer
from autosparse.serving.engine import DeployedTransformer, deploy
from autosparse.serving.translation.step import greedy


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


SOURCE = torch.tensor([[4, 5, 6, 7, 8], [9, 3, 2, 0, 0], [11, 12, 0, 0, 0]])


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_greedy_is_generate(norm: str) -> None:
    model = small(norm)
    found = greedy(model, SOURCE, 1, 2, 12)
    assert torch.equal(found, model.generate(SOURCE, 1, 2, 12))
    assert len(set(found.flatten().tolist())) > 1  # it depends on the source


@pytest.mark.filterwarnings("ignore:deploy")
def test_the_deployed_transformer_translates_alike() -> None:
    model = small("pre")
    deployed = deploy(model, (SOURCE, SOURCE), threads=1)
    assert isinstance(deployed, DeployedTransformer)
    assert torch.equal(deployed.generate(SOURCE, 1, 2, 12), model.generate(SOURCE, 1, 2, 12))
    assert torch.equal(deployed.generate(SOURCE[:1], 1, 2, 3), model.generate(SOURCE[:1], 1, 2, 3))


def test_refusals() -> None:
    model = small("pre")
    with pytest.raises(ValueError, match="max_length must be 1 or more, got 0"):
        greedy(model, SOURCE, 1, 2, 0)
    with pytest.raises(RuntimeError, match="evaluation mode"):
        greedy(model.train(), SOURCE, 1, 2)
