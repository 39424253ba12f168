"""A deployed model in a folder: made again without measuring, measured again elsewhere, and refused if it was altered."""

from __future__ import annotations

import gc
import hashlib
import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autosparse
from autosparse import models
from autosparse.kernels import library
from autosparse.serving import Deployed, choice, deploy, load_deployed, prepared
from autosparse.serving.agreement import agree
from autosparse.serving.linear import PackedLinear
from autosparse.serving.native import NativeRegion

pytestmark = [
    pytest.mark.skipif(library.engine() is None, reason=f"no engine: {library.why_not()}"),
    pytest.mark.filterwarnings("ignore:deploy"),
    pytest.mark.usefixtures("native_wins"),
]


class Branching(nn.Module):
    """torch.fx cannot capture it; one layer's weight is another's."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.first, self.tied = nn.Linear(8, 8), nn.Linear(8, 8)
        self.tied.weight = self.first.weight
        self.up = nn.ConvTranspose1d(1, 2, 2)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        y = self.body(x).mean((2, 3)) * (scale if float(x.sum()) < 1e9 else -scale)
        return {"logits": self.tied(self.first(y)), "up": self.up(y[:, None])}


def gpt2() -> nn.Module:
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 16, "vocab_size": 60}
    model: nn.Module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2))
    return model


def translator() -> nn.Module:
    return models.transformer(vocabulary=20, size=16, heads=2, feed_forward=32, encoder_layers=1, decoder_layers=1)


PICTURES = torch.randn(2, 3, 8, 8)
WORDS = torch.randint(3, 20, (2, 5))
KINDS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "graph": (lambda: models.small_conv(width=4), torch.randn(2, 1, 28, 28)),
    "parts": (Branching, {"x": PICTURES, "scale": 0.5}),
    "linears": (gpt2, {"input_ids": WORDS, "attention_mask": torch.ones_like(WORDS)}),
    "decoder": (translator, (WORDS, WORDS)),
}


def pruned(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    model = build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter[torch.rand_like(parameter) > 0.3] = 0.0
    return model.eval()


def outputs(model: nn.Module, example: Any) -> Any:
    with torch.no_grad():
        if isinstance(example, dict):
            return model(**example)
        return model(*example) if isinstance(example, tuple) else model(example)


def rows(deployed: Deployed) -> list[Any]:
    return [(row.name, row.kind, row.how, row.reason) for row in deployed.layers()]


@contextmanager
def no_clock() -> Iterator[None]:
    """Whatever is measured fails."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was measured")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "take_turns", refuse)
        patch.setattr(PackedLinear, "_seconds", {})
        yield


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a small deployed net."""
    deploy(pruned(Branching), {"x": PICTURES}, threads=1).save(tmp_path / "saved")
    return tmp_path / "saved"


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the description and seal it again, as an attacker would."""
    content = json.loads((folder / "deployment.json").read_text())
    del content["sha256"]
    change(content)
    seal = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (folder / "deployment.json").write_text(json.dumps(content | {"sha256": seal}))


