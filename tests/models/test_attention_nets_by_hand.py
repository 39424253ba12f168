"""Both attention nets agree with their equations, written out here from the state dict alone."""

import math

import pytest
import torch
from torch import Tensor

from autosparse.models import small_transformer, transformer

State = dict[str, Tensor]


def linear(state: State, name: str, states: Tensor) -> Tensor:
    return states @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def layer_norm(state: State, name: str, states: Tensor) -> Tensor:
    centred = states - states.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]


def attention(state: State, name: str, states: Tensor, memory: Tensor, heads: int, *, causal: bool = False) -> Tensor:
    query, key, value = (
        linear(state, f"{name}.query", states),
        linear(state, f"{name}.key", memory),
        linear(state, f"{name}.value", memory),
    )
    seen = []
    for head in zip(query.chunk(heads, -1), key.chunk(heads, -1), value.chunk(heads, -1), strict=True):
        scores = head[0] @ head[1].T / math.sqrt(head[0].shape[1])
        if causal:
            scores = scores + torch.full_like(scores, -math.inf).triu(1)
        seen.append(scores.softmax(-1) @ head[2])
    return linear(state, f"{name}.out", torch.cat(seen, dim=-1))


def feed_forward(state: State, name: str, states: Tensor) -> Tensor:
    return linear(state, f"{name}.contract", linear(state, f"{name}.expand", states).clamp(min=0))


def embed(state: State, tokens: list[int], size: int) -> Tensor:
    rows = []
    for position, token in enumerate(tokens):
        angles = [position / 10000 ** (column // 2 * 2 / size) for column in range(size)]
        waves = [math.cos(angle) if column % 2 else math.sin(angle) for column, angle in enumerate(angles)]
        rows.append(state["embedding.weight"][token] * math.sqrt(size) + torch.tensor(waves, dtype=torch.float64))
    return torch.stack(rows)


def scrambled(model: torch.nn.Module) -> State:
    """Random numbers in every parameter, so that no gain of one or bias of zero hides a missing piece."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return {name: value.detach() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("pre", [True, False])
def test_transformer_agrees_with_its_equations(pre: bool) -> None:
    model = transformer(11, 8, 2, 12, 2, 2, norm="pre" if pre else "post").double().eval()
    state = scrambled(model)

    def residual(name: str, states: Tensor, branch: object) -> Tensor:
        assert callable(branch)
        if pre:
            return states + branch(layer_norm(state, f"{name}_residual.norm", states))  # type: ignore[no-any-return]
        return layer_norm(state, f"{name}_residual.norm", states + branch(states))

    source, target = [3, 7, 1, 9], [2, 5, 10]
    memory = embed(state, source, 8)
    for layer in ("encoder.0", "encoder.1"):
        name = f"{layer}.attention"
        memory = residual(name, memory, lambda x, name=name: attention(state, name, x, x, 2))
        name = f"{layer}.feed_forward"
        memory = residual(name, memory, lambda x, name=name: feed_forward(state, name, x))
    memory = layer_norm(state, "encoder_norm", memory) if pre else memory
    states = embed(state, target, 8)
    for layer in ("decoder.0", "decoder.1"):
        name = f"{layer}.attention"
        states = residual(name, states, lambda x, name=name: attention(state, name, x, x, 2, causal=True))
        name = f"{layer}.cross_attention"
        states = residual(name, states, lambda x, name=name: attention(state, name, x, memory, 2))
        name = f"{layer}.feed_forward"
        states = residual(name, states, lambda x, name=name: feed_forward(state, name, x))
    states = layer_norm(state, "decoder_norm", states) if pre else states
    expected = states @ state["embedding.weight"].T
    # positions are computed in single precision
    assert torch.allclose(model(torch.tensor([source]), torch.tensor([target]))[0], expected, atol=1e-4)


def test_small_transformer_agrees_with_its_equations() -> None:
    model = small_transformer(classes=3, in_channels=2, image_size=6, rows=2, size=8, heads=2).double()
    state = scrambled(model)
    image = torch.randn(2, 6, 6, dtype=torch.float64)
    tokens = [torch.cat([image[:, row].flatten() for row in (first, first + 1)]) for first in (0, 2, 4)]
    states = linear(state, "embed", torch.stack(tokens)) + state["positions"]
    for block in ("blocks.0", "blocks.1"):
        inner = layer_norm(state, f"{block}.attention_norm", states)
        states = states + attention(state, f"{block}.attention", inner, inner, 2)
        inner = layer_norm(state, f"{block}.feed_forward_norm", states)
        states = states + feed_forward(state, f"{block}.feed_forward", inner)
    expected = linear(state, "head", layer_norm(state, "norm", states).mean(0))
    assert torch.allclose(model(image.unsqueeze(0))[0], expected, atol=1e-10)
