"""Sentence pairs from files, parquet and local hub copies, and the errors that name what was looked for."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, Features, Translation

from autosparse.data.config import TranslationData
from autosparse.data.pairs import all_sentences, open_pairs

ENGLISH = ["A dog runs.", "Two men  talk.", "A cat\u2028sleeps.", "A tree"]
GERMAN = ["Ein Hund rennt.", "Zwei Männer reden.", "Eine Katze\x85schläft.", "Ein Baum"]


def config(**fields: Any) -> TranslationData:
    return TranslationData(**{"kind": "translation", "source": "files", "tokens_per_batch": 64, "vocabulary": 300, **fields})


def write(folder: Path, name: str, lines: list[str], end: str = "\n") -> None:
    (folder / name).write_bytes("".join(line + end for line in lines).encode())


def test_files_plain_and_gzip(tmp_path: Path) -> None:
    write(tmp_path, "train.en", ENGLISH)
    (tmp_path / "train.de.gz").write_bytes(gzip.compress("\n".join(GERMAN).encode()))  # no newline at its end
    pairs = open_pairs(config(path=str(tmp_path)), "train")
    assert pairs.count == 4
    assert all_sentences(pairs) == (ENGLISH, GERMAN)
    assert all_sentences(pairs) == (ENGLISH, GERMAN), "a second pass gives the same"


def test_windows_line_ends_and_limit(tmp_path: Path) -> None:
    write(tmp_path, "val.en", ENGLISH, "\r\n")
    write(tmp_path, "val.de", GERMAN, "\r\n")
    pairs = open_pairs(config(path=str(tmp_path)), "val", limit=2)
    assert pairs.count == 2
    assert all_sentences(pairs) == (ENGLISH[:2], GERMAN[:2])


def test_languages_decide_the_direction(tmp_path: Path) -> None:
    write(tmp_path, "train.en", ENGLISH)
    write(tmp_path, "train.de", GERMAN)
    assert all_sentences(open_pairs(config(path=str(tmp_path), languages=("de", "en")), "train")) == (GERMAN, ENGLISH)


def test_missing_file_names_both_places_and_what_is_there(tmp_path: Path) -> None:
    write(tmp_path, "val.en", ENGLISH)
    with pytest.raises(FileNotFoundError) as error:
        open_pairs(config(path=str(tmp_path)), "train")
    for part in (str(tmp_path / "train.en"), str(tmp_path / "train.en.gz"), "holds val.en"):
        assert part in str(error.value)
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        open_pairs(config(path=str(tmp_path / "nowhere")), "train")


def test_files_of_different_length_and_empty_files(tmp_path: Path) -> None:
    write(tmp_path, "train.en", ENGLISH)
    write(tmp_path, "train.de", GERMAN[:3])
    with pytest.raises(ValueError, match=r"train\.en has 4 lines but .*train\.de has 3"):
        open_pairs(config(path=str(tmp_path)), "train")
    write(tmp_path, "train.de", [])
    with pytest.raises(ValueError, match=r"train\.de is empty"):
        open_pairs(config(path=str(tmp_path)), "train")


def test_text_that_is_not_utf8_names_file_and_line(tmp_path: Path) -> None:
    write(tmp_path, "train.en", ENGLISH)
    (tmp_path / "train.de").write_bytes("a\nb\nM\xe4nner\nd\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"train\.de, line 3, is not UTF-8"):
        open_pairs(config(path=str(tmp_path)), "train")


def translation_table() -> Dataset:
    rows = [{"en": source, "de": target} for source, target in zip(ENGLISH, GERMAN, strict=True)]
    return Dataset.from_dict({"translation": rows}, features=Features({"translation": Translation(languages=["de", "en"])}))


def two_columns() -> Dataset:
    return Dataset.from_dict({"en": ENGLISH, "de": GERMAN, "id": list(range(4))})


@pytest.mark.parametrize("table", [translation_table, two_columns])
def test_parquet_as_the_hub_lays_it_out(tmp_path: Path, table: Any) -> None:
    folder = tmp_path / "wmt14" / "de-en"
    folder.mkdir(parents=True)
    whole = table()
    whole.select(range(2)).to_parquet(folder / "train-00000-of-00002.parquet")
    whole.select(range(2, 4)).to_parquet(folder / "train-00001-of-00002.parquet")
    settings = config(source="parquet", path=str(tmp_path / "wmt14"), subset="de-en")
    pairs = open_pairs(settings, "train", cache=tmp_path / "cache")
    assert all_sentences(pairs) == (ENGLISH, GERMAN)
    assert open_pairs(settings, "train", limit=3, cache=tmp_path / "cache").count == 3


def test_missing_parquet_names_the_patterns(tmp_path: Path) -> None:
    two_columns().to_parquet(tmp_path / "train.parquet")
    with pytest.raises(FileNotFoundError, match=r"validation-\*\.parquet.*holds train\.parquet"):
        open_pairs(config(source="parquet", path=str(tmp_path)), "validation", cache=tmp_path / "cache")


def test_columns_of_other_languages_are_listed(tmp_path: Path) -> None:
    Dataset.from_dict({"fr": ENGLISH, "de": GERMAN}).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"no sentences in en and de.*fr"):
        open_pairs(config(source="parquet", path=str(tmp_path)), "train", cache=tmp_path / "cache")


def test_local_copy_of_a_hub_dataset(tmp_path: Path) -> None:
    folder = tmp_path / "multi30k"
    folder.mkdir()
    two_columns().to_json(folder / "train.jsonl")
    two_columns().select([1]).to_json(folder / "val.jsonl")
    settings = config(source="hub", hub=str(folder))
    assert all_sentences(open_pairs(settings, "train", cache=tmp_path / "cache")) == (ENGLISH, GERMAN)
    assert open_pairs(settings, "validation", cache=tmp_path / "cache").count == 1
    with pytest.raises(OSError, match=r"cannot open .*multi30k.*"):
        open_pairs(settings, "test", cache=tmp_path / "cache")


def test_missing_values_are_empty_sentences(tmp_path: Path) -> None:
    Dataset.from_dict({"en": ["A", None], "de": ["B", "C"]}).to_parquet(tmp_path / "train.parquet")
    pairs = open_pairs(config(source="parquet", path=str(tmp_path)), "train", cache=tmp_path / "cache")
    assert all_sentences(pairs) == (["A", ""], ["B", "C"])
