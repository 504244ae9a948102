"""One look at /proc: who is there, whose child, in which session, with which marks; and signals that cannot go astray.

Standard library only: the sentinel looks with it too.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sidecar.agents import marker

if TYPE_CHECKING:
    from collections.abc import Iterable

_STAT_BYTES = 1024
_ENVIRON_BYTES = 1 << 20
_NAME_BYTES = 64
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Identity(NamedTuple):
    """One process for ever: a pid alone is somebody else's tomorrow."""

    pid: int
    started: float


class Row(NamedTuple):
    """One process as a look found it."""

    pid: int
    parent: int
    session: int
    started: float
    zombie: bool
    tokens: tuple[str, ...]
    tag: int

    @property
    def identity(self) -> Identity:
        """Its name for ever."""
        return Identity(self.pid, self.started)


class Table:
    """What one look found, with the indexes that every agent being ended shares."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = {row.pid: row for row in rows}

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """Pids by parent."""
        return self._indexed("parent")

    @cached_property
    def sessions(self) -> dict[int, list[int]]:
        """Pids by session."""
        return self._indexed("session")

    @cached_property
    def tags(self) -> dict[int, list[int]]:
        """Pids by the tag that they carry."""
        return self._indexed("tag")

    @cached_property
    def tokens(self) -> dict[str, list[int]]:
        """Pids by each token in their environment."""
        found: dict[str, list[int]] = defaultdict(list)
        for row in self.rows.values():
            for token in row.tokens:
                found[token].append(row.pid)
        return found

    def _indexed(self, field: str) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for row in self.rows.values():
            found[getattr(row, field)].append(row.pid)
        return found

    def has(self, identity: Identity) -> bool:
        """Whether that very process is in the table, dead but unreaped ones included."""
        row = self.rows.get(identity.pid)
        return row is not None and row.started == identity.started


class ProcessTable(Protocol):
    """The machine's processes: /proc here, psutil where there is none."""

    def look(self) -> Table:
        """A fresh reading of all of it."""

    def row(self, pid: int) -> Row | None:
        """A fresh reading of one process."""

    def send(self, identity: Identity, number: signal.Signals) -> bool:
        """Signal that very process, or nobody. False: it is gone, or may not be signalled."""

    def program(self, pid: int) -> str:
        """The name of its program, never an argument; empty where that cannot be read."""

    def environ(self, pid: int) -> bytes:
        """Its environment as the kernel shows it; empty where that cannot be read."""

    def epoch_s(self, started: float) -> float:
        """A start time of this table on the clock that people use."""


class ProcTable:
    """The table of a Linux machine."""

    def __init__(self) -> None:
        # Marks are inherited at fork, so one reading a process is enough; without this a look at 1,000 processes
        # costs five times as much. A process that drops its marks by exec stays known by what it had.
        self._marks: dict[Identity, tuple[tuple[str, ...], int]] = {}

    def look(self) -> Table:
        """A fresh reading of all of /proc."""
        rows = []
        for name in os.listdir("/proc"):
            if name.isdecimal():
                row = self.row(int(name))
                if row is not None:
                    rows.append(row)
        table = Table(rows)
        if len(self._marks) > 2 * len(rows) + 64:
            self._marks = {known: marks for known, marks in self._marks.items() if table.has(known)}
        return table

    def row(self, pid: int) -> Row | None:
        """A fresh reading of one process."""
        stat = _read(f"/proc/{pid}/stat", _STAT_BYTES)
        # The command's name may hold spaces and brackets: fields are counted from the last bracket.
        fields = stat.rpartition(b")")[2].split()
        if len(fields) < 20:
            return None
        identity = Identity(pid, float(fields[19]))
        # Where only the first thread has ended, the process shows as a zombie and works on: its threads are counted.
        zombie = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
        tokens, tag = ((), 0) if zombie else self._marks_of(identity)
        return Row(pid, int(fields[1]), int(fields[3]), identity.started, zombie, tokens, tag)

    def _marks_of(self, identity: Identity) -> tuple[tuple[str, ...], int]:
        marks = self._marks.get(identity)
        if marks is None:
            environ = self.environ(identity.pid)
            marks = marker.tokens_in(environ), _tag_of(identity.pid)
            if environ:  # in the midst of an exec there is none to be seen: that is not the last word
                self._marks[identity] = marks
        return marks

    def send(self, identity: Identity, number: signal.Signals) -> bool:
        """Signal that very process, or nobody."""
        try:
            # The descriptor first, the check second: what the descriptor names cannot change any more, so if the
            # start time is right now, the signal cannot reach a stranger that got the pid meanwhile.
            descriptor = os.pidfd_open(identity.pid)
        except OSError:
            return False
        try:
            row = self.row(identity.pid)
            if row is None or row.zombie or row.started != identity.started:
                return False
            signal.pidfd_send_signal(descriptor, number)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def program(self, pid: int) -> str:
        """The name of its program, never an argument; empty where that cannot be read."""
        return name_of(_read(f"/proc/{pid}/comm", _NAME_BYTES).decode("utf-8", "replace"))

    def environ(self, pid: int) -> bytes:
        """Its environment as the kernel shows it; empty where that cannot be read."""
        return _read(f"/proc/{pid}/environ", _ENVIRON_BYTES)

    def epoch_s(self, started: float) -> float:
        """Ticks since boot on the clock that people use."""
        booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted_s + started / _TICKS_PER_S


def name_of(title: str) -> str:
    """A program's name out of what it calls itself: some make that of their arguments (`npm exec …`)."""
    return title.split(maxsplit=1)[0] if title.strip() else ""


def _tag_of(pid: int) -> int:
    try:
        return max(resource.prlimit(pid, marker.TAG_LIMIT)[0], 0)
    except (OSError, ValueError):
        return 0


def _read(path: str, size: int) -> bytes:
    # Only these mean that there is nothing for us to see. Anything else, such as no descriptor left to read with, must
    # not pass for an empty table.
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
    try:
        return os.read(file, size)
    except (ProcessLookupError, PermissionError):
        return b""
    finally:
        os.close(file)
