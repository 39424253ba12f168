"""save_pretrained and from_pretrained, and the model card."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("huggingface_hub")

from huggingface_hub import ModelCard, PyTorchModelHubMixin

from autosparse import models
from autosparse.export import Facts, SparseHubMixin, SparseModel, read_facts, save_sparse

FILES = ["README.md", "config.json", "model.safetensors"]


def sparse_net() -> SparseModel:
    model = SparseModel("small_conv", {"classes": 5, "width": 4})
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data[torch.rand_like(parameter) < 0.9] = 0.0
    return model.eval()


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_built_in_model_goes_and_comes_back_in_a_new_process(tmp_path: Path) -> None:
    model = sparse_net()
    assert isinstance(model, PyTorchModelHubMixin)
    assert model.save_pretrained(tmp_path / "model") is None
    assert files(tmp_path / "model") == FILES
    assert json.loads((tmp_path / "model/config.json").read_text()) == {
        "model": "small_conv",
        "arguments": {"classes": 5, "width": 4},
    }
    x = torch.randn(3, 1, 8, 8)
    torch.save((x, model(x).detach()), tmp_path / "expected.pt")
    check = """
import torch
from autosparse.export import SparseModel
torch.manual_seed(3)
model = SparseModel.from_pretrained("model")
x, expected = torch.load("expected.pt", weights_only=True)
assert not model.training
assert torch.equal(model(x), expected)
drawn = torch.rand(1)
torch.manual_seed(3)
assert torch.equal(drawn, torch.rand(1)), "loading used up the user's random numbers"
model.save_pretrained("again")
"""
    subprocess.run([sys.executable, "-c", check], cwd=tmp_path, check=True)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()


class OwnNet(nn.Module, SparseHubMixin):
    """A reader's own class with the mixin."""

    def __init__(self, width: int = 8, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layer(x)


def test_an_own_class_with_the_mixin(tmp_path: Path) -> None:
    model = OwnNet(width=40, scale=2.0)
    model.layer.weight.data[:, 4:] = 0.0
    model.save_pretrained(tmp_path / "own")
    assert (tmp_path / "own/model.safetensors").stat().st_size < 40 * 40 * 4 / 2
    again = OwnNet.from_pretrained(tmp_path / "own")
    assert again.scale == 2.0
    x = torch.randn(2, 40)
    assert torch.equal(again(x), model(x))
    card = ModelCard.load(tmp_path / "own/README.md")
    assert "OwnNet with 90.00 % zeros" in card.text
    assert "| layer |  | 1,600 | 1,440 | 90.00 % |" in card.text
    assert "Not measured." in card.text


def test_a_module_without_the_mixin_is_passed_when_loading(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    SparseModel.of(net, "my_package:make", {"size": 4}).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=r"'my_package:make' is not a built-in model.*not imported.*model=your_model"):
        SparseModel.from_pretrained(tmp_path / "model")
    again = SparseModel.from_pretrained(tmp_path / "model", model=nn.Sequential(nn.Linear(4, 4)))
    assert torch.equal(again.model[0].weight, net[0].weight)


def test_folders_are_not_overwritten_unasked_and_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, folder = sparse_net(), tmp_path / "model"
    folder.mkdir()
    (folder / "mine.txt").write_text("keep")
    with pytest.raises(ValueError, match=r"not empty.*force"):
        model.save_pretrained(folder)
    model.save_pretrained(folder, force=True)
    assert files(folder) == sorted([*FILES, "mine.txt"])
    before = {name: (folder / name).read_bytes() for name in FILES}

    def fail(*_: object, **__: object) -> ModelCard:
        raise RuntimeError("no card")

    monkeypatch.setattr(SparseModel, "generate_model_card", fail)
    with pytest.raises(RuntimeError, match="no card"):
        sparse_net().save_pretrained(folder, force=True)
    assert {name: (folder / name).read_bytes() for name in FILES} == before
    assert files(tmp_path) == ["model"]
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file"):
        model.save_pretrained(tmp_path / "file", force=True)


def test_half_precision_and_further_files(tmp_path: Path) -> None:
    model = sparse_net()
    (tmp_path / "tokenizer.json").write_text("{}")
    model.save_pretrained(tmp_path / "full")
    model.file_dtype, model.extra_files = "fp16", [tmp_path / "tokenizer.json"]
    model.save_pretrained(tmp_path / "half")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("full", "half")]
    assert sizes[1] < sizes[0]
    assert files(tmp_path / "half") == [*FILES, "tokenizer.json"]
    weight = SparseModel.from_pretrained(tmp_path / "half").model.conv1.weight
    assert torch.equal(weight, model.model.conv1.weight.half().float())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[1]", "damaged"),
        ("{", "damaged"),
        ("[" * 100_000, "damaged"),
        (" " * 2**21, "larger than"),
        ('{"arguments": [1]}', "damaged"),
        ("{}", "does not say which model"),
        ('{"model": 5}', "model is 5; it must be the name of a built-in model"),
        ('{"model": null}', "model is None; it must be the name of a built-in model"),
        ('{"model": ["small_conv"]}', "it must be the name of a built-in model"),
        ('{"model": "small_conv", "arguments": {"width": 5}}', "do not belong together"),
        ('{"model": "small_conv", "arguments": {"classes": 5, "width": 1000000}}', "far larger model"),
        ('{"model": "small_transformer", "arguments": {"blocks": 1000000000}}', "far larger model"),
        ('{"model": "os:system", "arguments": {"command": "touch hacked"}}', "not imported"),
        ('{"model": "small_conv", "arguments": {"width": -1}}', "width must be at least 1"),
    ],
)
def test_hostile_configs(tmp_path: Path, config: str, message: str) -> None:
    sparse_net().save_pretrained(tmp_path / "model")
    (tmp_path / "model/config.json").write_text(config)
    with pytest.raises(ValueError, match=message):
        SparseModel.from_pretrained(tmp_path / "model")
    from torch.nn.modules import module

    assert not module._global_parameter_registration_hooks


