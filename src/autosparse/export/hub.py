"""The Hugging Face hub's way: save_pretrained and from_pretrained, with the sparse file inside."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from autosparse import models
from autosparse.common.files import whole_folder
from autosparse.export.card import TAGS, Facts, model_card
from autosparse.export.reader import SparseFile, differences, load_sparse
from autosparse.export.states import plain_state
from autosparse.export.writer import save_sparse

try:
    from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
except ImportError as error:
    raise ImportError('save_pretrained and from_pretrained need huggingface_hub: pip install "autosparse[hub]"') from error

WEIGHTS, CONFIG = "model.safetensors", "config.json"
LARGEST_CONFIG = 2**20
SLACK = 10**6  # parameters that a model may make beyond those it keeps


class SparseHubMixin(PyTorchModelHubMixin, library_name="autosparse", tags=list(TAGS)):
    """Add it to your own class beside nn.Module: its weights are saved sparse, and nothing is unpickled when loading."""

    facts: Facts = Facts()
    file_dtype: str | torch.dtype | None = None
    extra_files: Sequence[Path] = ()
    _hub_mixin_config: Any

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        *,
        config: Any = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: dict[str, Any] | None = None,
        force: bool = False,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write model.safetensors, config.json and README.md, all or none; a folder with files in it needs `force`."""
        folder = Path(save_directory)
        with whole_folder(folder, force) as unfinished:
            super().save_pretrained(unfinished, config=config, model_card_kwargs=model_card_kwargs)
        if not push_to_hub:
            return None
        options = {"config": config, "model_card_kwargs": model_card_kwargs, **push_to_hub_kwargs}
        return str(self.push_to_hub(repo_id or folder.name, **options))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **options: Any) -> Self:
        """A model from a folder or from the hub; damaged or hostile files are refused."""
        folder = Path(pretrained_model_name_or_path)
        if folder.is_dir():
            _check_config(folder / CONFIG)
        elif isinstance(pretrained_model_name_or_path, os.PathLike) or len(folder.parts) > 2 or folder.is_absolute():
            raise FileNotFoundError(
                f"there is no folder {folder}; give one that save_pretrained wrote, or OWNER/NAME on the hub"
            )
        return super().from_pretrained(os.fspath(pretrained_model_name_or_path), **options)

    def generate_model_card(self, *_: Any, facts: Facts | None = None, **__: Any) -> ModelCard:
        """The card of this model, from `facts` given here or set on the model."""
        kind = type(self)
        usage = (
            f'from {kind.__module__} import {kind.__name__}\n\nmodel = {kind.__name__}.from_pretrained("FOLDER OR OWNER/NAME")'
        )
        return ModelCard(model_card(facts or self.facts, plain_state(self._plain()).tensors, self._title(), usage))

    def _plain(self) -> nn.Module:
        """The module whose weights are saved."""
        assert isinstance(self, nn.Module)
        return self

    def _title(self) -> str:
        return type(self).__name__

    def _save_pretrained(self, save_directory: Path) -> None:
        save_sparse(self._plain(), save_directory / WEIGHTS, dtype=self.file_dtype)
        for file in self.extra_files:
            shutil.copyfile(file, save_directory / file.name)

    @classmethod
    def _rehearse(cls, shapes: Mapping[str, tuple[int, ...]], arguments: Mapping[str, Any]) -> None:
        """Find out whether the model will fit the file, without taking memory for it; not every class can."""

    @classmethod
    def _from_pretrained(
        cls, *, model_id: str, map_location: str | torch.device = "cpu", strict: bool = True, **options: Any
    ) -> Self:
        if not strict:
            raise ValueError("strict=False is not offered: the file holds exactly the model's tensors")
        download = {
            key: options.pop(key)
            for key in ("revision", "cache_dir", "force_download", "local_files_only", "token")
            if key in options
        }
        local = Path(model_id) / WEIGHTS
        path = local if Path(model_id).is_dir() else Path(hf_hub_download(repo_id=model_id, filename=WEIGHTS, **download))
        shapes = SparseFile(path).shapes
        # building draws random weights: the user's own random numbers must not depend on that
        with at_most(2 * sum(math.prod(shape) for shape in shapes.values()) + SLACK), torch.random.fork_rng(devices=[]):
            cls._rehearse(shapes, options)
            built = cls(**options)
        load_sparse(path, built._plain())
        return built.to(map_location).eval()  # type: ignore[attr-defined, no-any-return]


class SparseModel(nn.Module, SparseHubMixin):
    """A built-in model by name and arguments, or any module of your own, with the hub's two verbs."""

    _hub_mixin_config: Any
    names: ClassVar[tuple[str, ...]] = models.list_models()

    def __init__(self, model: str | nn.Module, arguments: dict[str, Any] | None = None) -> None:
        super().__init__()
        if isinstance(model, str):
            if model not in self.names:
                raise ValueError(
                    f"{model!r} is not a built-in model ({', '.join(self.names)}), and code that a file names is not imported: "
                    "build the model yourself and pass it, SparseModel.from_pretrained(folder, model=your_model)"
                )
            model = models.build(model, **(arguments or {}))
        elif not isinstance(model, nn.Module):
            raise ValueError(f"model is {str(model)[:40]}; it must be the name of a built-in model, or an nn.Module")
        else:
            self._hub_mixin_config = {"model": type(model).__name__, "arguments": arguments or {}}
        self.model = model

    @classmethod
    def of(cls, model: nn.Module, name: str, arguments: dict[str, Any]) -> Self:
        """An existing model, with the name and arguments that config.json will state."""
        hub_model = cls(model)
        hub_model._hub_mixin_config = {"model": name, "arguments": arguments}
        return hub_model

    def forward(self, *inputs: Tensor) -> Any:
        return self.model(*inputs)

    def _plain(self) -> nn.Module:
        return self.model

    def _title(self) -> str:
        return str(self._hub_mixin_config["model"])

    @classmethod
    def _rehearse(cls, shapes: Mapping[str, tuple[int, ...]], arguments: Mapping[str, Any]) -> None:
        if "model" not in arguments:
            raise ValueError(
                f"{CONFIG} does not say which model this is: pass it, SparseModel.from_pretrained(folder, model=...)"
            )
        if isinstance(arguments["model"], nn.Module):
            return
        try:
            with torch.device("meta"):
                shell = cls(**arguments)
        except TypeError as error:  # an argument that the model does not have, or of another type
            raise ValueError(f"{CONFIG} does not describe a model of autosparse: {error}") from error
        problems = differences(shapes, shell.model.state_dict())
        if problems:
            raise ValueError(f"{CONFIG} and {WEIGHTS} do not belong together: {'; '.join(problems[:3])}")


@contextmanager
def at_most(elements: int) -> Iterator[None]:
    """Stop building a model once its parameters exceed what a file can fill: a config may ask for a billion layers."""
    registered = 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal registered
        registered += 0 if parameter is None else parameter.numel()
        if registered > elements:
            raise ValueError(f"{CONFIG} asks for a far larger model than {WEIGHTS} holds: they do not belong together")

    with register_module_parameter_registration_hook(count):
        yield


def _check_config(path: Path) -> None:
    """A JSON object of sane size, or a sentence that says otherwise."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: give a folder that save_pretrained wrote")
    if path.stat().st_size > LARGEST_CONFIG:
        raise ValueError(f"{path} is refused: it is larger than {LARGEST_CONFIG:,} bytes")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}") from None
    if not isinstance(content, dict) or not isinstance(content.get("arguments") or {}, dict):
        raise ValueError(f"{path} is damaged: it does not hold names and values")
