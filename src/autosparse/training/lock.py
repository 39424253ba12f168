"""One owner per folder: a lock that the system takes back when its process ends, however it ends."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from pathlib import Path
from types import TracebackType

from autosparse.common.warnings import warn

NAME = ".autosparse.lock"
UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_held: set[int] = set()  # descriptors of the locks of this process


class FolderLock:
    """The right to write a folder, from `take` to the end of the `with` block. Network file systems may not enforce it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / NAME
        self._descriptor: int | None = None

    def take(self) -> None:
        """Own the folder, which is created where it is missing; raise if another process owns it."""
        if self._descriptor is not None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = self._open()
        _held.add(self._descriptor)
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # the file stays: another process may have it open already, and would lock one that is gone
        if self._descriptor is not None:
            _held.discard(self._descriptor)
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        """The descriptor of the lock file, locked."""
        no_link = getattr(os, "O_NOFOLLOW", 0)  # which would have us empty another file
        descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | no_link, 0o666)
        try:
            _lock(descriptor)
        except OSError as error:
            if error.errno in UNSUPPORTED:
                warn(f"the file system of {self.file.parent} has no locks: nothing keeps a second process from writing there")
                return descriptor
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise ValueError(
                f"{self.file.parent} is in use by {self._owner()}: wait until it ends, stop it, or choose another --out"
            ) from None
        return descriptor

    def _owner(self) -> str:
        try:
            owner = json.loads(self.file.read_text(encoding="utf-8"))
            return f"process {owner['pid']} on {owner['host']}"
        except (OSError, ValueError, TypeError, KeyError):  # it has not signed yet
            return "another process"


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # beyond the text: nobody could read a locked byte
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _leave_locks() -> None:
        """Forked workers of a data loader must not keep a lock alive that their parent held."""
        for descriptor in _held:
            os.close(descriptor)
        _held.clear()

    os.register_at_fork(after_in_child=_leave_locks)
