"""Translation batches: shapes and tokens, lengths, order, shares of ranks, the tokenizer and its cache."""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autosparse.data import open_data
from autosparse.data.batches import Data
from autosparse.data.config import TranslationData
from autosparse.data.tokenizer import END_ID, PADDING_ID, START_ID, Text, open_tokenizer, read_tokenizer, train_tokenizer
from autosparse.data.translation import EncodedPairs, Rows, group_by_length, open_held_out, training_groups

NOUNS = ("dog", "cat", "man", "tree", "house", "girl")
VERBS = ("sees", "likes", "finds", "paints")


def sentence(number: int) -> tuple[str, str]:
    words = [("a", NOUNS[number * (place + 3) % 6], VERBS[(number + place) % 4]) for place in range(1 + number % 5)]
    english = " and ".join(" ".join(word) for word in words)
    return english.capitalize() + ".", english.replace("a ", "ein ").replace("and", "und").capitalize() + "!"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pairs")
    for split, numbers in (("train", range(200)), ("val", range(200, 223)), ("test", range(300, 311))):
        pairs = [sentence(number) for number in numbers]
        for side, language in enumerate(("en", "de")):
            (place / f"{split}.{language}").write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    return place


def config(folder: Path, **fields: Any) -> TranslationData:
    usual = {"kind": "translation", "source": "files", "path": str(folder), "validation_split": "val"}
    return TranslationData(**{**usual, "tokens_per_batch": 200, "vocabulary": 320, **fields})


def opened(folder: Path, rank: int = 0, world: int = 1, seed: int = 0, **fields: Any) -> Data:
    return open_data(config(folder, **fields), seed=seed, rank=rank, world=world, cache=folder / "cache")


def rows_of(batches: Any, epoch: int = 0) -> list[tuple[int, ...]]:
    """Every row of an epoch as (target tokens without filler)."""
    return [tuple(row[row != PADDING_ID].tolist()) for _, target in batches.epoch(epoch) for row in target]


def test_a_batch_is_source_and_shifted_target(folder: Path) -> None:
    data = opened(folder)
    assert data.text is not None
    known = {tuple(data.text.encode(pair[1])): tuple(data.text.encode(pair[0])) for pair in map(sentence, range(200))}
    for (source, target_in), target_out in data.train.epoch(0):
        assert source.dtype == target_in.dtype == target_out.dtype == torch.int64
        assert target_in.shape == target_out.shape
        for one_source, one_in, one_out in zip(source, target_in, target_out, strict=True):
            length = int((one_out != PADDING_ID).sum())
            words = one_out[: length - 1].tolist()
            assert one_out[length - 1] == END_ID
            assert one_in[:length].tolist() == [START_ID, *words]
            assert not one_in[length:].any()
            assert not one_out[length:].any()
            expected = known[tuple(words)]
            assert one_source[: len(expected) + 1].tolist() == [*expected, END_ID]
            assert not one_source[len(expected) + 1 :].any()


def test_batches_hold_no_more_tokens_than_asked_and_nearly_as_many(folder: Path) -> None:
    data = opened(folder)
    sizes = [target.numel() for _, target in data.train.epoch(0)]
    assert max(sizes) <= 200
    assert np.mean(sizes) > 150
    filler = np.mean([float((target == PADDING_ID).float().mean()) for _, target in data.train.epoch(0)])
    assert filler < 0.1


def test_every_pair_is_in_every_epoch_and_batches_change_their_order(folder: Path) -> None:
    data = opened(folder)
    assert data.text is not None
    assert data.train.steps == len(list(data.train.epoch(0))) == len(list(data.train.epoch(5)))
    first, second = rows_of(data.train, 0), rows_of(data.train, 1)
    assert first == rows_of(data.train, 0)
    assert first != second
    assert sorted(first) == sorted(second)
    everything = sorted((*data.text.encode(sentence(number)[1]), END_ID) for number in range(200))
    lost = len(everything) - len(first)
    # only a last batch that is less than half full is left out
    assert 0 <= lost * len(min(everything, key=len)) < 100


def test_skip_continues_an_epoch(folder: Path) -> None:
    data = opened(folder)
    whole = list(data.train.epoch(3))
    for skip in (0, 1, data.train.steps - 1, data.train.steps):
        rest = list(data.train.epoch(3, skip=skip))
        assert len(rest) == len(whole) - skip
        for (inputs, target), (same_inputs, same_target) in zip(rest, whole[skip:], strict=True):
            assert torch.equal(target, same_target)
            assert all(torch.equal(one, same) for one, same in zip(inputs, same_inputs, strict=True))


