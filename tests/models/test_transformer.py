"""The Transformer: size by a hand formula, masks, causality, both norms, greedy generation."""

import math
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from autosparse.models import transformer
from autosparse.models.attention import Attention
from autosparse.models.transformer import Transformer, sinusoidal_positions

from .counting import parameter_count, prunable

PAD, START, END = 0, 1, 2


def tiny(norm: str = "pre", dropout: float = 0.0) -> Transformer:
    return transformer(
        vocabulary=20,
        size=16,
        heads=2,
        feed_forward=24,
        encoder_layers=2,
        decoder_layers=2,
        norm=norm,  # type: ignore[arg-type]
        dropout=dropout,
    )


def by_hand(vocabulary: int, size: int, hidden: int, layers: int, *, pre_norm: bool) -> int:
    """4 d (d + 1) an attention, d h + h + h d + d a feed-forward, 2 d a norm, one shared embedding."""
    attention = 4 * size * (size + 1)
    feed_forward = size * hidden + hidden + hidden * size + size
    encoder = layers * (attention + feed_forward + 2 * 2 * size)
    decoder = layers * (2 * attention + feed_forward + 3 * 2 * size)
    return vocabulary * size + encoder + decoder + (2 * 2 * size if pre_norm else 0)


@pytest.mark.parametrize(("norm", "parameters"), [("post", 63_082_496), ("pre", 63_084_544)])
def test_base_size_agrees_with_the_hand_formula(norm: str, parameters: int) -> None:
    with torch.device("meta"):
        model = transformer(norm=norm)  # type: ignore[arg-type]
    assert parameter_count(model) == parameters
    assert by_hand(37000, 512, 2048, 6, pre_norm=norm == "pre") == parameters
    # 6 x (4 + 2) and 6 x (8 + 2) linear layers, and the output
    assert len(prunable(model)) == 36 + 60 + 1
    assert sum(prunable(model).values()) == 6 * 3_145_728 + 6 * 4_194_304 + 37000 * 512


def test_one_embedding_serves_source_target_and_output() -> None:
    model = tiny()
    assert model.output.weight is model.embedding.weight
    assert deepcopy(model).output.weight.data_ptr() != model.embedding.weight.data_ptr()
    copied = deepcopy(model)
    assert copied.output.weight is copied.embedding.weight


def test_every_linear_layer_of_attention_has_a_name() -> None:
    names = set(prunable(tiny()))
    for part in ("query", "key", "value", "out"):
        assert {
            f"encoder.0.attention.{part}",
            f"decoder.1.attention.{part}",
            f"decoder.1.cross_attention.{part}",
        } <= names
    assert {"encoder.1.feed_forward.expand", "decoder.0.feed_forward.contract", "output"} <= names


def test_attention_agrees_with_the_written_out_softmax() -> None:
    attention = Attention(6, heads=2).double()
    states, memory = torch.randn(1, 3, 6, dtype=torch.float64), torch.randn(1, 4, 6, dtype=torch.float64)
    mask = torch.tensor([[[[True, True, False, True]]]])
    query, key, value = attention.query(states)[0], attention.key(memory)[0], attention.value(memory)[0]
    heads = []
    for columns in (slice(0, 3), slice(3, 6)):
        scores = query[:, columns] @ key[:, columns].T / math.sqrt(3)
        scores[:, 2] = -math.inf
        heads.append(scores.softmax(-1) @ value[:, columns])
    expected = attention.out(torch.cat(heads, dim=1))
    assert torch.allclose(attention(states, memory, mask)[0], expected, atol=1e-12)


def test_positions_are_sines_and_cosines_of_falling_rates() -> None:
    positions = sinusoidal_positions(3, 4, torch.device("cpu"))
    expected = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in range(3)]
    assert torch.allclose(positions, torch.tensor(expected), atol=1e-6)


def test_shapes_of_forward_encode_and_decode() -> None:
    model = tiny().eval()
    source, target = torch.randint(1, 20, (3, 7)), torch.randint(1, 20, (3, 5))
    memory = model.encode(source)
    assert memory.shape == (3, 7, 16)
    assert model(source, target).shape == (3, 5, 20)
    assert torch.equal(model.decode(target, memory), model(source, target))