def test_missing_files_and_pickles(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    sparse_net().save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"x": torch.zeros(1)}, folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        SparseModel.from_pretrained(folder)
    (folder / "model.safetensors").write_bytes((folder / "pytorch_model.bin").read_bytes())
    with pytest.raises(ValueError, match="is refused"):
        SparseModel.from_pretrained(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json is missing"):
        SparseModel.from_pretrained(folder)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        SparseModel.from_pretrained(tmp_path / "nothing")
    with pytest.raises(ValueError, match="strict=False is not offered"):
        SparseModel.from_pretrained(sparse_and_saved(tmp_path / "other"), strict=False)


def sparse_and_saved(folder: Path) -> Path:
    sparse_net().save_pretrained(folder)
    return folder


def run_facts(**changes: Any) -> Facts:
    layers = [
        {"name": "conv1", "kind": "Conv2d", "weights": 200, "zeros": 50, "sparsity": 0.25, "threshold": 0.125, "macs": 4000},
        {
            "name": "odd|name",
            "kind": "Linear",
            "weights": 800,
            "zeros": 750,
            "sparsity": 0.9375,
            "threshold": None,
            "macs": 800,
        },
    ]
    result = {"name": "digits", "method": "autosparse", "seed": 3, "accuracy": 0.9778, "base_accuracy": 0.98, "epochs": 6}
    result |= {"train_fraction": 0.598, "test_fraction": 0.335, "sparsity": 0.8, "seconds": 12.0, "layers": layers}
    run = {"machine": {"cpu": "Chip 3000", "threads": 1}, "versions": {"torch": "2.13.0"}, "world": 1, "data": {"classes": 10}}
    recipe = {"name": "digits", "data": {"kind": "images", "source": "folder", "path": "/secret/pictures"}}
    return Facts(**{"recipe": recipe, "result": result, "run": run, **changes})


def card_of(facts: Facts, folder: Path) -> ModelCard:
    model = SparseModel.of(models.small_conv(width=4), "small_conv", {"width": 4})
    model.facts = facts
    model.save_pretrained(folder)
    return ModelCard.load(folder / "README.md")


def test_the_card_states_the_run(tmp_path: Path) -> None:
    card = card_of(run_facts(), tmp_path / "model")
    for line in (
        "# digits: small_conv with 80.00 % zeros",
        "| Method | autosparse |",
        "| Recipe | digits |",
        "| Accuracy | 97.78 % (dense run of the same length: 98.00 %) |",
        "| Train F | 0.598 of a dense run's multiply-adds were spent in training |",
        "| Test F | 0.335 of the dense model's multiply-adds make one prediction |",
        "| conv1 | Conv2d | 200 | 50 | 25.00 % | 0.125 | 4,000 |",
        "| odd\\|name | Linear | 800 | 750 | 93.75 % |  | 800 |",
        "Not measured.",
        "| Machine | cpu Chip 3000, threads 1 |",
        "| Time | 12 s for 6 epochs |",
        "| Seed | 3 |",
    ):
        assert line in card.text.splitlines(), line
    assert "path: pictures" in card.text
    assert "secret" not in card.content
    assert card.data.library_name == "autosparse"
    assert card.data.pipeline_tag == "image-classification"
    assert {"autosparse", "sparse"} <= set(card.data.tags)
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_type) == ("accuracy", 0.9778, "folder")


