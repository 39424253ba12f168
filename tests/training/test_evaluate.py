"""Scoring finished runs: accuracy, BLEU, checkpoints, other splits, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autosparse.data import open_data
from autosparse.data.config import TranslationData
from autosparse.recipes.loading import check_recipe
from autosparse.training.evaluate import bleu, evaluate, translate
from autosparse.training.run import train

PAIRS = [
    ("A dog runs over the green grass.", "Ein Hund rennt über das grüne Gras."),
    ("Two men are sitting on a bench.", "Zwei Männer sitzen auf einer Bank."),
    ("The girl eats a red apple today.", "Das Mädchen isst heute einen roten Apfel."),
    ("A woman is reading her old book.", "Eine Frau liest ihr altes Buch."),
    ("Children play in front of a house.", "Kinder spielen vor einem Haus."),
    ("A man paints the wall of a shop.", "Ein Mann streicht die Wand eines Ladens."),
]


def write_pairs(folder: Path) -> None:
    folder.mkdir()
    # the test split repeats the training pairs, so that a model that learned them by heart is right
    for split, pairs in (("train", PAIRS * 4), ("validation", PAIRS[:2]), ("test", PAIRS), ("other", PAIRS[:3])):
        for side, language in enumerate(("en", "de")):
            (folder / f"{split}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")


def translation_recipe(folder: Path, method: dict[str, Any], epochs: int) -> Any:
    block = {
        "name": "small-translation",
        "model": {
            "name": "transformer",
            "arguments": {"size": 48, "heads": 4, "feed_forward": 96, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0},
        },
        "data": {"kind": "translation", "source": "files", "path": str(folder), "tokens_per_batch": 120, "vocabulary": 400},
        "method": method,
        "optimizer": {"name": "adam", "lr": 4e-3},
        "schedule": {"name": "constant"},
        "train": {"epochs": epochs, "threads": 1, "device": "cpu"},
    }
    return check_recipe(block, "test")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense translation run that learned its six sentences by heart."""
    root = tmp_path_factory.mktemp("translation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        write_pairs(root / "data")
        train(translation_recipe(root / "data", {"name": "dense"}, 25), root / "run", quiet=True)
    return root


def test_bleu_of_a_run_goes_into_its_result(finished: Path) -> None:
    before = json.loads((finished / "run" / "result.json").read_text())
    figures = evaluate(finished / "run")
    assert figures["bleu"] > 90
    assert figures["samples"] == 6
    assert figures["recorded"]
    assert "beam:4" in figures["bleu_signature"]
    after = json.loads((finished / "run" / "result.json").read_text())
    assert after.pop("bleu") == figures["bleu"]
    assert after.pop("bleu_signature") == figures["bleu_signature"]
    assert after == {key: value for key, value in before.items() if key not in ("bleu", "bleu_signature")}


def test_other_splits_data_and_checkpoints_are_not_recorded(finished: Path) -> None:
    before = (finished / "run" / "result.json").read_text()
    assert evaluate(finished / "run", split="other")["samples"] == 3
    assert evaluate(finished / "run", split="validation", beam=1)["samples"] == 2
    moved = finished / "moved"
    (finished / "data").rename(moved)
    try:
        with pytest.raises(OSError, match=r"looked for .*validation\.en"):
            evaluate(finished / "run")
        assert not evaluate(finished / "run", data_path=str(moved))["recorded"]
    finally:
        moved.rename(finished / "data")
    assert (finished / "run" / "result.json").read_text() == before


def test_last_checkpoint_scores_as_the_finished_model(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(finished / "cache"))
    final, last = evaluate(finished / "run"), evaluate(finished / "run", checkpoint="last")
    assert (final["loss"], final["bleu"]) == (last["loss"], last["bleu"])
    with pytest.raises(ValueError, match="best and last"):
        evaluate(finished / "run", checkpoint="first")


def test_tokenizer_of_the_run_is_used_whatever_the_training_text_is_now(finished: Path) -> None:
    before = evaluate(finished / "run")
    train_file = finished / "data" / "train.de"
    text = train_file.read_text(encoding="utf-8")
    train_file.write_text(text.upper(), encoding="utf-8")
    try:
        assert evaluate(finished / "run") == before
    finally:
        train_file.write_text(text, encoding="utf-8")


def test_sparse_checkpoint_is_made_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_pairs(tmp_path / "data")
    method = {"name": "autosparse", "target_sparsity": 0.5}
    train(translation_recipe(tmp_path / "data", method, 3), tmp_path / "run", quiet=True)
    final, last = evaluate(tmp_path / "run"), evaluate(tmp_path / "run", checkpoint="last")
    assert final["loss"] == pytest.approx(last["loss"], rel=1e-5)
    assert final["token_accuracy"] == last["token_accuracy"]
    best = evaluate(tmp_path / "run", checkpoint="best")
    assert not best["recorded"]


def test_accuracy_of_images(tmp_path: Path) -> None:
    block = {
        "name": "few-digits",
        "model": {"name": "small_conv", "arguments": {"in_channels": 1, "classes": 10, "width": 4}},
        "data": {"source": "digits", "batch_size": 64, "channels": 1, "classes": 10, "limit": 256, "limit_test": 100},
        "method": {"name": "dense"},
        "optimizer": {"lr": 0.05},
        "train": {"epochs": 1, "threads": 1, "device": "cpu"},
    }
    made = train(check_recipe(block, "test"), tmp_path / "run", quiet=True)
    figures = evaluate(tmp_path / "run")
    assert figures["accuracy"] == made["accuracy"]
    assert figures["samples"] == 100
    assert "bleu" not in figures
    with pytest.raises(ValueError, match="digits come with the package"):
        evaluate(tmp_path / "run", data_path="elsewhere")


def test_unfinished_and_foreign_folders_are_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no recipe\.yaml"):
        evaluate(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text((finished / "run" / "recipe.yaml").read_text())
    with pytest.raises(ValueError, match=r"not finished.*autosparse train --resume --out .*run`$"):
        evaluate(run)
    (run / "checkpoints").mkdir()
    with pytest.raises(ValueError, match=r"no checkpoint .*best\.pt"):
        evaluate(run, checkpoint="best")
    (run / "checkpoints" / "last.pt").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"--checkpoint last$"):
        evaluate(run)
    (run / "model.safetensors").write_bytes(b"nonsense")
    (run / "tokenizer.json").write_text((finished / "run" / "tokenizer.json").read_text())
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged: .*writes it again"):
        evaluate(run)


class Parrot(nn.Module):
    """Writes the source again, token by token."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.table = nn.Parameter(50 * torch.eye(vocabulary))

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(source, (0, target.shape[1]))[:, : target.shape[1]]
        return self.table[padded]


def test_translations_keep_the_order_of_the_sentences_and_any_model_is_scored(tmp_path: Path) -> None:
    write_pairs(tmp_path / "data")
    config = TranslationData(
        kind="translation", source="files", path=str(tmp_path / "data"), tokens_per_batch=120, vocabulary=400
    )
    data = open_data(config, cache=tmp_path / "cache")
    assert data.text is not None
    model = Parrot(data.text.vocabulary)
    sentences = ["a", "A much longer sentence than the others, with commas, is in the middle.", "Two men."]
    assert translate(model, data, sentences, beam=2) == sentences
    scored = bleu(model, data, beam=2)
    assert scored.translations == [pair[0] for pair in PAIRS]
    assert scored.score < 10, "English is no German"
    swapped = config.model_copy(update={"languages": ("de", "en")})
    assert bleu(model, open_data(swapped, cache=tmp_path / "cache"), beam=2).translations == [pair[1] for pair in PAIRS]


def test_bleu_against_sacrebleu_by_hand(tmp_path: Path) -> None:
    # the parrot on pairs whose sides differ in one of eight tokens:
    # n-gram precisions 7/8, 5/7, 4/6, 3/5 and no brevity penalty: 100 * (7/8 * 5/7 * 4/6 * 3/5) ** (1/4) = 70.71
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        (folder / f"{split}.en").write_text("one two three four five six seven eight\n" * 4)
        (folder / f"{split}.de").write_text("one TWO three four five six seven eight\n" * 4)
    block: dict[str, Any] = {"kind": "translation", "source": "files", "path": str(folder)}
    config = TranslationData(**block, tokens_per_batch=120, vocabulary=300)
    data = open_data(config, cache=tmp_path / "cache")
    assert data.text is not None
    assert bleu(Parrot(data.text.vocabulary), data).score == pytest.approx(100 * (7 / 8 * 5 / 7 * 4 / 6 * 3 / 5) ** 0.25)
    small = open_data(config.model_copy(update={"lowercase": True}), cache=tmp_path / "cache")
    assert small.text is not None
    assert bleu(Parrot(small.text.vocabulary), small).score == pytest.approx(100)


def test_images_have_no_bleu() -> None:
    from autosparse.data import ImageData

    data = open_data(ImageData(source="digits", batch_size=32, channels=1, classes=10))
    with pytest.raises(ValueError, match="image data: use accuracy"):
        bleu(nn.Linear(1, 1), data)


def test_command(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from autosparse.cli import main

    with pytest.raises(SystemExit) as left:
        main(["eval", str(finished / "run"), "--beam", "2", "--split", "other", "--json"])
    assert left.value.code == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["samples"] == 3
    assert "beam:2" in figures["bleu_signature"]
    with pytest.raises(SystemExit) as left:
        main(["eval", str(finished / "run")])
    told = capsys.readouterr().out
    assert "test split of 6 samples" in told
    assert f"written to      {finished / 'run' / 'result.json'}" in told
    with pytest.raises(SystemExit) as left:
        main(["eval", str(finished)])
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")
