"""The same look through psutil, for systems without /proc; on Linux a setting makes us use it, so that it is tested."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil

from sidecar.agents import marker
from sidecar.agents.proc_table import Identity, Row, Table, name_of

if TYPE_CHECKING:
    import signal


class PortableTable:
    """The table of any machine that psutil knows."""

    def __init__(self) -> None:
        self._marks: dict[Identity, tuple[tuple[str, ...], int]] = {}

    def look(self) -> Table:
        """A fresh reading of every process."""
        rows = [row for row in map(self.row, psutil.pids()) if row is not None]
        present = {row.identity for row in rows}
        self._marks = {known: marks for known, marks in self._marks.items() if known in present}
        return Table(rows)

    def row(self, pid: int) -> Row | None:
        """A fresh reading of one process."""
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                identity = Identity(pid, _started(process))
                zombie = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) and not _works_on(pid)
                parent = process.ppid()
            tokens, tag = ((), 0) if zombie else self._marks_of(identity, process)
            return Row(pid, parent, _session_of(pid), identity.started, zombie, tokens, tag)
        except psutil.Error:  # gone, or not ours to see; anything else must not pass for an empty table
            return None

    def _marks_of(self, identity: Identity, process: psutil.Process) -> tuple[tuple[str, ...], int]:
        marks = self._marks.get(identity)
        if marks is None:
            environ = self.environ(identity.pid)
            marks = marker.tokens_in(environ), _tag_of(process)
            if environ:  # in the midst of an exec there is none to be seen: that is not the last word
                self._marks[identity] = marks
        return marks

    def send(self, identity: Identity, number: signal.Signals) -> bool:
        """Signal that very process, or nobody. Without pidfds a moment is left between the check and the signal."""
        row = self.row(identity.pid)
        if row is None or row.zombie or row.identity != identity:
            return False
        try:
            os.kill(identity.pid, number)
        except OSError:
            return False
        return True

    def program(self, pid: int) -> str:
        """The name of its program, never an argument; empty where that cannot be read."""
        try:
            return name_of(psutil.Process(pid).name())
        except (psutil.Error, OSError):
            return ""

    def environ(self, pid: int) -> bytes:
        """Its environment as one block; empty where that cannot be read."""
        try:
            pairs = psutil.Process(pid).environ()
        except (psutil.Error, OSError):
            return b""
        return b"\0".join(os.fsencode(f"{name}={value}") for name, value in pairs.items())

    def epoch_s(self, started: float) -> float:
        """What psutil makes of such a time now, with the clock as it is set now."""
        ourselves = psutil.Process()
        return started + ourselves.create_time() - _started(ourselves)


def _started(process: psutil.Process) -> float:
    """When it was started, by a clock that nobody sets: `create_time()` changes with the time of day, and not by as
    much for everybody who asks. psutil itself tells processes apart by this."""
    ident: tuple[int, float] = process._ident  # type: ignore[attr-defined]
    return ident[1]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _works_on(pid: int) -> bool:
    """Whether threads outlived the first one of what shows as a zombie; only Linux can tell."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def _tag_of(process: psutil.Process) -> int:
    if not hasattr(process, "rlimit"):  # macOS keeps other processes' limits to itself
        return 0
    try:
        return max(process.rlimit(marker.TAG_LIMIT)[0], 0)
    except (psutil.Error, OSError, ValueError):
        return 0
