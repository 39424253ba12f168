"""Beam search against exhaustive search, greedy search and the model without kept keys."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autosparse.models import transformer
from autosparse.models.beam import beam_search
from autosparse.models.transformer import Transformer

PAD, START, END = 0, 1, 2


def tiny(vocabulary: int = 12, norm: str = "pre", scale: float = 4.0) -> Transformer:
    model = transformer(
        vocabulary=vocabulary, size=16, heads=2, feed_forward=24, encoder_layers=1, decoder_layers=2, norm=norm, dropout=0.0
    )  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale ** (parameter.dim() > 1))
        model.embedding.weight.mul_(0.2)
    return model.eval()


def sources(*lengths: int, vocabulary: int = 12) -> Tensor:
    rows = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        rows[row, : length - 1] = torch.randint(3, vocabulary, (length - 1,))
        rows[row, length - 1] = END
    return rows


class Opaque(nn.Module):
    """The same network as a model that is only callable."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.model(source, target)


class Table(nn.Module):
    """Next-token probabilities that depend on the last token alone."""

    def __init__(self, rows: dict[int, dict[int, float]], vocabulary: int) -> None:
        super().__init__()
        self.chances = torch.full((vocabulary, vocabulary), 1e-9)
        for last, following in rows.items():
            for token, chance in following.items():
                self.chances[last, token] = chance

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.chances.log()[target]


def search(model: nn.Module, source: Tensor, **options: object) -> Tensor:
    return beam_search(model, source, start_id=START, end_id=END, **options)  # type: ignore[arg-type]


@torch.no_grad()
def score(model: nn.Module, source: Tensor, text: list[int], length_penalty: float) -> float:
    log_probability = F.log_softmax(model(source, torch.tensor([[START, *text[:-1]]])), dim=-1)[0]
    total = sum(float(log_probability[place, token]) for place, token in enumerate(text))
    return total / ((5 + len(text)) / 6) ** length_penalty


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.5])
def test_wide_beam_finds_the_best_of_all_texts(length_penalty: float) -> None:
    model, longest = tiny(vocabulary=6), 4
    source = sources(4, 3, vocabulary=6)
    found = search(model, source, beam=64, max_length=longest, length_penalty=length_penalty)
    for row in range(2):
        one = source[row : row + 1]
        texts = [[*words, END] for count in range(longest) for words in product((1, 3, 4, 5), repeat=count)]
        # the source of a row is cut to its own length: filler must not matter
        one = one[:, : int((one != PAD).sum())]
        best = max(texts, key=lambda text: score(model, one, text, length_penalty))
        assert found[row][found[row] != PAD].tolist() == best


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("beam", [1, 3])
def test_kept_keys_change_nothing(norm: str, beam: int) -> None:
    model, source = tiny(norm=norm), sources(7, 3, 5)
    assert torch.equal(
        search(model, source, beam=beam, max_length=12), search(Opaque(model).eval(), source, beam=beam, max_length=12)
    )


def test_beam_of_one_is_greedy() -> None:
    model = tiny(vocabulary=30)
    with torch.no_grad():
        model.embedding.weight[PAD] = 0.0
    source = sources(6, 4, 9, 2, vocabulary=30)
    greedy = model.generate(source, START, END, max_length=10)
    found = search(model, source, beam=1, max_length=10)
    assert found.tolist() == greedy[:, : found.shape[1]].tolist()


def test_beam_escapes_a_greedy_mistake() -> None:
    # 3 looks better at first (0.6), but leads to 0.6 * 0.55 = 0.33; 4 leads to 0.4 * 0.9 = 0.36
    model = Table({START: {3: 0.6, 4: 0.4}, 3: {END: 0.55, 5: 0.45}, 4: {END: 0.9, 5: 0.1}, 5: {END: 1.0}}, 6).eval()
    source = torch.tensor([[3, END]])
    assert search(model, source, beam=1, length_penalty=0.0, max_length=5).tolist() == [[3, END]]
    assert search(model, source, beam=2, length_penalty=0.0, max_length=5).tolist() == [[4, END]]


def test_length_penalty_prefers_longer_texts() -> None:
    # log 0.55 = -0.598 for one token; log 0.45 = -0.799 for three, divided by 8/6: -0.599; by (8/6)^2: -0.449
    model = Table({START: {END: 0.55, 3: 0.45}, 3: {4: 1.0}, 4: {END: 1.0}}, 6).eval()
    source = torch.tensor([[3, END]])
    assert search(model, source, beam=3, length_penalty=0.0, max_length=5).tolist() == [[END]]
    assert search(model, source, beam=3, length_penalty=2.0, max_length=5).tolist() == [[3, 4, END]]


def test_rows_do_not_disturb_each_other() -> None:
    model, source = tiny(), sources(8, 2, 5, 6)
    together = search(model, source, beam=4, max_length=9)
    for row, text in enumerate(together):
        alone = search(model, source[row : row + 1, : int((source[row] != PAD).sum())], beam=4, max_length=9)
        assert text[text != PAD].tolist() == alone[0][alone[0] != PAD].tolist()


def test_text_without_end_is_cut_at_max_length() -> None:
    model = Table({START: {3: 1.0}, 3: {4: 1.0}, 4: {3: 1.0}}, 5)
    model.chances[:, END] = 0.0
    assert search(model.eval(), torch.tensor([[3, END]]), beam=2, max_length=4).tolist() == [[3, 4, 3, 4]]


def test_filler_is_never_written() -> None:
    model = Table({START: {PAD: 0.9, 3: 0.1}, 3: {END: 1.0}}, 5).eval()
    assert search(model, torch.tensor([[3, END]]), beam=2, max_length=4).tolist() == [[3, END]]


def test_bad_arguments() -> None:
    model, source = tiny(), sources(3)
    with pytest.raises(ValueError, match="beam must be at least 1, got 0"):
        search(model, source, beam=0)
    with pytest.raises(RuntimeError, match=r"call model.eval\(\) first"):
        search(model.train(), source)
