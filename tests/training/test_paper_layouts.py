"""The paper's recipes end to end on small data in the real layouts: killed in the middle of an epoch, they resume exactly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

TRAIN, TEST = 52, 6  # 13 steps of 4: a checkpoint after the 10th, in the middle of the epoch
# Two runs are compared bit by bit: under "auto" each would measure for itself which passes to run sparse.
COMMON = [
    "train.epochs=2",
    "schedule.warmup_epochs=0",
    "data.workers=0",
    "train.threads=1",
    "train.save_minutes=1e-6",
    "train.compute=dense",
]
IMAGENET = ["data.batch_size=4", "data.image_size=32", "method.zero_epoch=1", "method.s_init=null", "method.start_sparsity=0.5"]
WMT = [
    *("data.tokens_per_batch=64", "data.vocabulary=300", "schedule.warmup_steps=4", "method.zero_epoch=1"),
    *("method.s_init=null", "method.start_sparsity=0.5"),
    *("model.arguments.size=512", "model.arguments.heads=8", "model.arguments.feed_forward=2048"),
]


def photograph(number: int) -> Image.Image:
    """Smooth colours of a size of its own, as photographs have."""
    y, x = np.mgrid[0:50, 0 : 60 + number % 7]
    return Image.fromarray(
        np.stack([(x * 3 + number * 17) % 256, (y * 5 + number * 29) % 256, (x + y) % 256], -1).astype(np.uint8)
    )


def write_folder(root: Path) -> None:
    """ImageNet's folders: train and val, a folder a class, JPEG files."""
    for split, count in (("train", TRAIN), ("val", TEST)):
        for number in range(count):
            folder = root / split / f"n{number % 3:08}"
            folder.mkdir(parents=True, exist_ok=True)
            photograph(number).save(folder / f"{number}.JPEG", "JPEG")


def write_hub_parquet(root: Path) -> None:
    """The hub's ImageNet-1K: shards under data/, an image of JPEG bytes and a label."""
    import datasets

    write_folder(root / "jpegs")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    for split, folder, shards in (("train", "train", 2), ("validation", "val", 1)):
        files = sorted((root / "jpegs" / folder).rglob("*.JPEG"))
        rows = [
            {"image": {"bytes": file.read_bytes(), "path": file.name}, "label": int(file.parent.name[1:])} for file in files
        ]
        for shard in range(shards):
            part = datasets.Dataset.from_list(rows[shard::shards], features=features)
            (root / "data").mkdir(exist_ok=True)
            part.to_parquet(root / "data" / f"{split}-{shard:05}-of-{shards:05}.parquet")


def write_text(root: Path) -> None:
    """WMT14 as two files a split, line by line."""
    words = {
        "en": ["the", "old", "house", "stands", "near", "a", "small", "river", "today"],
        "de": ["das", "alte", "Haus", "steht", "heute", "nahe", "am", "kleinen", "Fluss"],
    }
    for split, count in (("train", 160), ("validation", 6), ("test", 6)):
        for language, vocabulary in words.items():
            lines = [" ".join(vocabulary[(n + k) % len(vocabulary)] for k in range(3 + n % 5)) for n in range(count)]
            root.mkdir(parents=True, exist_ok=True)
            (root / f"{split}.{language}").write_text("\n".join(lines) + "\n")


LAYOUTS = {
    "folder": ("resnet50-autosparse-80", write_folder, ["data.source=folder", "data.path=DATA", *IMAGENET]),
    "parquet": ("mobilenet-autosparse-75", write_hub_parquet, ["data.source=parquet", "data.path=DATA/data", *IMAGENET]),
    "hub copy": ("mobilenet-autosparse-86", write_hub_parquet, ["data.hub=DATA", *IMAGENET]),
    "text": ("wmt14-autosparse", write_text, ["data.source=files", "data.path=DATA", *WMT]),
}


def command(recipe: str, settings: list[str], out: str, *more: str) -> list[str]:
    changes = [part for setting in settings for part in ("--set", setting)]
    return [sys.executable, "-m", "autosparse", "train", recipe, *changes, "--out", out, "--no-report", "--quiet", *more]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_killed_in_an_epoch_and_resumed(layout: str, tmp_path: Path, environment: dict[str, str]) -> None:
    recipe, write, changes = LAYOUTS[layout]
    write(tmp_path / "data")
    settings = COMMON + [change.replace("DATA", str(tmp_path / "data")) for change in changes]
    if layout == "text":
        settings.remove("schedule.warmup_epochs=0")
    done = subprocess.run(
        command(recipe, settings, "unbroken"), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

    process = subprocess.Popen(command(recipe, settings, "cut"), cwd=tmp_path, env=environment)
    last = tmp_path / "cut" / "checkpoints" / "last.pt"
    while process.poll() is None and not last.exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "cut" / "result.json").exists()
    position = torch.load(last, weights_only=True)["position"]
    assert position["batch"] > 0, "the checkpoint was not taken in the middle of an epoch"

    again = command(recipe, settings, "cut", "--resume")
    resumed = subprocess.run(again, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    first, second = (safetensors.torch.load_file(tmp_path / out / "model.safetensors") for out in ("unbroken", "cut"))
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
