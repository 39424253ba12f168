"""Ctrl-C and SIGTERM ask a run to stop; it saves first."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

ASKING = (signal.SIGINT, signal.SIGTERM)


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
