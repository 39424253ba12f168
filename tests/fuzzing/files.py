"""Every file that the product reads: a good one, and the function that reads it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from autosparse.compute.kept_times import KeptTimes, read_times
from autosparse.compute.planner import Planner, Sample, Times, Workload
from autosparse.data import TableData, open_data
from autosparse.data.idx import read_idx
from autosparse.data.tokenizer import read_tokenizer
from autosparse.export import SparseModel, load_sparse, save_sparse
from autosparse.kernels.geometry import Convolution
from autosparse.methods.autotune import AutoTune
from autosparse.recipes.loading import load_recipe
from autosparse.serving import deploy, load_deployed
from autosparse.training import checkpoints
from autosparse.training.finished import open_finished
from autosparse.training.folder import Run, RunFolder

FIXTURES = Path(__file__).parents[1] / "compatibility" / "v0.1.0"
RECIPES = Path(__file__).parents[2] / "src" / "autosparse" / "recipes" / "library"


@dataclass(frozen=True)
class Document:
    """How the content of a file is taken apart and put together again."""

    load: Callable[[bytes], Any]
    dump: Callable[[Any], bytes]


@dataclass(frozen=True)
class Target:
    """A file inside a folder, which `read` is given."""

    name: str
    source: Path  # a folder that is copied, or one file
    file: str
    read: Callable[[Path], object]
    document: Document | None = None

    def prepare(self, folder: Path) -> Path:
        """A copy of the good folder; the file in it that will be damaged."""
        if self.source.is_dir():
            shutil.copytree(self.source, folder, dirs_exist_ok=True)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.source, folder / self.file)
        return folder / self.file


def dump_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def dump_lines(value: Any) -> bytes:
    lines = value if isinstance(value, list) else [value]
    return b"".join(dump_json(line) + b"\n" for line in lines)


def dump_yaml(value: Any) -> bytes:
    return yaml.safe_dump(value, allow_unicode=True, sort_keys=False).encode("utf-8", "surrogatepass")


def dump_torch(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def load_torch(data: bytes) -> Any:
    from .changes import as_lists

    return as_lists(torch.load(io.BytesIO(data), weights_only=True))


JSON = Document(json.loads, dump_json)
SEALED = Document(json.loads, lambda value: dump_sealed(value))
LINES = Document(lambda data: [json.loads(line) for line in data.splitlines()], dump_lines)
YAML = Document(yaml.safe_load, dump_yaml)
TORCH = Document(load_torch, dump_torch)


def read_folder(folder: Path) -> None:
    """As a report, an export and the next start of the same run read it."""
    Run.read(folder)
    RunFolder(folder).check_finished()
    open_finished(folder)


def read_stopped(folder: Path) -> None:
    Run.read(folder)
    run = RunFolder(folder)
    run.load_recipe()
    run.read_metrics()
    assert not run.done
    checkpoints.load(run.checkpoints)


def read_hub(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        SparseModel.from_pretrained(folder)


def read_table(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        open_data(TableData(kind="table", path=str(folder / "rows.csv"), target="kind", batch_size=2))


def recipe(source: Path, path: Path) -> Target:
    """A recipe beside those that it may build on."""
    return Target(f"recipe {path.stem}", source, path.name, lambda folder: load_recipe(folder / path.name), YAML)


def targets(folder: Path) -> list[Target]:
    """All of them; good files that are not kept in the repository are written to the folder."""
    idx, tokenizer = write_idx(folder / "train-images-idx3-ubyte.gz"), write_tokenizer(folder / "tokenizer.json")
    finished, stopped, hub = FIXTURES / "finished", FIXTURES / "stopped", FIXTURES / "files" / "hub"
    prepared, in_bytes = write_prepared(folder / "prepared"), write_prepared(folder / "prepared_int8", precision="int8")
    rows = folder / "rows.csv"
    rows.write_text("size,colour,kind\n" + "".join(f"{n / 7:.3f},{'red' if n % 3 else ''},{n % 2}\n" for n in range(40)))
    return [
        recipe(RECIPES / "digits.yaml", RECIPES / "digits.yaml"),
        *(recipe(FIXTURES / "recipes", path) for path in sorted((FIXTURES / "recipes").glob("*.yaml"))),
        Target("a table", rows, "rows.csv", read_table),
        Target("a run's recipe", finished, "recipe.yaml", read_folder, YAML),
        Target("a run's run.json", finished, "run.json", read_folder, JSON),
        Target("a run's metrics", finished, "metrics.jsonl", read_folder, LINES),
        Target("a run's result", finished, "result.json", read_folder, JSON),
        Target("a run's weights", finished, "model.safetensors", read_folder),
        Target("a dense run's result", finished, "dense/result.json", read_folder, JSON),
        Target("a stopped run's metrics", stopped, "metrics.jsonl", read_stopped, LINES),
        Target("a checkpoint", stopped, "checkpoints/last.pt", read_stopped, TORCH),
        Target("a sparse file", FIXTURES / "files" / "tied.safetensors", "tied.safetensors", read_sparse),
        Target("an int8 file", write_int8(folder / "int8.safetensors"), "int8.safetensors", read_int8),
        Target("a hub folder's config", hub, "config.json", read_hub, JSON),
        Target("a hub folder's weights", hub, "model.safetensors", read_hub),
        Target("a prepared model's description", prepared, "deployment.json", read_prepared, SEALED),
        Target("a prepared model's weights", prepared, "model.safetensors", read_prepared),
        Target("a prepared int8 model's description", in_bytes, "deployment.json", read_prepared, SEALED),
        Target("a prepared int8 model's weights", in_bytes, "model.safetensors", read_prepared),
        Target("reference losses", FIXTURES / "reference.json", "reference.json", read_reference, JSON),
        Target("measured times", write_times(folder / "times.json"), "times.json", read_kept_times, JSON),
        Target("a tokenizer", tokenizer, "tokenizer.json", lambda folder: read_tokenizer(folder / "tokenizer.json"), JSON),
        Target("idx images", idx, idx.name, lambda folder: read_idx(folder / idx.name, 3)),
    ]


def read_sparse(folder: Path) -> object:
    return load_sparse(folder / "tied.safetensors")


def read_int8(folder: Path) -> object:
    return load_sparse(folder / "int8.safetensors")


def write_int8(path: Path) -> Path:
    """A sparse weight, a dense one and a vector."""
    weight = torch.arange(-50.0, 50.0).reshape(4, 25)
    save_sparse({"sparse": weight * (weight > 40), "dense": weight, "bias": weight[0]}, path, dtype="int8")
    return path


def write_prepared(folder: Path, precision: str = "float32") -> Path:
    """A small net, deployed and saved."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        deploy(prepared_net(), torch.ones(1, 4), threads=1, precision=precision, calibration=[torch.ones(1, 4)]).save(folder)
    return folder