@pytest.mark.parametrize("norm", ["pre", "post"])
@settings(max_examples=10, deadline=None)
@given(length=st.integers(1, 6), filler=st.integers(1, 5), target_filler=st.integers(1, 5))
def test_padding_leaves_the_other_positions_alone(norm: str, length: int, filler: int, target_filler: int) -> None:
    model = tiny(norm).double().eval()
    source, target = torch.randint(1, 20, (2, length)), torch.randint(1, 20, (2, 4))
    longer = F.pad(source, (0, filler), value=PAD)
    assert torch.allclose(model.encode(longer)[:, :length], model.encode(source), atol=1e-10)
    padded = model(longer, F.pad(target, (0, target_filler), value=PAD))
    assert torch.allclose(padded[:, :4], model(source, target), atol=1e-10)


def test_padding_before_the_target_is_not_attended_to() -> None:
    """Two fillers in front and none differ by the positions only; the filler's own embedding must not matter."""
    model = tiny().double().eval()
    source, target = torch.randint(1, 20, (1, 4)), torch.tensor([[PAD, PAD, 5, 6]])
    before = model(source, target)[:, 2:, 1:]
    with torch.no_grad():
        changed = deepcopy(model)
        changed.embedding.weight[PAD] = torch.randn(16)
    assert torch.allclose(changed(source, target)[:, 2:, 1:], before, atol=1e-10)


def test_a_source_of_filler_alone_gives_finite_numbers() -> None:
    model = tiny()
    loss = model(torch.full((1, 3), PAD), torch.tensor([[START, 4]])).sum()
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("norm", ["pre", "post"])
@settings(max_examples=15, deadline=None)
@given(position=st.integers(1, 5), token=st.integers(1, 19))
def test_a_later_target_token_leaves_earlier_logits_alone(norm: str, position: int, token: int) -> None:
    model = tiny(norm).double().eval()
    source, target = torch.randint(1, 20, (1, 4)), torch.randint(1, 20, (1, 6))
    changed = target.clone()
    changed[0, position] = token % 19 + 1 if token == target[0, position] else token
    before, after = model(source, target), model(source, changed)
    assert torch.allclose(before[:, :position], after[:, :position], atol=1e-12)
    assert not torch.allclose(before[:, position], after[:, position], atol=1e-6)


def test_a_source_token_reaches_every_logit() -> None:
    model = tiny().eval()
    source, target = torch.tensor([[3, 4, 5]]), torch.tensor([[START, 6]])
    changed = torch.tensor([[3, 4, 9]])
    assert (model(source, target) - model(changed, target)).abs().amax(-1).min() > 1e-4


def test_norms_differ_and_post_norm_normalises_the_encoder_states() -> None:
    source = torch.randint(1, 20, (2, 5))
    for norm in ("pre", "post"):
        states = tiny(norm).eval().encode(source)
        assert states.mean(-1).abs().max() < 1e-5
        assert states.var(-1, unbiased=False).sub(1).abs().max() < 1e-3
    assert isinstance(tiny("post").encoder_norm, nn.Identity)
    residual = tiny("pre").get_submodule("encoder.0.attention_residual")
    big = 10 * torch.randn(1, 2, 16)
    assert torch.equal(residual.leave(big, torch.zeros_like(big)), big)  # type: ignore[operator]