@pytest.mark.parametrize("name", KINDS)
def test_saved_and_loaded_without_measuring(name: str, tmp_path: Path) -> None:
    build, example = KINDS[name]
    deployed = deploy(pruned(build), example, threads=1)
    deployed.save(tmp_path / "saved")
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["deployment.json", "model.safetensors"]
    with no_clock():
        again = load_deployed(tmp_path / "saved", build())
    assert agree(outputs(again, example), outputs(deployed, example))
    assert type(again) is type(deployed)
    assert again.notes == deployed.notes
    assert rows(again) == rows(deployed)
    again.save(tmp_path / "again")
    for file in ("deployment.json", "model.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "saved" / file).read_bytes()


def test_the_loaded_model_is_filled_and_can_be_served_otherwise(saved: Path) -> None:
    model = Branching()
    autosparse.load_deployed(saved, model)
    expected = pruned(Branching).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    assert model.tied.weight is model.first.weight


def test_the_tensors_of_the_user_are_saved_and_not_the_folded_ones(saved: Path) -> None:
    assert autosparse.load_sparse(saved / "model.safetensors").keys() == Branching().state_dict().keys()


def test_the_example_is_not_kept_alive(tmp_path: Path) -> None:
    example = torch.randn(2, 3, 8, 8)
    alive = weakref.ref(example)
    deployed = deploy(pruned(Branching), example, threads=1)
    del example
    gc.collect()
    assert alive() is None
    deployed.save(tmp_path / "saved")


def test_training_the_plain_model_on_does_not_change_what_is_saved(tmp_path: Path) -> None:
    model = pruned(Branching)
    deployed = deploy(model, PICTURES, threads=1)
    expected = deployed(PICTURES)
    with torch.no_grad():
        model.first.weight.fill_(1.0)
    deployed.save(tmp_path / "saved")
    assert agree(load_deployed(tmp_path / "saved", Branching())(PICTURES), expected)


def test_another_processor_measures_again_and_says_so(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "cpu_model", lambda: "Another One")
    with pytest.warns(UserWarning, match=r"load_deployed: measured again: it was saved on .* this is Another One"):
        deployed = load_deployed(saved, Branching())
    assert any("measured again" in note for note in deployed.notes)
    assert agree(outputs(deployed, PICTURES), outputs(pruned(Branching), PICTURES))


def test_another_instruction_set_measures_again(saved: Path, choose_kernels: Callable[[str], None]) -> None:
    choose_kernels("portable")
    if json.loads((saved / "deployment.json").read_text())["processor"]["instruction_set"] == "portable":
        pytest.skip("this processor has nothing else")
    with pytest.warns(UserWarning, match=r"measured again: .*portable"):
        deployed = load_deployed(saved, Branching())
    assert agree(outputs(deployed, PICTURES), outputs(pruned(Branching), PICTURES))


def test_another_number_of_threads_measures_again(saved: Path) -> None:
    with pytest.warns(UserWarning, match="saved for 1 threads, and this is for 2"):
        assert load_deployed(saved, Branching(), threads=2).threads == 2


def test_choices_that_do_not_fit_are_measured_again(saved: Path) -> None:
    rewrite(saved, lambda content: content["choices"].pop())
    with pytest.warns(UserWarning, match="measured again: what was saved does not fit this model"):
        deployed = load_deployed(saved, Branching())
    assert agree(outputs(deployed, PICTURES), outputs(pruned(Branching), PICTURES))


def region(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(choice for choice in content["choices"] if "layers" in choice)
    return found


def linear(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(choice for choice in content["choices"] if "layer" in choice)
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda content: region(content)["variants"].update({"0": [True, 10**6, False]}),
        lambda content: region(content)["variants"].update({"0": [True, 1, True]}),
        lambda content: region(content)["variants"].update({"7": [True, 4, False]}),
        lambda content: region(content).update(images=10**9),
        lambda content: region(content).update(layers=["elsewhere"]),
        lambda content: linear(content)["ways"].update({"1": "os.system"}),
        lambda content: linear(content)["ways"].update({"0": "dense"}),
        lambda content: content["choices"].reverse(),
        lambda content: content["choices"].clear(),
        lambda content: content.update(route="graph"),
        lambda content: content.update(route="linears"),
    ],
)
def test_impossible_choices_never_reach_the_engine(saved: Path, change: Callable[[dict[str, Any]], object]) -> None:
    rewrite(saved, change)
    with pytest.warns(UserWarning, match="measured again"):
        deployed = load_deployed(saved, Branching())
    assert agree(outputs(deployed, PICTURES), outputs(pruned(Branching), PICTURES))
    assert any(isinstance(part, NativeRegion) for part in deployed.modules())


REFUSED: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda content: content.update(version=2), "its version is '2', this release reads 1"),
    (lambda content: content.update(precision="int8"), "int8 needs one"),
    (lambda content: content.update(threads=0), "threads"),
    (lambda content: content.update(threads="1"), "threads"),
    (lambda content: content.update(route="exec"), "route"),
    (lambda content: content.update(more=1), "more"),
    (lambda content: content.pop("processor"), "processor"),
    (lambda content: content.update(choices={}), "choices"),
    (lambda content: region(content).update(images=0), "choices"),
    (lambda content: region(content)["variants"].update({"-1": [True, 4, False]}), "not a number"),
    (lambda content: region(content)["variants"].update({"0": [True, 4, False, 1]}), "choices"),
    (lambda content: linear(content)["ways"].update({"1e9": "dense"}), "not a number"),
    (lambda content: content.update(weights="0" * 64), "belongs to other weights"),
    (lambda content: content.update(example={}), "its example has no arguments"),
    (lambda content: content["example"].update(args=[{"call": "os.system"}]), "not a description of arguments"),
    (lambda content: content["example"].update(args=[{"tensor": [-1], "dtype": "float32"}]), "no known shape"),
    (lambda content: content["example"].update(args=[{"tensor": [2**40, 2**40], "dtype": "float32"}]), "too large"),
    (lambda content: content["example"].update(args=[{"tensor": [2], "dtype": "object"}]), "no known shape and dtype"),
    (lambda content: content["example"].update(args=[{"tensor": [2**20], "dtype": "int8"}] * 100), "too large"),
    (lambda content: content["example"].update(args=[{"unknown": "DynamicCache"}]), "give example_input"),
]