def prepared_net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()


def read_prepared(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_deployed(folder, prepared_net())


def dump_sealed(value: Any) -> bytes:
    """With the checksum that the changed content ought to have: a damaged one is noticed at once."""
    if not isinstance(value, dict):
        return dump_json(value)
    content = {key: part for key, part in value.items() if key != "sha256"}
    return dump_json(content | {"sha256": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()})


def read_reference(folder: Path) -> object:
    return AutoTune(epochs=1, reference=folder / "reference.json").losses()


def write_times(path: Path) -> Path:
    workload = Workload(Convolution(2, 4, (6, 6), 8, (3, 3)), False, 1)
    times = Times(1.0, 1.0, 1.0, 0.1, (Sample(9, 0.1, 0.1, 0.1, 0.1), Sample(90, 0.2, 0.2, 0.2, 0.1, 0.3)))
    planner = Planner(measure=lambda *_: times, clock=float)
    KeptTimes(path).give(planner)
    planner.times(workload)
    return path


def read_kept_times(folder: Path) -> object:
    return read_times(folder / "times.json")


def write_idx(path: Path) -> Path:
    path.write_bytes(gzip.compress(bytes((0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4)) + bytes(range(24))))
    return path


def write_tokenizer(path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    from autosparse.data.tokenizer import SPECIAL

    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate([*SPECIAL, "a", "b", "ab"])}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.save(str(path))
    return path
