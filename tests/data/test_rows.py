"""CSV files as data: tables with a target column, texts with labels; folders of images without a split or class count."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from PIL import Image

from autosparse.common.warnings import SparsityWarning
from autosparse.data import Batches, ImageData, TableData, TextData, open_data
from autosparse.recipes.loading import check_recipe
from autosparse.training.finished import open_finished
from autosparse.training.run import train


def everything(batches: Batches) -> tuple[torch.Tensor, torch.Tensor]:
    parts = list(batches.epoch(0))
    return torch.cat([x for (x,), _ in parts]), torch.cat([y for _, y in parts])


def table(folder: Path, name: str = "train.csv", rows: int = 60) -> Path:
    """Flowers whose kind follows from one number and one word."""
    chance = random.Random(name)
    lines = ["size;colour;weight;kind"]
    for number in range(rows):
        kind = ("rose", "tulip", "lily")[number % 3]
        colour = "" if number == 5 else ("red", "blue")[number % 2]
        lines.append(f"{number % 3 + chance.random() / 4:.3f};{colour};{'?' if number == 7 else chance.random():.5};{kind}")
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return path


def table_config(path: Path, **changes: object) -> TableData:
    return TableData.model_validate({"kind": "table", "path": str(path), "target": "kind", "batch_size": 6, **changes})


def test_a_table_is_standardised_and_its_words_are_inputs(tmp_path: Path) -> None:
    table(tmp_path)
    table(tmp_path, "test.csv", 12)
    data = open_data(table_config(tmp_path))
    assert (data.train.samples, data.validation.samples, data.facts["classes"]) == (60, 12, 3)
    assert data.facts["class names"] == ["lily", "rose", "tulip"]
    assert data.facts["in_features"] == 4  # two numbers, two colours
    x, _ = everything(data.train)
    torch.testing.assert_close(x[:, 0].mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(x[:, 0].std(correction=0), torch.tensor(1.0), atol=1e-4, rtol=0)
    assert set(x[:, 1:3].sum(dim=1).tolist()) == {0.0, 1.0}  # the missing colour is none of them
    assert torch.isfinite(x).all()


def test_one_file_is_split_and_that_is_said(tmp_path: Path) -> None:
    path = table(tmp_path)
    with pytest.warns(SparsityWarning, match="12 of 60 are held out at random"):
        data = open_data(table_config(path, held_out=0.2), seed=0)
    with pytest.warns(SparsityWarning, match="held out"):
        again = open_data(table_config(path, held_out=0.2), seed=9)
    assert data.fingerprint == again.fingerprint  # whatever the seed of the run
    assert (data.train.samples, data.validation.samples) == (48, 12)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,kind\n1,x\n2\n", "row 3: 1 values for 2 columns"),
        ("a,b\n1,2\n", "has no column 'kind'; its columns are a, b"),
        ("kind\n" + "x\ny\n" * 10, "no column besides the target"),
        ("a,kind\n1,x\n2,x\n3,x\n", "holds 1 class"),
        ("a,kind\n", "a header and at least one row"),
        ("a,kind\n" + "".join(f"w{n},{n % 2}\n" for n in range(200)), "different words"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*held out")
def test_tables_that_do_not_fit_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        open_data(table_config(tmp_path / "rows.csv"))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_data(table_config(tmp_path / "none.csv"))


def texts(path: Path) -> Path:
    lines = ["text,label"]
    for number in range(40):
        word = ("splendid", "dreadful")[number % 2]
        lines.append(f'"A {word} film, number {number}; really {word}!",{("good", "bad")[number % 2]}')
    path.write_text("\n".join(lines))
    return path


def test_texts_become_hashes_of_their_words(tmp_path: Path) -> None:
    config = TextData(
        kind="text", source="csv", path=str(texts(tmp_path / "films.csv")), batch_size=4, vocabulary=500, max_length=6
    )
    with pytest.warns(SparsityWarning, match="4 of 40"):
        data = open_data(config)
    x, y = everything(data.validation)
    assert x.shape == (4, 6)
    assert data.facts["class names"] == ["bad", "good"]
    assert 0 < int(x.min()) <= int(x.max()) < 500
    assert len({int(row[1]) for row, label in zip(x, y, strict=True) if label == y[0]}) == 1


def recipe(data: dict[str, object], model: str, **arguments: object) -> object:
    return check_recipe(
        {
            "name": "mine",
            "model": {"name": model, "arguments": arguments},
            "data": data,
            "method": {"name": "autosparse", "target_sparsity": 0.5},
            "optimizer": {"name": "adamw", "lr": 0.01},
            "train": {"epochs": 3, "threads": 1},
        },
        "mine",
    )


@pytest.mark.filterwarnings("ignore")
def test_runs_on_tables_texts_and_bare_folders_know_their_sizes(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for name, shade in (("dark", 20), ("light", 230)):
        (photos / name).mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (8, 8), (shade, shade, number)).save(photos / name / f"{number}.png")
    cases = {
        "mlp": {"kind": "table", "path": str(table(tmp_path)), "target": "kind", "batch_size": 6},
        "text_classifier": {"kind": "text", "source": "csv", "path": str(texts(tmp_path / "films.csv")), "batch_size": 6},
        "small_conv": {"source": "folder", "path": str(photos), "batch_size": 6},
    }
    sizes = {"mlp": {"width": 16}, "text_classifier": {"size": 16, "blocks": 1, "heads": 2}}
    for model, data in cases.items():
        arguments = sizes.get(model, {"width": 4, "in_channels": 3})
        result = train(recipe(data, model, **arguments), tmp_path / model, quiet=True)  # type: ignore[arg-type]
        assert result["sparsity"] == pytest.approx(0.5, abs=0.02)
        finished = open_finished(tmp_path / model)
        classes = 3 if model == "mlp" else 2
        assert finished.arguments["classes"] == classes or model == "small_conv"
        assert [*finished.model.parameters()][-1].shape[0] == classes


def test_a_folder_without_a_split_holds_a_tenth_of_every_class_out(tmp_path: Path) -> None:
    for name, count in (("a", 20), ("b", 40)):
        (tmp_path / name).mkdir()
        for number in range(count):
            Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    config = ImageData(source="folder", path=str(tmp_path), batch_size=2)
    with pytest.warns(SparsityWarning, match="6 of 60 are held out, a tenth of each of 2 classes"):
        data = open_data(config)
    assert (data.train.samples, data.validation.samples, data.facts["classes"]) == (54, 6, 2)
    _, labels = everything(data.validation)
    assert labels.tolist() == [0, 0, 1, 1, 1, 1]
