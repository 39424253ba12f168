"""What a finished run is worth: accuracy for images, BLEU with beam search for translation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autosparse.common.files import read_json, write_json
from autosparse.common.packages import need
from autosparse.data import Data, open_data
from autosparse.models.beam import beam_search
from autosparse.quantization import fake
from autosparse.recipes.recipe import Recipe
from autosparse.sparsifier.quantize_aware import attach_as_saved
from autosparse.training import build, checkpoints
from autosparse.training.finished import held_out_data, load_model
from autosparse.training.folder import RunFolder
from autosparse.training.validate import autocast, validate

LENGTH_PENALTY = 0.6
TOKENS = 4000  # source tokens with filler that are translated at once, before beams multiply them


@dataclass(frozen=True)
class Bleu:
    """Corpus BLEU, how it was computed, and the translations."""

    score: float
    signature: str
    translations: list[str]


def bleu(
    model: nn.Module,
    data: Data,
    *,
    split: str = "test",
    beam: int = 4,
    length_penalty: float = LENGTH_PENALTY,
    precision: str = "float32",
) -> Bleu:
    """BLEU by sacrebleu of plain text against plain references; `split` is "test" or "validation"."""
    text = data.text
    if text is None:
        raise ValueError("BLEU scores translations, but this is image data: use accuracy")
    sacrebleu = need("sacrebleu.metrics", "BLEU", "text")
    references = list(text.references[split])
    translations = translate(
        model, data, list(text.sources[split]), beam=beam, length_penalty=length_penalty, precision=precision
    )
    metric = sacrebleu.BLEU(lowercase=text.lowercase)
    score = metric.corpus_score(translations, [references])
    return Bleu(float(score.score), f"{metric.get_signature()}|beam:{beam}|lp:{length_penalty}", translations)


def translate(
    model: nn.Module,
    data: Data,
    sentences: list[str],
    *,
    beam: int = 4,
    length_penalty: float = LENGTH_PENALTY,
    precision: str = "float32",
) -> list[str]:
    """Translations in the order of the sentences; sentences of similar length are translated together."""
    text, padding_id = data.text, data.padding_id
    if text is None or padding_id is None:
        raise ValueError("translating needs translation data with its tokenizer")
    device = next(model.parameters()).device
    sources = [[*text.encode(sentence), text.end_id] for sentence in sentences]
    order = sorted(range(len(sources)), key=lambda place: len(sources[place]))
    translations = [""] * len(sources)
    model.eval()
    begin = 0
    while begin < len(order):
        end = begin + 1
        while end < len(order) and (end - begin + 1) * len(sources[order[end]]) <= TOKENS:
            end += 1
        places = order[begin:end]
        longest = len(sources[places[-1]])
        rows = [sources[place] + [padding_id] * (longest - len(sources[place])) for place in places]
        with autocast(device, precision):
            # twice the source and a little is more than any good translation needs, and bounds a model that never ends
            translated = beam_search(
                model,
                torch.tensor(rows, device=device),
                start_id=text.start_id,
                end_id=text.end_id,
                padding_id=padding_id,
                beam=beam,
                max_length=2 * longest + 10,
                length_penalty=length_penalty,
            )
        for place, ids in zip(places, translated.tolist(), strict=True):
            translations[place] = text.decode([token for token in ids if token != padding_id])
        begin = end
    return translations


def evaluate(
    folder: Path | str,
    *,
    beam: int = 4,
    split: str = "test",
    data_path: str | None = None,
    checkpoint: str | None = None,
) -> dict[str, Any]:
    """Score a run's model; the figure of the finished model on its own test split also goes into result.json."""
    run = RunFolder(Path(folder))
    recipe = run.load_recipe()
    changed = with_data(recipe, split, data_path)
    if checkpoint is None:
        _check_has_model(run)
        model = load_model(run, recipe)
    else:
        model = _from_checkpoint(run, recipe, checkpoint)
    data = held_out_data(run, changed)
    figures, samples = _score(model, data, split if split == "validation" else "test", beam, recipe)
    recorded = checkpoint is None and data_path is None and split == "test" and run.done
    if recorded:
        names = [name for name in ("accuracy", "bleu", "bleu_signature") if name in figures]
        write_json(run.result, read_json(run.result) | {name: figures[name] for name in names})
    about = {
        "run": str(run.path),
        "name": recipe.name,
        "method": recipe.method["name"],
        "checkpoint": checkpoint,
        "split": split,
    }
    return about | {"samples": samples} | figures | {"recorded": recorded}


