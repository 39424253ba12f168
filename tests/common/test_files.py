"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from autosparse.common.files import refuse_existing, whole_file, whole_folder, write_bytes, write_json, write_text


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".tmp"))


def test_a_file_is_replaced_with_its_folder_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    assert write_text(path, "one") == path
    write_bytes(path, b"two")
    assert path.read_text() == "two"
    assert left_over(path.parent) == []


def test_an_error_leaves_the_file_before_and_nothing_beside_it(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", "before")
    with pytest.raises(OSError, match="No space"), whole_file(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert path.read_text() == "before"
    assert left_over(tmp_path) == []


def test_a_reader_never_sees_an_unfinished_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with whole_file(path) as unfinished:
        unfinished.write_text("half")
        assert not path.exists()
    assert path.read_text() == "half"


def test_names_are_random_and_links_at_them_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = write_text(tmp_path / "victim", "mine")
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (tmp_path / ".a.txt.guessed.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_text(tmp_path / "a.txt", "theirs")
    assert victim.read_text() == "mine"


def test_a_link_at_the_final_name_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = write_text(tmp_path / "victim", "mine")
    (tmp_path / "a.txt").symlink_to(victim)
    write_text(tmp_path / "a.txt", "theirs")
    assert victim.read_text() == "mine"


def test_permissions_follow_the_umask_even_if_the_writer_narrows_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with whole_file(tmp_path / "a") as unfinished:
            unfinished.write_text("x")
            unfinished.chmod(0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644


def test_json_is_readable_and_finite(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", {"path": Path("x"), "n": 1})
    assert json.loads(path.read_text()) == {"path": "x", "n": 1}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"loss": float("nan")})
    assert json.loads(path.read_text())["n"] == 1


def test_a_folder_takes_its_files_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with whole_folder(out, force=False) as unfinished:
        (unfinished / "a").write_text("1")
        assert not out.exists()
    with pytest.raises(ValueError, match="not empty"), whole_folder(out, force=False):
        pass
    (out / "other").write_text("stays")
    with whole_folder(out, force=True) as unfinished:
        (unfinished / "a").write_text("2")
    assert {path.name: path.read_text() for path in out.iterdir()} == {"a": "2", "other": "stays"}
    assert left_over(tmp_path) == []


def test_an_existing_file_or_folder_is_refused(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a", "x")
    refuse_existing(path, force=True)
    with pytest.raises(ValueError, match="exists already"):
        refuse_existing(path, force=False)
    with pytest.raises(ValueError, match="is a folder"):
        refuse_existing(tmp_path, force=True)
