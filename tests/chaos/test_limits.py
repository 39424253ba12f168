"""A full disk, a folder that takes no files, too little memory: nothing is lost, and the run ends as ever once that is over."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .killing import Kill, Place
from .tally import Tally, chance_of, scaled, tally

DISKS, FOLDERS, MEMORIES = 12, 4, 8
RECIPE = "target"
LEAST_MEMORY, MOST_MEMORY = 1 << 20, 120 << 20


@contextmanager
def small_disk(path: Path) -> Iterator[bool]:
    """A file system of its own at the path, where this user may mount one."""
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)], capture_output=True, check=False)
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", str(path)], check=True)


def remount(path: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True, capture_output=True)


def start(out: str) -> tuple[str, ...]:
    return ("train", f"{RECIPE}.yaml", "--no-report", "--out", out)


def go_on(place: Place, out: str) -> str | None:
    """The same command again, which goes on with what is there; what went wrong or differs, if anything."""
    done = place.fork(*start(out), "--start-or-resume")
    return f"it cannot go on: {done.stderr[-1500:]}" if done.returncode else place.difference("unbroken", out)


def refused_in_words(done: subprocess.CompletedProcess[str]) -> str | None:
    if done.returncode == 0:
        return None
    is_sentence = done.returncode in (1, 2) and "error: " in done.stderr and "Traceback" not in done.stderr
    return None if is_sentence else f"it ended with {done.returncode}: {done.stderr[-1500:]}"


def test_full_disk(tmp_path: Path) -> None:
    """The disk holds a random share of what the run writes."""
    with tally("full disk") as counted, Place(tmp_path) as place, small_disk(tmp_path / "disk") as is_disk:
        assert place.fork(*start("unbroken")).returncode == 0
        size = sum(file.stat().st_size for file in (tmp_path / "unbroken").rglob("*") if file.is_file())
        chance = chance_of("disk")
        counted.note = "a tmpfs" if is_disk else "RLIMIT_FSIZE: this user may not mount a tmpfs"
        for number in range(scaled(DISKS)):
            out = f"disk/{number}"
            if is_disk:
                used = sum(file.stat().st_blocks * 512 for file in (tmp_path / "disk").rglob("*"))
                remount(tmp_path / "disk", f"size={used + chance.randrange(4096, size)}")
                done = place.fork(*start(out))
                remount(tmp_path / "disk", "size=64m")
            else:
                done = place.fork(*start(out), file=chance.randrange(64, size // 4))
            counted.count(refused_in_words(done) or go_on(place, out))


def test_read_only_folder(tmp_path: Path) -> None:
    with tally("read-only folder") as counted, Place(tmp_path) as place, small_disk(tmp_path / "disk") as is_disk:
        counted.note = "a tmpfs" if is_disk else "permissions"
        for number in range(scaled(FOLDERS)):
            check_read_only(place, f"disk/{number}", counted, is_disk)


def check_read_only(place: Place, out: str, counted: Tally, is_disk: bool) -> None:
    """A run that was cut, then locked away, then free again."""
    if not (place.path / "unbroken").exists():
        assert place.fork(*start("unbroken")).returncode == 0
    place.fork(*start(out), kill=Kill("train", "step", 25, 0.0))
    lock_away(place.path / "disk", is_disk, True)
    commands = [start(f"{out}-new"), ("train", "--resume", "--out", out), ("report", "unbroken", "--out", f"{out}-report")]
    commands.append(("export", "unbroken", "--out", f"{out}.safetensors"))
    for command in commands:
        done = place.fork(*command)
        counted.count(refused_in_words(done) or ("it was not refused" if done.returncode == 0 else None))
    lock_away(place.path / "disk", is_disk, False)
    counted.count(go_on(place, out))


def lock_away(folder: Path, is_disk: bool, is_locked: bool) -> None:
    if is_disk:
        remount(folder, "ro" if is_locked else "rw")
    else:
        for path in [folder, *folder.iterdir()]:
            os.chmod(path, 0o555 if is_locked else 0o755)


def test_too_little_memory(tmp_path: Path) -> None:
    """Whatever the process dies of, its folder can be resumed."""
    with tally("memory limit (RLIMIT_AS)") as counted, Place(tmp_path) as place:
        assert place.fork(*start("unbroken")).returncode == 0
        chance, ends = chance_of("memory"), []
        for number in range(scaled(MEMORIES)):
            out = f"memory-{number}"
            done = place.fork(*start(out), memory=chance.randrange(LEAST_MEMORY, MOST_MEMORY))
            ends.append(done.returncode)
            counted.count(go_on_or_complete(place, out, done.returncode))
        counted.note = f"exit codes under the limit: {', '.join(map(str, sorted(set(ends))))}"


def go_on_or_complete(place: Place, out: str, code: int) -> str | None:
    return place.difference("unbroken", out) if code == 0 else go_on(place, out)