def test_workers_change_nothing(folder: Path) -> None:
    state = torch.get_rng_state()
    alone, helped = (opened(folder, workers=workers) for workers in (0, 2))
    assert rows_of(alone.train, 1) == rows_of(helped.train, 1)
    assert rows_of(alone.test) == rows_of(helped.test)
    assert len(list(helped.train.epoch(1, skip=2))) == alone.train.steps - 2
    assert torch.equal(torch.get_rng_state(), state), "a resumed run would part from an unbroken one"


def test_seed_changes_order(folder: Path) -> None:
    assert rows_of(opened(folder, seed=0).train) != rows_of(opened(folder, seed=1).train)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_same_global_batches(folder: Path, world: int) -> None:
    alone = opened(folder)
    ranks = [opened(folder, rank=rank, world=world) for rank in range(world)]
    assert {data.train.steps for data in ranks} == {alone.train.steps}
    assert {data.train.samples for data in ranks} == {alone.train.samples}
    for together, *parts in zip(alone.train.epoch(2), *(data.train.epoch(2) for data in ranks), strict=True):
        wanted = sorted(tuple(row[row != 0].tolist()) for row in together[1])
        shares = [[tuple(row[row != 0].tolist()) for row in part[1]] for part in parts]
        assert sorted(row for share in shares for row in share) == wanted
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_held_out_pair_is_on_exactly_one_rank(folder: Path, world: int) -> None:
    ranks = [opened(folder, rank=rank, world=world) for rank in range(world)]
    for name, count in (("validation", 23), ("test", 11)):
        rows = [row for data in ranks for row in rows_of(getattr(data, name))]
        assert sorted(rows) == sorted(rows_of(getattr(opened(folder), name)))
        assert len(rows) == getattr(ranks[0], name).samples == count


def test_held_out_sentences_are_raw_and_whole(folder: Path) -> None:
    data = opened(folder, max_length=12)
    assert data.text is not None
    assert list(data.text.sources["test"]) == [sentence(number)[0] for number in range(300, 311)]
    assert list(data.text.references["validation"]) == [sentence(number)[1] for number in range(200, 223)]
    longest = max(len(data.text.encode(each)) for each in data.text.references["test"])
    assert longest > 12
    assert max(target.shape[1] for _, target in data.test.epoch(0)) == longest + 1


def test_max_length_and_limit_leave_training_pairs_out(folder: Path) -> None:
    short = opened(folder, max_length=12)
    assert short.facts["training pairs"] + short.facts["left out (too long or empty)"] == 200
    assert 0 < short.train.samples == short.facts["training pairs"] < 200
    assert max(target.shape[1] for _, target in short.train.epoch(0)) <= 13
    assert opened(folder, limit=50, limit_test=5).facts["training pairs"] == 50
    assert opened(folder, limit_test=5).test.samples == 5


def test_impossible_settings_say_what_to_change(folder: Path) -> None:
    with pytest.raises(ValueError, match="tokens_per_batch = 16 is less than the longest training sentence"):
        opened(folder, tokens_per_batch=16)
    with pytest.raises(ValueError, match="max_length = 2 tokens"):
        opened(folder, max_length=2)
    with pytest.raises(ValueError, match="12 processes for 11 test samples"):
        opened(folder, world=12, tokens_per_batch=4000)
    with pytest.raises(ValueError, match="start fewer processes"):
        opened(folder, world=10)


def lengths_only(source: list[int], target: list[int]) -> EncodedPairs:
    def side(lengths: list[int]) -> Rows:
        counts = np.asarray(lengths, dtype=np.int64)
        return Rows(np.ones(int(counts.sum()), dtype=np.uint16), np.cumsum(counts) - counts, counts)

    return EncodedPairs(side(source), side(target))


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=80), st.integers(31, 200))
@settings(max_examples=60, deadline=None)
def test_groups_hold_every_row_once_within_both_limits(lengths: list[tuple[int, int]], tokens: int) -> None:
    pairs = lengths_only([pair[0] for pair in lengths], [pair[1] for pair in lengths])
    groups = group_by_length(pairs, np.arange(len(lengths)), tokens)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(lengths)))
    for group in groups:
        assert len(group) * (max(lengths[row][1] for row in group) + 1) <= tokens
        assert len(group) * (max(lengths[row][0] for row in group) + 1) <= 2 * tokens


