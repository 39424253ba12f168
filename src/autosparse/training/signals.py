"""Ctrl-C, SIGTERM and the death of the comparison that started it ask a run to stop; it saves first."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

ASKING = (signal.SIGINT, signal.SIGTERM)
HELD_STDIN = "AUTOSPARSE_HELD_STDIN"  # set for processes whose parent keeps their stdin open as long as it lives


def stop_with_parent() -> None:
    """Send this process SIGTERM when its parent dies, if the parent holds its stdin; a killed parent cannot do so itself."""
    if os.environ.pop(HELD_STDIN, None):
        threading.Thread(target=_stop_at_end_of_stdin, daemon=True).start()


def _stop_at_end_of_stdin() -> None:
    while os.read(0, 1024):  # not sys.stdin, whose lock would be held when the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


class Stopped(RuntimeError):
    """The run was asked to stop, and has saved."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class StopRequest:
    """Notes the first signal; a second one ends the process at once, as without us."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def code(self) -> int:
        """The exit code that shells expect."""
        return 128 + (self.signal or signal.SIGTERM)

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in ASKING}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
