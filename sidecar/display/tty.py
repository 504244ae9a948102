"""A terminal opened a second time, so that nobody ever waits for it: not the run, not whoever shares the descriptor."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SIZE = os.terminal_size((80, 24))


def can_show_panel(fd: int, environment: Mapping[str, str]) -> bool:
    """Whether `fd` is a terminal that can move its cursor."""
    return os.isatty(fd) and environment.get("TERM", "dumb") not in ("", "dumb", "unknown")


class Tty:
    """Where rows are written to, and lines are read from."""

    def __init__(self, fd: int) -> None:
        # O_NONBLOCK on the descriptor that we were given would be shared with the shell. A terminal that was halted
        # by Ctrl-S, or a connection that hangs, must not hold up a run.
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            self.fd = os.open(os.ttyname(fd), flags)
        except OSError:  # it has no name in this container, or, after su, another owner; better to wait than no panel
            self.fd = os.dup(fd)
        self._unwritten = b""

    def size(self) -> os.terminal_size:
        """Columns and lines; a terminal that does not know gets the usual."""
        try:
            size = os.get_terminal_size(self.fd)
        except OSError:
            return _SIZE
        return size if size.columns and size.lines else _SIZE

    def in_foreground(self) -> bool:
        """Whether it is ours to write to. One that does not control this process is never anybody else's."""
        try:
            return os.tcgetpgrp(self.fd) == os.getpgrp()
        except OSError:
            return True

    def write(self, data: bytes) -> bool:
        """Write what can be written now and remember the rest; whether all of it is out. OSError: it is gone."""
        self._unwritten += data
        while self._unwritten:
            try:
                with no_job_control():
                    written = os.write(self.fd, self._unwritten)
            except BlockingIOError:
                return False
            self._unwritten = self._unwritten[written:]
        return True

    def finish(self, within_s: float) -> bool:
        """Wait until all of it is out, but not longer than that."""
        deadline = time.monotonic() + within_s
        writable = select.poll()
        writable.register(self.fd, select.POLLOUT)
        while not self.write(b""):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            writable.poll(left_s * 1000)
        return True

    def read(self) -> bytes | None:
        """What was typed; empty at its end, None where there is nothing for us."""
        try:
            with no_job_control():
                return os.read(self.fd, 4096)
        except BlockingIOError:
            return None
        except OSError:  # EIO, from the background too
            return b"" if self.in_foreground() else None

    @property
    def is_open(self) -> bool:
        return self.fd >= 0

    def close(self) -> None:
        """Give it up; a second time does nothing."""
        if self.is_open:
            os.close(self.fd)
            self.fd = -1


@contextlib.contextmanager
def no_job_control() -> Iterator[None]:
    """A race for the foreground must not stop us: with these blocked, the kernel answers instead of sending them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN, signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