@pytest.mark.parametrize(("change", "because"), REFUSED, ids=range(len(REFUSED)))
def test_hostile_descriptions_are_refused(saved: Path, change: Callable[[dict[str, Any]], object], because: str) -> None:
    rewrite(saved, change)
    model = Branching()
    before = model.first.weight.detach().clone()
    with pytest.raises(ValueError, match=rf"deployment\.json is refused: .*{because}"):
        load_deployed(saved, model)
    assert torch.equal(model.first.weight, before)


@pytest.mark.parametrize(
    "example",
    [
        {"args": [{"tensor": [2, 5, 8, 8], "dtype": "float32"}], "named": {}},
        {"args": [{"tensor": [2, 3, 8, 8], "dtype": "int64"}], "named": {}},
        {"args": [], "named": {"y": {"value": 1}}},
        {"args": [], "named": {}},
    ],
)
def test_examples_that_the_model_does_not_take(saved: Path, example: dict[str, Any]) -> None:
    rewrite(saved, lambda content: content.update(example=example))
    with pytest.raises(ValueError, match=r"does not pass through this model .* give example_input"):
        load_deployed(saved, Branching())
    assert isinstance(load_deployed(saved, Branching(), example_input=PICTURES), Deployed)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"sha256": "0"}'])
def test_damaged_descriptions_are_refused(saved: Path, text: bytes) -> None:
    (saved / "deployment.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"deployment\.json is (damaged|refused)"):
        load_deployed(saved, Branching())


def test_every_flipped_byte_is_noticed(saved: Path) -> None:
    text = (saved / "deployment.json").read_bytes()
    for place in range(0, len(text), 97):
        changed = bytearray(text)
        changed[place] ^= 1
        (saved / "deployment.json").write_bytes(changed)
        if json.loads(text) == _json(changed):
            continue
        with pytest.raises(ValueError, match=r"deployment\.json is (damaged|refused)"):
            load_deployed(saved, Branching())


def _json(text: bytes | bytearray) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def test_missing_files_and_other_models(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"a deployed model's save\(\) wrote"):
        load_deployed(tmp_path, Branching())
    with pytest.raises(ValueError, match="does not fit this model"):
        load_deployed(saved, nn.Linear(2, 2))
    (saved / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        load_deployed(saved, Branching())


def test_a_folder_with_files_is_replaced_on_request_only(saved: Path) -> None:
    deployed = load_deployed(saved, Branching())
    with pytest.raises(ValueError, match="not empty"):
        deployed.save(saved)
    deployed.save(saved, force=True)
    load_deployed(saved, Branching())


def test_an_example_may_be_given(saved: Path) -> None:
    with no_clock():
        assert agree(load_deployed(saved, Branching(), example_input=PICTURES)(PICTURES), outputs(pruned(Branching), PICTURES))


def test_without_kernels_it_is_dense_and_says_so(saved: Path, choose_kernels: Callable[[str], None]) -> None:
    choose_kernels("off")
    with pytest.warns(UserWarning, match=r"measured again: .*no kernels"):
        deployed = load_deployed(saved, Branching())
    assert agree(outputs(deployed, PICTURES), outputs(pruned(Branching), PICTURES))