def _score(model: nn.Module, data: Data, split: str, beam: int, recipe: Recipe) -> tuple[dict[str, Any], int]:
    """The figures of a model on a split, and the number of its samples."""
    device, precision = build.choose_device(recipe.train.device), recipe.train.precision
    model = model.to(device)
    batches = data.validation if split == "validation" else data.test
    build.check_outputs(model, recipe, data, next(iter(batches.epoch(0)))[0])
    score = validate(model, batches, device, padding_id=data.padding_id, precision=precision)
    if data.text is None:
        return {"loss": score.loss, "accuracy": score.accuracy}, batches.samples
    scored = bleu(model, data, split=split, beam=beam, precision=precision)
    figures = {"token_accuracy": score.accuracy, "bleu": scored.score, "bleu_signature": scored.signature}
    return {"loss": score.loss, **figures}, batches.samples


def with_data(recipe: Recipe, split: str, data_path: str | None) -> Recipe:
    """The recipe with the data that is asked for; names other than validation and test are splits of the data itself."""
    change: dict[str, Any] = {}
    if data_path is not None:
        if recipe.data.source == "digits":
            raise ValueError("the digits come with the package: --data does not apply")
        change["hub" if recipe.data.source == "hub" else "path"] = data_path
    if split not in ("test", "validation"):
        if recipe.data.source == "digits":
            raise ValueError(
                f"--split {split}: the digits have one held-out split; give test or validation, which both name it"
            )
        change["test_split"] = split
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=change)}) if change else recipe


def _check_has_model(run: RunFolder) -> None:
    if not run.model.is_file():
        names = [name for name in ("last", "best") if (run.checkpoints / f"{name}.pt").is_file()]
        hint = f", or score what it has with --checkpoint {' or --checkpoint '.join(names)}" if names else ""
        raise ValueError(
            f"the run in {run.path} is not finished, so it has no {run.model.name}: go on with "
            f"`autosparse train --resume --out {run.path}`{hint}"
        )
    run.check_model()


def _from_checkpoint(run: RunFolder, recipe: Recipe, name: str) -> nn.Module:
    """The plain model of a checkpoint: `best` or `last`."""
    if name not in ("best", "last"):
        raise ValueError(f"--checkpoint {name}: the checkpoints of a run are best and last")
    path = run.checkpoints / f"{name}.pt"
    if not path.is_file():
        sharded = run.checkpoints.is_dir() and any(run.checkpoints.iterdir())
        reason = "its checkpoints are sharded" if sharded else "there are none"
        raise ValueError(f"there is no checkpoint {path} ({reason}); finish the run and score its model without --checkpoint")
    state = checkpoints.read(path)
    # a sparsifier counts the steps of an epoch, so the training data is needed too
    data = open_data(recipe.data, seed=recipe.seed)
    model = build.build_model(recipe.model, data)
    method = build.make_method(recipe, run.reference if run.reference.exists() else None)
    if method is None:
        attach_as_saved(model, state["model"])
        model.load_state_dict(state["model"])
        fake.remove(model)
        return model
    inputs, _ = next(iter(data.train.epoch(0)))
    sp = build.attach(recipe, method, model, data.train.steps, tuple(tensor[:1] for tensor in inputs))
    attach_as_saved(sp, state["model"])
    model.load_state_dict(state["model"])
    sp.load_state_dict(state["sparsifier"])
    return sp.finalize()
