"""Output that can no longer be written, since its reader has gone or its disk is full, must not end the work."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast


@contextmanager
def unbreakable_output() -> Iterator[None]:
    """Errors of stdout and stderr are ignored inside; what comes after the first is lost."""
    _fill_closed_descriptors()
    with redirect_stdout(_kept(sys.stdout)), redirect_stderr(_kept(sys.stderr)):
        yield


class Unbreakable:
    """A stream whose errors are ignored."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # the latter from a stream that was closed
            self._give_up()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._give_up()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self) -> None:
        """From here on into nothing; the descriptor too, since Python flushes once more at its end."""
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nothing, self._stream.fileno())
        except (OSError, ValueError):  # it never was a file, or is closed
            self._stream = io.StringIO()
        finally:
            os.close(nothing)


def _kept(stream: TextIO | None) -> TextIO:
    """None where the descriptor was closed before Python began; print accepts that."""
    return cast(TextIO, None if stream is None else Unbreakable(stream))


def _fill_closed_descriptors() -> None:
    """Else the next file that is opened would get the number of stdout, and libraries would write their messages into it."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
