"""The native decoder: every position's states against the plain model's, and the largest logit against all of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from autosparse import models
from autosparse.kernels import library
from autosparse.models.transformer import Transformer
from autosparse.serving import deploy
from autosparse.serving.linear import PackedLinear
from autosparse.serving.translation import DeployedTransformer
from autosparse.serving.translation.decoder import MAX_CACHED_FLOATS
from autosparse.serving.translation.program import can_run
from autosparse.serving.translation.screen import Screen

pytestmark = [
    pytest.mark.filterwarnings("ignore:deploy"),
    pytest.mark.skipif(library.engine() is None, reason="no native library"),
]


@pytest.fixture(params=library.INSTRUCTION_SETS)
def instruction_set(request: pytest.FixtureRequest, choose_kernels: Callable[[str], None]) -> str:
    choose_kernels(request.param)
    return str(request.param)


def transformer(density: float, **arguments: Any) -> Transformer:
    """Small, with sizes that no vector divides, and weights large enough that every token matters."""
    sizes = {"vocabulary": 50, "size": 36, "heads": 3, "feed_forward": 50, "encoder_layers": 1, "decoder_layers": 2}
    model = models.transformer(**sizes | arguments)
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, nn.Linear) and part is not model.output:
                part.weight *= 2.0 * (torch.rand_like(part.weight) < density)
                part.bias.uniform_(-0.2, 0.2)
            if isinstance(part, nn.LayerNorm):
                part.weight.uniform_(0.5, 1.5)
                part.bias.uniform_(-0.3, 0.3)
    # tied to the embedding it would repeat its last token for ever
    model.output.weight = nn.Parameter(torch.randn_like(model.output.weight))
    return model.eval()


def sentences(batch: int, words: int) -> Tensor:
    """Of different lengths, filler at the end."""
    result = torch.randint(3, 50, (batch, words))
    for place in range(1, batch):
        result[place, 1 + place % words :] = 0
    return result


def states_of(deployed: DeployedTransformer, source: Tensor, target: Tensor) -> Tensor:
    """Logits of the native decoder, position by position."""
    decoder, model = deployed.decoder, deployed.module
    assert decoder is not None
    assert isinstance(model, Transformer)
    with torch.no_grad(), decoder.sentences(model.encode(source), source != 0, target.shape[1]) as started:
        every = [model.output(started.states(target[:, place], place)) for place in range(target.shape[1])]
    return torch.stack(every, dim=1)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("batch", "threads", "density"), [(1, 1, 0.1), (1, 2, 0.4), (3, 1, 0.1), (19, 2, 0.3), (2, 2, 1.0)])
def test_logits_are_the_plain_models(instruction_set: str, norm: str, batch: int, threads: int, density: float) -> None:
    torch.manual_seed(7)
    model = transformer(density, norm=norm)
    source, target = sentences(batch, 5), torch.randint(3, 50, (batch, 9))
    target[:, 4] = 0  # filler among the tokens is not looked at
    deployed = deploy(model, (source, target), threads=threads)
    assert isinstance(deployed, DeployedTransformer)
    assert deployed.decoder is not None
    assert deployed.decoder.engine.instruction_set == instruction_set
    with torch.no_grad():
        expected = model(source, target)
    result = states_of(deployed, source, target)
    assert (result - expected).abs().max() <= 1e-5 * expected.abs().max()
    longer = torch.cat((source, source), dim=1)  # the same room again, for other sentences
    with torch.no_grad():
        expected = model(longer, target[:, :3])
    assert (states_of(deployed, longer, target[:, :3]) - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("batch", [1, 4])
def test_what_nobody_may_see(batch: int) -> None:
    """Sentences of filler alone, and a start token that is filler: as torch has it."""
    torch.manual_seed(8)
    model = transformer(0.3)
    deployed = deploy(model, (sentences(batch, 4), torch.ones(batch, 2, dtype=torch.int64)), threads=1)
    assert isinstance(deployed, DeployedTransformer)
    nothing, target = torch.zeros(batch, 4, dtype=torch.int64), torch.tensor([[0, 5, 6]] * batch)
    with torch.no_grad():
        expected = model(nothing, target)
    assert torch.allclose(states_of(deployed, nothing, target), expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("vocabulary", [50, 1500])
def test_translations_are_the_plain_models(vocabulary: int) -> None:
    torch.manual_seed(9)
    model = transformer(0.3, vocabulary=vocabulary)
    source = sentences(3, 6)
    deployed = deploy(model, (source, source), threads=1)
    assert isinstance(deployed, DeployedTransformer)
    assert deployed.decoder is not None
    assert (deployed.decoder.screen is not None) == (vocabulary == 1500)
    for rows in (source, source[:1], source[2:]):
        assert torch.equal(deployed.generate(rows, 1, 2, 40), model.generate(rows, 1, 2, 40))
    with ThreadPoolExecutor(4) as pool:  # each with room of its own
        result = list(pool.map(lambda place: deployed.generate(source[place % 3 :][:1], 1, 2, 20), range(24)))
    for place, each in enumerate(result):
        assert torch.equal(each, model.generate(source[place % 3 :][:1], 1, 2, 20))


def test_what_the_native_decoder_leaves_to_torch(choose_kernels: Callable[[str], None]) -> None:
    torch.manual_seed(10)
    model = transformer(0.3)
    source = sentences(2, 4)
    deployed = deploy(model, (source, source), threads=1)
    assert isinstance(deployed, DeployedTransformer)
    assert deployed.decoder is not None
    assert not deployed.decoder.takes(source, MAX_CACHED_FLOATS)
    assert not deployed.decoder.takes(source[:, :0], 5)
    assert deployed.generate(source[:0], 1, 2, 5).shape[0] == 0
    with pytest.raises(ValueError, match="max_length must be at least 1, got 0"):
        deployed.generate(source, 1, 2, 0)
    assert not can_run(model)  # its layers are not packed

    class Other(Transformer):
        pass

    deployed.module.__class__ = Other
    assert not can_run(deployed.module)
    choose_kernels("off")
    plain = deploy(model, (source, source), threads=1)
    assert isinstance(plain, DeployedTransformer)
    assert plain.decoder is None
    assert torch.equal(plain.generate(source, 1, 2, 7), model.generate(source, 1, 2, 7))


def screened(weight: Tensor, threads: int = 1) -> Screen:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    packed = PackedLinear("vocabulary", layer, library.engine(), threads)
    assert Screen.suits(packed)
    return Screen(packed)


def largest(screen: Screen, x: Tensor) -> list[int] | None:
    memory = torch.zeros(x.numel() + 16)
    memory[: x.numel()] = x.flatten()
    result = screen.largest(memory[: x.numel()].view(x.shape), torch.empty(len(x) * screen.layer.out_features))
    return None if result is None else result.tolist()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**31), st.integers(1, 70), st.integers(1, 20), st.sampled_from([1, 2]), st.sampled_from([1e-3, 1.0, 1e4])
)
def test_the_largest_logits(seed: int, columns: int, tokens: int, threads: int, spread: float) -> None:
    """Rows of very different lengths; the one found is the largest up to rounding."""
    torch.manual_seed(seed)
    weight = torch.randn(1101, columns) * spread ** torch.rand(1101, 1)
    x = torch.randn(tokens, columns)
    result = largest(screened(weight, threads), x)
    assert result is not None
    exact = x.double() @ weight.double().T
    slack = 1e-5 * weight.double().norm(dim=1)[result] * x.double().norm(dim=1)
    assert (exact[range(tokens), result] >= exact.amax(1) - slack).all()


def test_ties_zeros_and_what_is_not_finite(instruction_set: str) -> None:
    torch.manual_seed(1)
    row = torch.randn(40)
    weight = torch.randn(1200, 40) * 0.01
    weight[700], weight[1100] = row, row
    for threads in (1, 2):
        screen = screened(weight, threads)
        assert largest(screen, row[None]) == [700]  # the first of equals
        assert largest(screen, torch.zeros(1, 40)) == [0]
        assert largest(screen, torch.stack((row, 0 * row, row))) == [700, 0, 700]
        assert largest(screen, row[None] * torch.nan) is None
        assert largest(screen, torch.stack((row, row * torch.inf))) is None


def test_which_layers_are_screened() -> None:
    def suits(rows: int, bias: bool, change: float = 1.0, density: float = 1.0) -> bool:
        layer = nn.Linear(16, rows, bias=bias).requires_grad_(False)
        layer.weight *= (torch.rand_like(layer.weight) < density).float()
        layer.weight[0, 0] *= change
        packed = PackedLinear("layer", layer, library.engine(), 1)
        return Screen.suits(packed)

    assert suits(2000, bias=False)
    assert not suits(1000, bias=False)
    assert not suits(2000, bias=True)
    assert not suits(2000, bias=False, change=torch.inf)
    assert not suits(2000, bias=False, density=0.05)
    assert not Screen.suits(nn.Linear(16, 2000, bias=False))