def test_the_card_shows_measured_speed_where_it_was_measured(tmp_path: Path) -> None:
    rows = [{"engine": "autosparse", "batch": 1, "ms": 1.2345}, {"engine": "onnxruntime", "batch": 1, "ms": 3.0}]
    card = card_of(run_facts(bench={"rows": rows, "machine": {"cpu": "Chip 4000"}}), tmp_path / "model")
    assert "| engine | batch | ms |\n| --- | --- | --- |\n| autosparse | 1 | 1.234 |\n| onnxruntime | 1 | 3 |" in card.text
    assert "Measured on: cpu Chip 4000." in card.text
    assert "Not measured" not in card.text


def test_facts_are_read_from_a_runs_folder(tmp_path: Path) -> None:
    assert read_facts(tmp_path) == Facts()
    (tmp_path / "recipe.yaml").write_text("name: digits\ndata: {kind: translation}\n")
    (tmp_path / "result.json").write_text('{"accuracy": 0.5, "bleu": 30.1, "name": "x", "method": "str"}')
    facts = read_facts(tmp_path)
    assert facts.translates
    assert facts.result["bleu"] == 30.1
    card = card_of(facts, tmp_path / "model")
    assert "| Token accuracy | 50.00 % |" in card.text
    assert "| BLEU | 30.10 (signature not recorded) |" in card.text
    assert card.data.pipeline_tag == "translation"
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        read_facts(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        read_facts(tmp_path)


def test_a_file_that_is_not_this_models_is_refused(tmp_path: Path) -> None:
    folder = sparse_and_saved(tmp_path / "model")
    save_sparse(models.small_conv(width=8), folder / "model.safetensors", force=True)
    with pytest.raises(ValueError, match=r"config\.json and model\.safetensors do not belong together"):
        SparseModel.from_pretrained(folder)


def test_pushing_uploads_what_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded: dict[str, Any] = {}

    class Hub:
        """The hub's interface without a network."""

        def __init__(self, **_: Any) -> None: ...

        def create_repo(self, repo_id: str, **_: Any) -> Any:
            self.repo_id = repo_id
            return self

        def upload_folder(self, *, repo_id: str, folder_path: Path, **_: Any) -> str:
            uploaded[repo_id] = {file.name: file.read_bytes() for file in folder_path.iterdir()}
            return f"commit of {repo_id}"

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Hub)
    model = sparse_net()
    assert model.save_pretrained(tmp_path / "model", push_to_hub=True, repo_id="owner/name") == "commit of owner/name"
    assert uploaded == {"owner/name": {name: (tmp_path / "model" / name).read_bytes() for name in FILES}}
