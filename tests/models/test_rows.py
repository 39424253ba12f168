"""The networks for rows of a table and for texts."""

import pytest
import torch

from autosparse import models


def test_an_mlp_has_the_layers_that_were_asked_for() -> None:
    net = models.mlp(5, classes=3, width=8, layers=2)
    assert [tuple(parameter.shape) for parameter in net.parameters() if parameter.ndim == 2] == [(8, 5), (3, 8)]
    assert net(torch.zeros(4, 5)).shape == (4, 3)


def test_a_text_classifier_reads_the_order_of_words_and_refuses_long_texts() -> None:
    torch.manual_seed(0)
    net = models.text_classifier(classes=3, vocabulary=50, length=8, size=16, blocks=1, heads=2).eval()
    words = torch.tensor([[4, 9, 0, 0, 0, 0, 0, 0]])
    assert net(words).shape == (1, 3)
    assert not torch.allclose(net(words), net(torch.tensor([[9, 4, 0, 0, 0, 0, 0, 0]])))
    with pytest.raises(ValueError, match="up to 8 ids"):
        net(torch.ones(1, 9, dtype=torch.int64))
