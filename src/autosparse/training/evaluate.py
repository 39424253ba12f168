"""What a finished run is worth: accuracy for images, BLEU with beam search for translation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from autosparse.common.packages import need
from autosparse.data import Data, ImageData, TranslationData, open_data
from autosparse.models.beam import beam_search
from autosparse.recipes.loading import load_recipe
from autosparse.recipes.recipe import Recipe
from autosparse.training import build, checkpoints
from autosparse.training.folder import Folder, read_json, write_json
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
    precision: str = "fp32",
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
    precision: str = "fp32",
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
            found = beam_search(
                model,
                torch.tensor(rows, device=device),
                start_id=text.start_id,
                end_id=text.end_id,
                padding_id=padding_id,
                beam=beam,
                max_length=2 * longest + 10,
                length_penalty=length_penalty,
            )
        for place, ids in zip(places, found.tolist(), strict=True):
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
    run = Folder(Path(folder))
    recipe = _recipe(run)
    changed = _changed(recipe, split, data_path)
    part = split if split == "validation" else "test"
    if checkpoint is None:
        model, data = _finished(run, changed)
    else:
        model, data = _from_checkpoint(run, changed, checkpoint)
    device = build.choose_device(recipe.train.device)
    model = model.to(device)
    precision = recipe.train.precision
    batches = data.validation if part == "validation" else data.test
    score = validate(model, batches, device, padding_id=data.padding_id, precision=precision)
    figures: dict[str, Any] = {"loss": score.loss}
    if data.text is None:
        figures["accuracy"] = score.accuracy
    else:
        scored = bleu(model, data, split=part, beam=beam, precision=precision)
        figures |= {"token_accuracy": score.accuracy, "bleu": scored.score, "bleu_signature": scored.signature}
    recorded = checkpoint is None and data_path is None and split == "test" and run.result.exists()
    if recorded:
        kept = ("accuracy", "bleu", "bleu_signature")
        write_json(run.result, read_json(run.result) | {name: figures[name] for name in kept if name in figures})
    about = {
        "run": str(run.path),
        "name": recipe.name,
        "method": recipe.method["name"],
        "checkpoint": checkpoint,
        "split": split,
    }
    return about | {"samples": batches.samples} | figures | {"recorded": recorded}


def _recipe(run: Folder) -> Recipe:
    if not run.recipe.is_file():
        raise ValueError(f"{run.path} is not the folder of a run: it has no recipe.yaml")
    return load_recipe(run.recipe)


def _changed(recipe: Recipe, split: str, data_path: str | None) -> Recipe:
    """The recipe with the data that is asked for; names other than validation and test are splits of the data itself."""
    change: dict[str, Any] = {}
    if data_path is not None:
        if recipe.data.source == "digits":
            raise ValueError("the digits come with the package: --data does not apply")
        change["hub" if recipe.data.source == "hub" else "path"] = data_path
    if split not in ("test", "validation"):
        change["test_split"] = split
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=change)}) if change else recipe


def _finished(run: Folder, recipe: Recipe) -> tuple[nn.Module, Data]:
    """The plain model with its final weights."""
    if not run.model.is_file():
        kept = [name for name in ("last", "best") if (run.checkpoints / f"{name}.pt").is_file()]
        also = f", or score what it has with --checkpoint {' or --checkpoint '.join(kept)}" if kept else ""
        raise ValueError(
            f"the run in {run.path} is not finished, so it has no {run.model.name}: go on with "
            f"`autosparse train --resume --out {run.path}`{also}"
        )
    data = held_out_data(run, recipe)
    model = build.build_model(recipe.model, data)
    try:
        safetensors.torch.load_model(model, str(run.model))
    except (RuntimeError, safetensors.SafetensorError) as error:
        raise ValueError(
            f"{run.model} does not hold the weights of this recipe's model: {str(error).splitlines()[0]}"
        ) from error
    return model, data


def _from_checkpoint(run: Folder, recipe: Recipe, name: str) -> tuple[nn.Module, Data]:
    """The plain model of a checkpoint: `best` or `last`."""
    if name not in ("best", "last"):
        raise ValueError(f"--checkpoint {name}: the checkpoints of a run are best and last")
    path = run.checkpoints / f"{name}.pt"
    if not path.is_file():
        other = (
            "its checkpoints are sharded" if run.checkpoints.is_dir() and any(run.checkpoints.iterdir()) else "there are none"
        )
        raise ValueError(f"there is no checkpoint {path} ({other}); finish the run and score its model without --checkpoint")
    state = checkpoints.read(path)
    # a sparsifier counts the steps of an epoch, so the training data is needed too
    trained = open_data(load_recipe(run.recipe).data, seed=recipe.seed)
    model = build.build_model(recipe.model, trained)
    method = build.make_method(recipe, run.reference if run.reference.exists() else None)
    if method is None:
        model.load_state_dict(state["model"])
    else:
        inputs, _ = next(iter(trained.train.epoch(0)))
        sparsifier = build.attach(recipe, method, model, trained.train.steps, tuple(each[:1] for each in inputs))
        model.load_state_dict(state["model"])
        sparsifier.load_state_dict(state["sparsifier"])
        model = sparsifier.finalize()
    return model, held_out_data(run, recipe)


def held_out_data(run: Folder, recipe: Recipe) -> Data:
    """The data to score on; translations are cut into pieces as in training, whatever text lies there now."""
    config: ImageData | TranslationData = recipe.data
    if isinstance(config, TranslationData):
        from autosparse.data.translation import open_held_out

        return open_held_out(config, run.path / "tokenizer.json")
    return open_data(config, seed=recipe.seed)
