"""The process table through psutil, for systems without /proc; on Linux a setting makes us use it, so that it is
tested."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil

from sidecar.agents.lineage import TAG_LIMIT, Identity, ProcessTable, Row, program_name

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable


class PortableTable(ProcessTable):
    """The table of any machine that psutil knows."""

    def row(self, pid: int) -> Row | None:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                identity = Identity(pid, _started(process))
                zombie = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) and not _has_threads(pid)
                parent = process.ppid()
            markers, tag = ((), 0) if zombie else self._marks_of(identity)
            return Row(pid, parent, _session_of(pid), identity.started, zombie, markers, tag)
        except psutil.Error:  # gone, or not ours to see; anything else must not pass for an empty table
            return None

    def send(self, identity: Identity, number: signal.Signals) -> bool:
        # Without pidfds a moment remains between the check and the signal.
        row = self.row(identity.pid)
        if row is None or row.zombie or row.identity != identity:
            return False
        try:
            os.kill(identity.pid, number)
        except OSError:
            return False
        return True

    def program(self, pid: int) -> str:
        try:
            return program_name(psutil.Process(pid).name())
        except (psutil.Error, OSError):
            return ""

    def environ(self, pid: int) -> bytes:
        try:
            pairs = psutil.Process(pid).environ()
        except (psutil.Error, OSError):
            return b""
        return b"\0".join(os.fsencode(f"{name}={value}") for name, value in pairs.items())

    def epoch_s(self, started: float) -> float:
        # What psutil makes of such a time now, with the clock as it is set now.
        ourselves = psutil.Process()
        return started + ourselves.create_time() - _started(ourselves)

    def _pids(self) -> Iterable[int]:
        return psutil.pids()

    def _tag(self, pid: int) -> int:
        try:
            process = psutil.Process(pid)
            if not hasattr(process, "rlimit"):  # macOS keeps other processes' limits to itself
                return 0
            return max(process.rlimit(TAG_LIMIT)[0], 0)
        except (psutil.Error, OSError, ValueError):
            return 0


def _started(process: psutil.Process) -> float:
    """When it was started, by a clock that cannot be set: `create_time()` changes with the time of day, and not by as
    much in every process that asks. psutil itself tells processes apart by this."""
    ident: tuple[int, float] = process._ident  # type: ignore[attr-defined]
    return ident[1]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _has_threads(pid: int) -> bool:
    """Whether threads outlived the first one of what shows as a zombie; only Linux can tell."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False