def test_a_small_rest_is_left_out_and_a_large_one_kept() -> None:
    # 4 targets of 9 + 1 tokens fill a batch of 40; of the rest, 1 row has 10 of 40 tokens, 2 rows have 20
    pairs = lengths_only([9] * 9, [9] * 9)
    assert [len(group) for group in training_groups(pairs, np.arange(9), 40, seed=0, world=1)] == [4, 4]
    pairs = lengths_only([9] * 10, [9] * 10)
    assert [len(group) for group in training_groups(pairs, np.arange(10), 40, seed=0, world=1)] == [4, 4, 2]
    assert [len(group) for group in training_groups(pairs, np.arange(1), 40, seed=0, world=1)] == [1]


def test_special_tokens_come_first_and_text_cannot_fake_them(folder: Path) -> None:
    data = opened(folder)
    assert isinstance(data.text, Text)
    assert data.padding_id == PADDING_ID == 0
    assert [data.text.tokenizer.id_to_token(piece) for piece in range(4)] == ["<pad>", "<s>", "</s>", "<unk>"]
    assert min(data.text.encode("a </s> b <pad> <s><unk>")) > 3
    assert data.text.decode([*data.text.encode("A dog."), END_ID, 17, 18]) == "A dog."


class Few:
    count = 3

    def pieces(self) -> Any:
        yield ["A dog runs.", "a dog", "The dog runs fast"], ["Ein Hund rennt.", "ein Hund", "Der Hund rennt schnell"]


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back(text: str) -> None:
    tools = Text(trained())
    assert tools.decode(tools.encode(text)).split() == text.split()


@cache
def trained() -> Any:
    tokenizer = train_tokenizer(Few(), 320, False)
    tokenizer.encode_special_tokens = True
    return tokenizer


def test_lowercase(folder: Path) -> None:
    data = opened(folder, lowercase=True)
    assert data.text is not None
    assert data.text.lowercase
    assert data.text.decode(data.text.encode("Ein Hund. ÄÖ")) == "ein hund. äö"


def test_a_damaged_tokenizer_is_told_even_where_its_library_panics(tmp_path: Path) -> None:
    content = json.loads(train_tokenizer(Few(), 320, False).to_str())
    content["model"]["continuing_subword_prefix"] = "longer than any piece of the text"
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"tokenizer\.json is damaged"):
        read_tokenizer(tmp_path / "tokenizer.json")


def test_tokenizer_is_trained_once_for_the_same_text_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_tokenizer(Few(), 320, False, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    open_tokenizer(Few(), 320, True, tmp_path)
    open_tokenizer(Few(), 310, False, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    monkeypatch.setattr("autosparse.data.tokenizer.train_tokenizer", None)
    assert open_tokenizer(Few(), 320, False, tmp_path).get_vocab() == first.get_vocab()


def test_damaged_cache_is_named(tmp_path: Path) -> None:
    open_tokenizer(Few(), 320, False, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text(encoding="utf-8")[:100], encoding="utf-8")
    with pytest.raises(ValueError, match=f"{path.name} is damaged"):
        open_tokenizer(Few(), 320, False, tmp_path)


def test_cache_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.warns(UserWarning, match="could not be saved"):
        tokenizer = open_tokenizer(Few(), 320, False, blocked)
    assert tokenizer.get_vocab_size() > 260


def test_missing_package_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(RuntimeError, match=r'pip install "autosparse\[text\]"'):
        train_tokenizer(Few(), 320, False)


def test_default_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    open_tokenizer(Few(), 320, False)
    assert [path.suffix for path in (tmp_path / "autosparse").iterdir()] == [".json"]


def test_held_out_alone_uses_the_saved_tokenizer(folder: Path, tmp_path: Path) -> None:
    data = opened(folder)
    assert data.text is not None
    data.text.save(tmp_path / "tokenizer.json")
    again = open_held_out(config(folder, train_split="gone", vocabulary=5000), tmp_path / "tokenizer.json")
    assert again.text is not None
    assert again.text.vocabulary == data.text.vocabulary
    assert rows_of(again.test) == rows_of(data.test)
    assert again.train.steps == 0
    with pytest.raises(FileNotFoundError, match=r"no tokenizer .*other\.json"):
        open_held_out(config(folder), tmp_path / "other.json")
