"""A vocabulary layer that shares its sparse weight with the embedding: the kernels serve it, with the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import autosparse
from autosparse import GMP, AutoSparse, kernels, models
from autosparse.sparsifier.small_steps import passes_of_step

pytestmark = pytest.mark.skipif(not kernels.available(), reason=f"no native kernels: {kernels.why_not()}")


def gradients(
    method: autosparse.methods.Method, mode: str, chunk: int | None = None
) -> tuple[autosparse.Sparsifier, list[Tensor]]:
    torch.manual_seed(0)
    model = models.transformer(60, 16, 2, 32, 1, 1, dropout=0.0)
    sp = autosparse.sparsify(model, method, epochs=2, steps_per_epoch=2, include=("encoder", "decoder", "output"))
    sp.compute(mode)
    source, target, wanted = (torch.randint(1, 60, (4, 7)) for _ in range(3))
    if chunk is None:
        loss = nn.functional.cross_entropy(model(source, target).flatten(0, 1), wanted.flatten())
    else:
        loss = models.chunked_cross_entropy(model.states(source, target), model.output, wanted, chunk=chunk)
    return sp, list(torch.autograd.grad(loss, list(model.parameters())))


METHODS = [
    AutoSparse(alpha=0.5, start_sparsity=0.8),
    AutoSparse(alpha=0.0, start_sparsity=0.8),
    AutoSparse(alpha=0.5, start_sparsity=0.8, threshold="channel"),
    AutoSparse(alpha=0.5, start_sparsity=0.8, backward_sparsity=0.6),
    GMP(sparsity=0.8),
]


@pytest.mark.parametrize("chunk", [None, 10])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_gradients_are_those_of_dense_compute(method: autosparse.methods.Method, chunk: int | None) -> None:
    (_, dense), (sp, sparse) = gradients(method, "dense"), gradients(method, "sparse", chunk)
    for mine, other in zip(sparse, dense, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
    vocabulary = next(layer for layer in sp.layers if layer.name == "output")
    assert [place.name for place in vocabulary.places] == ["output", "embedding"]
    assert torch.as_tensor(passes_of_step(sp)[0], dtype=torch.float64).tolist() == sp.densities()


def test_the_embedding_has_its_own_forward_again_afterwards() -> None:
    sp, _ = gradients(METHODS[0], "sparse")
    embedding = sp.model.embedding
    assert "forward" in vars(embedding)
    sp.compute("dense")
    assert "forward" not in vars(embedding)
    sp.compute("sparse")
    model = sp.finalize()
    assert "forward" not in vars(model.embedding)
    assert model.embedding.weight is model.output.weight
