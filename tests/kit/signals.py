"""Signal files, receipts and the files of an open run, read and written without the product."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.kit.ids import new_id

_NO_REASON = {"stop": "no reason given", "abort": "Unknown abort reason"}
_TRAILERS = ("Signal-Id", "Requested-At", "Requested-By", "Run", "Expires", "Timeout")


@dataclass(frozen=True)
class SignalFile:
    """What a signal file says: the reason, and its trailers by name."""

    kind: str
    path: Path
    reason: str
    trailers: dict[str, str]

    @property
    def signal_id(self) -> str:
        """The one in the file; for a file without one, the one that every reader agrees on."""
        found = self.path.lstat()
        numbers = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
        return self.trailers.get("Signal-Id") or "file-" + "-".join(format(number, "x") for number in numbers)


def signal_path(directory: Path, kind: str) -> Path:
    return directory / f".{kind}"


def present(directory: Path, kind: str) -> bool:
    """Whether the signal is there; a dangling link is one."""
    return os.path.lexists(signal_path(directory, kind))


def read_signal(directory: Path, kind: str) -> SignalFile:
    path = signal_path(directory, kind)
    text = path.read_bytes().decode(errors="replace").strip()
    reason, _, last = text.rpartition("\n\n")
    found = dict(line.split(": ", 1) for line in last.split("\n") if line.partition(": ")[0] in _TRAILERS)
    if len(found) != len(last.split("\n")):
        reason, found = text, {}
    return SignalFile(kind, path, reason.strip() or _NO_REASON[kind], found)


class HeldRun:
    """Holds the lock of a run as its owner does, and answers signals with whatever the test wants."""

    def __init__(self, project: Path, workspace: Path | None = None, run_id: str | None = None) -> None:
        self.run_id = run_id or new_id()
        self.workspace = workspace
        state = project / ".swissarmyhammer"
        self.directory = state / "runs" / self.run_id
        self._entry = state / "open" / self.run_id
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(self._lock, os.pwrite(self._lock, b"%d\n" % os.getpid(), 0))
        self._entry.parent.mkdir(parents=True, exist_ok=True)
        self._entry.touch()
        (self.directory / "open").write_text(f"Driver: server\nStanding: \nWorkspace: {workspace or ''}\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """The run has ended, and nobody holds it."""
        for path in (self.directory / "open", self._entry):
            path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Nobody executes the run any more, and it is still open."""
        with suppress(OSError):
            os.close(self._lock)

    def write_receipt(self, kind: str, state: str = "applied", survivors: int = 0) -> None:
        """What became of the signal in the run's workspace, as its owner tells it."""
        assert self.workspace is not None
        found = read_signal(self.workspace, kind)
        process = {
            "run_id": self.run_id,
            "pid": 4711,
            "started_at": "2026-11-15T10:00:00Z",
            "program": "agent",
            "rung": "term",
            "ms_to_death": 12.0,
        }
        receipt: dict[str, Any] = {
            "signal": kind,
            "signal_id": found.signal_id,
            "path": str(found.path),
            "state": state,
            "reason": found.reason,
            "requested_by": found.trailers.get("Requested-By"),
            "received_at": None,
            "applied_at": None,
            "runs": [{"run_id": self.run_id, "status": "stopped" if kind == "stop" else "aborted"}],
            "processes": [process],
            "survivors": survivors,
            "removed": False,
        }
        beside = found.path.with_name(f"{found.path.name}.receipt.json")
        written = beside.with_name(f"{beside.name}.new")
        written.write_text(json.dumps(receipt))
        written.rename(beside)
