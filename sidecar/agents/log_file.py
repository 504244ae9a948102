"""A log with a bound: of an agent that prints for days the newest stays, and who follows it misses nothing."""

from __future__ import annotations

import os

from sidecar import layout

FORMER = ".1"  # what was written before, once there is too much
MOST_BYTES = 8 * 1024 * 1024


class LogFile:
    """One log, as the one process that writes it has it. What is read again is the former part and then this one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1
        self._size = 0
        layout.make_directory(os.path.dirname(path) or ".")
        self._open()

    def write(self, data: bytes) -> None:
        """All of it. OSError: the disk is full, or the place is gone; nothing more is written then."""
        if self._file < 0:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
            self._size += len(data)
            if self._size > MOST_BYTES:
                self._turn()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """A second time does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        # Not blocking, and no link: an agent may have put something else there.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._file).st_size

    def _turn(self) -> None:
        os.rename(self._path, self._path + FORMER)
        self.close()
        self._open()
