"""What a training step is timed on: a model, one batch for it, and its loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autosparse import models
from autosparse.models.inputs import INPUT_SHAPES
from autosparse.recipes.recipe import Recipe
from autosparse.sparsifier.estimate import loss_of
from autosparse.training import build
from autosparse.training.folder import RunFolder

SENTENCE = INPUT_SHAPES["transformer"][0]
PADDING_ID = 0


@dataclass(frozen=True)
class Task:
    """A way to make the model, always the same, and a batch; `densities` are those that a run has learned, by layer."""

    name: str
    make: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]
    targets: Tensor | None  # None: the loss is the mean square of whatever the model gives
    include: tuple[str, ...] | None = None
    densities: dict[str, float] | None = None

    @property
    def size(self) -> str:
        tokens = not self.inputs[0].is_floating_point()
        return f"{self.targets.numel()} tokens" if tokens and self.targets is not None else f"batch {len(self.inputs[0])}"


def make_task(what: str, batch: int, tokens: int, image: tuple[int, ...] | None, inputs: str | None = None) -> Task:
    """For a built-in model, the user's own module:function, or the folder of a finished run.

    `inputs`: the user's own module:function that gives a batch.
    """
    torch.manual_seed(0)
    if inputs is not None:
        return Task(what, lambda: build.build_named(what, {}, typed=True), own_inputs(inputs), None)
    if Path(what).is_dir():
        return _run_task(Path(what), batch)
    if what == "transformer":
        return _translation_task(what, tokens)
    if ":" not in what and what not in INPUT_SHAPES:
        raise ValueError(
            f"{what} is not known; give a built-in model ({', '.join(models.list_models())}), "
            "your own module:function, or the folder of a finished run"
        )
    shape = image or INPUT_SHAPES.get(what)
    if shape is None:
        raise ValueError(f"the input of {what} is not known; give the shape of one image, such as --image 3,224,224")
    images = torch.randn(batch, *shape)
    with torch.no_grad():
        scores = _channels_last(build.build_named(what, {}, typed=True))(images[:2])
    if not isinstance(scores, Tensor) or scores.dim() != 2:
        raise ValueError(f"{what} must turn every image into one row of class scores")
    return Task(what, lambda: build.build_named(what, {}, typed=True), (images,), torch.randint(scores.shape[1], (batch,)))


def own_inputs(name: str, model: nn.Module | None = None) -> tuple[Tensor, ...]:
    """The tensors that the user's module:function returns, as positional inputs of a model; for a known one also a mapping."""
    given = build.load_callable(name, typed=True)()
    inputs = (given,) if isinstance(given, Tensor) else given
    if isinstance(inputs, Mapping) and model is not None:
        inputs = _in_order(name, inputs, model)
    if not isinstance(inputs, tuple) or not inputs or not all(isinstance(each, Tensor) for each in inputs):
        raise ValueError(
            f"{name} must return a tensor or a tuple of tensors, a batch for the model; got {type(given).__name__}"
        )
    return inputs


def _in_order(name: str, named: Mapping[str, Tensor], model: nn.Module) -> tuple[Tensor, ...]:
    """A mapping as positional inputs: the engines take no others."""
    parameters = list(inspect.signature(model.forward).parameters)[: len(named)]
    if set(parameters) != set(named):
        raise ValueError(
            f"{name} returns {', '.join(named)}: give the first parameters of forward, which are {', '.join(parameters)}"
        )
    return tuple(named[parameter] for parameter in parameters)


def _translation_task(what: str, tokens: int) -> Task:
    if tokens % SENTENCE:
        raise ValueError(f"--tokens {tokens}: sentences have {SENTENCE} tokens, so give a multiple of that")

    def make() -> nn.Module:
        return models.transformer(padding_id=PADDING_ID)

    vocabulary = models.transformer(padding_id=PADDING_ID).output.out_features
    source, target, expected = (torch.randint(1, vocabulary, (tokens // SENTENCE, SENTENCE)) for _ in range(3))
    # the vocabulary layer shares its weight with the embedding, so it is sparse only where it is named
    return Task(what, make, (source, target), expected, include=("encoder", "decoder", "output"))


def _run_task(path: Path, batch: int) -> Task:
    """The run's model with new weights, a batch of its own data, and the densities that it has learned."""
    from autosparse.data import open_data

    folder = RunFolder(path)
    layers = folder.read_result().get("layers", [])
    recipe = folder.load_recipe()
    densities = {str(layer["name"]): 1 - float(layer["sparsity"]) for layer in layers}
    if not densities:
        raise ValueError(f"the run in {path} is dense: it has learned no densities")
    data = open_data(recipe.data)
    inputs, targets = next(iter(data.train.epoch(0)))
    taken = torch.arange(batch) % len(targets) if inputs[0].is_floating_point() else torch.arange(len(targets))

    def make() -> nn.Module:
        return build.build_model(recipe.model, data)

    included = _layers_of(recipe, make(), densities)
    return Task(path.name, make, tuple(tensor[taken] for tensor in inputs), targets[taken], included, densities)


def _layers_of(recipe: Recipe, model: nn.Module, densities: dict[str, float]) -> tuple[str, ...]:
    missing = [name for name in densities if name not in dict(model.named_modules())]
    if missing:
        raise ValueError(f"the result names layers that {recipe.model.name} does not have: {', '.join(missing[:3])}")
    return tuple(densities)


def _channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def new_model(task: Task) -> nn.Module:
    """The model with the same first weights at every call, convolutions channels_last."""
    torch.manual_seed(0)
    return _channels_last(task.make())


def inputs_of(task: Task) -> tuple[Tensor, ...]:
    return tuple(
        tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor for tensor in task.inputs
    )


def plain_loss(model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor | None) -> Tensor:
    """Cross-entropy as everybody writes it."""
    if targets is None:
        return loss_of(model(*inputs))
    return F.cross_entropy(model(*inputs).flatten(0, -2), targets.flatten())


def own_loss(model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor | None) -> Tensor:
    """The same number as our training makes it: by chunks of tokens where there is a vocabulary."""
    chunked = getattr(model, "chunked_loss", None)
    return plain_loss(model, inputs, targets) if chunked is None or targets is None else chunked(*inputs, targets)
