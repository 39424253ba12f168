"""What must hold when a damaged file is read: it is taken, or refused in our own words, and none of it is executed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from .changes import byte_changes, change_bytes, change_values, edits
from .files import Target

LONGEST = 60  # seconds of the processor for one file, however busy the machine is
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.connect", "ctypes.dlopen")
# shrinking takes minutes and says little more: files are small, and a failure prints the one at fault
SETTINGS: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "phases": (Phase.explicit, Phase.generate),
    "suppress_health_check": list(HealthCheck),
}
_watching = False


def _forbid(event: str, details: tuple[Any, ...]) -> None:
    if _watching and event in FORBIDDEN:
        raise AssertionError(f"a file made its reader do {event} {details}")


sys.addaudithook(_forbid)


@contextmanager
def watched() -> Iterator[None]:
    """No commands and no connections in here, and an end."""
    global _watching

    def too_long(_: int, __: FrameType | None) -> NoReturn:
        raise AssertionError(f"reading the file takes longer than {LONGEST} s")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    _watching = True
    try:
        yield
    finally:
        _watching = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def read_or_refuse(read: Callable[[Path], object], folder: Path) -> bool:
    """Whether the folder was taken; a refusal is a ValueError or OSError in a sentence, any other error goes through."""
    with watched():
        try:
            read(folder)
        except (ValueError, OSError) as error:
            if not is_ours(error):
                raise AssertionError(f"foreign words: {type(error).__name__}: {error}") from error
            return False
    return True


def is_ours(error: Exception) -> bool:
    """An error of a library that nobody has put into words names no file and comes as a class of its own."""
    return type(error).__module__ in ("builtins", "pydantic_core._pydantic_core") or type(error).__module__.startswith(
        "autosparse"
    )


def fuzz(target: Target, folder: Path, examples: int, number: int | None = None) -> int:
    """Read the target's file in `examples` damaged versions; how many of them were taken."""
    file = target.prepare(folder)
    good = file.read_bytes()
    target.read(folder)
    taken = 0
    damaged: st.SearchStrategy[bytes] = byte_changes.map(lambda changes: change_bytes(good, changes))
    if target.document is not None:
        document, tree = target.document, target.document.load(good)
        damaged = damaged | edits.map(lambda changes: dumped(document.dump, change_values(tree, changes), good))

    @settings(max_examples=examples, **SETTINGS)
    @given(damaged)
    def check(data: bytes) -> None:
        nonlocal taken
        write(file, data)
        taken += read_or_refuse(target.read, folder)

    (check if number is None else seed(number)(check))()
    return taken


def write(file: Path, data: bytes) -> None:
    """As a new file: memory that maps the old one must not change."""
    file.unlink(missing_ok=True)
    file.write_bytes(data)


def dumped(dump: Callable[[Any], bytes], tree: Any, instead: bytes) -> bytes:
    """The document's bytes; some trees, such as those with huge numbers, cannot be written."""
    try:
        return dump(tree)
    except (ValueError, OverflowError, RuntimeError, TypeError, UnicodeError):
        return instead