def copy_task() -> tuple[Tensor, Tensor, Tensor]:
    source = torch.tensor([[5, 6, 7, END], [8, 9, END, PAD], [11, 12, 13, END]])
    start = torch.full((3, 1), START)
    return source, torch.cat((start, source[:, :-1]), dim=1), source


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_learns_to_copy_and_generates_what_it_learned(norm: str) -> None:
    model = tiny(norm)
    source, target, wanted = copy_task()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(80):
        loss = F.cross_entropy(model(source, target).flatten(0, 1), wanted.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    assert losses[-1] < 0.1
    assert model.eval().generate(source, START, END, max_length=10).tolist() == wanted.tolist()


def test_generate_takes_the_best_token_each_time_and_stops_at_its_limit() -> None:
    model = tiny().eval()
    source = torch.randint(3, 20, (16, 5))
    made = model.generate(source, START, end_id=END, max_length=4)
    tokens = torch.full((16, 1), START)
    for _ in range(made.shape[1]):
        tokens = torch.cat((tokens, model(source, tokens)[:, -1:].argmax(-1)), dim=1)
    ended = (tokens[:, 1:] == END).cumsum(1) - (tokens[:, 1:] == END).long() > 0
    assert made.shape[1] <= 4
    assert torch.equal(made, tokens[:, 1:].masked_fill(ended, PAD))


def test_generate_records_no_graph_and_sees_no_filler() -> None:
    model = tiny().double().eval()
    recorded: list[Tensor] = []
    model.output.register_forward_hook(lambda module, inputs, output: recorded.append(output))
    model.generate(torch.tensor([[4, 5]]), START, END, max_length=1)
    model.generate(torch.tensor([[4, 5, PAD, PAD]]), START, END, max_length=1)
    assert [logits.requires_grad for logits in recorded] == [False, False]
    assert torch.allclose(recorded[0], recorded[1], atol=1e-10)


def test_generate_refuses_training_mode_and_no_length() -> None:
    model = tiny(dropout=0.1)
    source = torch.tensor([[4, 5]])
    with pytest.raises(RuntimeError, match=r"call model\.eval\(\) first"):
        model.generate(source, START, END)
    with pytest.raises(ValueError, match="max_length must be at least 1, got 0"):
        model.eval().generate(source, START, END, max_length=0)


def test_dropout_acts_in_training_only() -> None:
    source, target = torch.tensor([[4, 5]]), torch.tensor([[START, 6]])
    model = tiny(dropout=0.5)
    assert not torch.equal(model(source, target), model(source, target))
    dropped: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda module, inputs, output: dropped.append(module))
    model(source, target)
    assert len(dropped) == 2 + 2 * 2 + 2 * 3  # both embeddings, then every branch
    model.eval()
    assert torch.equal(model(source, target), model(source, target))


def test_initial_weights_have_the_deviation_they_promise() -> None:
    model = transformer(1000, 128, 4, 256, 1, 1)
    assert model.embedding.weight.std().item() == pytest.approx(128**-0.5, rel=0.01)
    weights = {name: module.weight for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    for name, fans in (("encoder.0.attention.query", 256), ("decoder.0.feed_forward.expand", 384)):
        assert weights[name].abs().max().item() == pytest.approx(math.sqrt(6 / fans), rel=0.01)
    biases = [value for name, value in model.named_parameters() if name.endswith("bias")]
    assert len(biases) == 6 + 10 + 2 + 3 + 2
    assert all(value.count_nonzero() == 0 for value in biases)


def test_works_in_bfloat16() -> None:
    model = tiny().bfloat16().eval()
    assert model(torch.tensor([[4, 5, PAD]]), torch.tensor([[START, 6]])).dtype == torch.bfloat16


def test_padding_id_decides_what_is_filler() -> None:
    model = transformer(20, 16, 2, 24, 1, 1, dropout=0.0, padding_id=7).eval()
    source = torch.tensor([[3, 4]])
    assert torch.allclose(model.encode(F.pad(source, (0, 2), value=7))[:, :2], model.encode(source), atol=1e-5)
    assert not torch.allclose(model.encode(F.pad(source, (0, 2), value=9))[:, :2], model.encode(source), atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"vocabulary": 1}, ValueError, "vocabulary must be at least 2, got 1"),
        ({"size": 20, "heads": 8}, ValueError, "multiple of heads, got size 20 and 8 heads"),
        ({"size": 15, "heads": 3}, ValueError, "size must be even .* got 15"),
        ({"heads": 0}, ValueError, "heads must be at least 1, got 0"),
        ({"feed_forward": 0}, ValueError, "feed_forward must be at least 1, got 0"),
        ({"encoder_layers": 0}, ValueError, "encoder_layers must be at least 1, got 0"),
        ({"decoder_layers": 1.0}, TypeError, "decoder_layers must be a whole number, got 1.0"),
        ({"norm": "both"}, ValueError, "norm must be one of 'pre', 'post', got 'both'"),
        ({"dropout": 1.0}, ValueError, "dropout must be at least 0 and below 1, got 1.0"),
        ({"vocabulary": 30, "padding_id": 30}, ValueError, "padding_id must be a token .* 0 to 29, got 30"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with torch.device("meta"), pytest.raises(error, match=message):
        transformer(**arguments)  # type: ignore[arg-type]


def test_bad_tokens_are_named() -> None:
    model = tiny()
    with pytest.raises(ValueError, match=r"source must hold token ids as \(batch, length\), got torch.int64 \(3,\)"):
        model(torch.tensor([1, 2, 3]), torch.tensor([[1]]))
    with pytest.raises(ValueError, match="target must hold token ids"):
        model(torch.tensor([[1]]), torch.ones(1, 2))
