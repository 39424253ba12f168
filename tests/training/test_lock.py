"""One owner per run folder: others are refused, and nothing is left locked when the owner dies."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from autosparse import SparsityWarning
from autosparse.common.files import write_text
from autosparse.recipes.loading import completed, dump_recipe, load_recipe
from autosparse.training import lock
from autosparse.training.lock import FolderLock
from autosparse.training.run import train

from .conftest import Workshop

HERE = f"process {os.getpid()} on {socket.gethostname()}"
# owns a folder, starts a worker by a fork and dies while the worker lives
DIES_BEFORE_ITS_WORKER = """
import os, pathlib, signal, sys, time
from autosparse.training.lock import FolderLock
FolderLock(pathlib.Path(sys.argv[1])).take()
worker = os.fork()
if worker == 0:
    os.write(1, b"%d" % os.getpid())
    os.close(1)
    time.sleep(60)
    os._exit(0)
os.close(1)
time.sleep(60)
"""


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_an_owner_is_refused_and_free_afterwards(fresh_workshop: Workshop, resume: bool) -> None:
    recipe = load_recipe("tiny.yaml", ["train.epochs=1", "data.limit=64"])
    with FolderLock(Path("r")) as owner:
        owner.take()
        with pytest.raises(ValueError, match=rf"r is in use by {HERE}: wait until it ends"):
            train(recipe, "r", resume=resume, quiet=True)
        assert [path.name for path in Path("r").iterdir()] == [lock.NAME]
    assert train(recipe, "r", quiet=True)["epochs"] == 1


@pytest.mark.parametrize("inner", ["dense", "reference"])
def test_an_inner_run_has_its_own_lock(fresh_workshop: Workshop, inner: str) -> None:
    changes = {"dense": "train.dense_beside=true", "reference": "method={name: autosparse, autotune: {epochs: 1}}"}
    recipe = load_recipe("tiny.yaml", ["train.epochs=2", "data.limit=64", changes[inner]])
    write_text(Path("r/recipe.yaml"), dump_recipe(completed(recipe)))
    with FolderLock(Path("r") / inner) as owner:
        owner.take()
        with pytest.raises(ValueError, match=rf"{inner} is in use by {HERE}"):
            train(recipe, "r", resume=True, quiet=True)
    assert train(recipe, "r", resume=True, quiet=True)["epochs"] == 2


def test_a_refused_folder_stays_as_it_is(fresh_workshop: Workshop) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists already"):
        train(load_recipe("tiny.yaml"), "mine", quiet=True)
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.txt"]


def test_a_living_run_is_left_alone_and_a_killed_one_resumed(workshop: Workshop) -> None:
    command = [sys.executable, "-m", "autosparse", "train", "tiny.yaml", "--no-report", "--quiet", "--out", "living"]
    stops_itself = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "AUTOSPARSE_ALLOW_CODE": "user_net",
        "SIGNAL": "SIGSTOP",
        "SIGNAL_AT": "30",
    }
    living = subprocess.Popen(command, cwd=workshop.path, env=stops_itself)
    try:
        _, status = os.waitpid(living.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        for arguments in ((), ("--resume",)):
            refused = workshop.answer("living", *arguments)
            assert refused.returncode == 2
            assert f"living is in use by process {living.pid} on {socket.gethostname()}" in refused.stderr
        assert workshop.json("living", "run.json")["status"] == "running"
    finally:
        living.kill()
        living.wait()
    resumed = workshop.train("living", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert workshop.json("living", "run.json")["status"] == "done"


def test_all_ranks_are_refused_together(workshop: Workshop) -> None:
    with FolderLock(workshop.path / "owned") as owner:
        owner.take()
        refused = workshop.train("owned", ranks=2)
    assert refused.returncode != 0
    assert f"owned is in use by {HERE}" in refused.stderr
    assert [path.name for path in (workshop.path / "owned").iterdir()] == [lock.NAME]


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / lock.NAME).symlink_to(tmp_path / "thesis.txt")
    with FolderLock(tmp_path) as owner, pytest.raises(OSError, match=lock.NAME):
        owner.take()
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_forked_workers_do_not_keep_the_lock_of_a_killed_owner(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", DIES_BEFORE_ITS_WORKER, str(tmp_path)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    worker = int(owner.stdout.read())
    try:
        with FolderLock(tmp_path) as second, pytest.raises(ValueError, match=f"process {owner.pid} on"):
            second.take()
        owner.kill()
        owner.wait()
        with FolderLock(tmp_path) as second:
            second.take()
    finally:
        os.kill(worker, signal.SIGKILL)
        owner.stdout.close()


def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "_lock", unsupported)
    with FolderLock(tmp_path) as owner, pytest.warns(SparsityWarning, match="has no locks"):
        owner.take()
