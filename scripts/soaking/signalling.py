"""Signals of a soak: written in every place and manner, taken away, replaced; and a record of each for the auditor."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sidecar.errors import REPORTED
from sidecar.signals import files, receipts

if TYPE_CHECKING:
    from soaking.project import Soaked

Kind = Literal["stop", "abort"]
_EXPIRED = "2020-01-01T00:00:00Z"


@dataclass(slots=True)
class Written:
    """One signal that the storm wrote. `ids`: every one that a reader of the file can have given it."""

    path: str
    kind: Kind
    manner: str
    governs: str  # project, workspace, run
    written_at: float  # before it was there; by a clock that nobody steps, as all of these
    stood_at: float = 0.0  # when it was there for certain
    ids: list[str] = field(default_factory=list)
    gone_at: float | None = None  # when the storm took it away itself
    gone_by: str | None = None
    missed_at: float | None = None  # when it was first seen that somebody else had taken it away


class Signaller:
    """Writes signals and takes them away, at random but by a seed."""

    def __init__(self, soaked: Soaked, seed: int) -> None:
        self._soaked = soaked
        self._random = random.Random(f"{seed} signals")
        self._standing: dict[str, Written] = {}  # by path: the last one there
        self.written: list[Written] = []
        self.receipts: dict[str, dict[str, Any]] = {}  # by signal: the last one that was seen
        self.unwritten = 0  # the disk was full

    def act(self) -> None:
        """One thing that somebody may do at any time."""
        path, governs = self._place()
        choice = self._random.random()
        try:
            if choice < 0.15:
                self._take_away(path, "deleted")
            elif choice < 0.5 or not files.present(path):  # most of those that stand there are left to their readers
                self._write(path, governs, "abort" if path.endswith(".abort") else "stop")
        except FileNotFoundError:
            pass  # there was nothing to take away, or its place is gone
        except (OSError, *REPORTED):
            self.unwritten += 1

    def collect(self) -> None:
        """Remember the receipts there are: the next signal in a place overwrites them."""
        for path, standing in list(self._standing.items()):
            self._collect(path)
            if standing.gone_at is None and standing.missed_at is None and self._ids_at(path) not in standing.ids:
                standing.missed_at = time.monotonic()

    def _collect(self, path: str) -> None:
        found = receipts.read(path)
        if found is not None:
            self.receipts[found["signal_id"]] = dict(found)

    def _place(self) -> tuple[str, str]:
        name = ".abort" if self._random.random() < 0.4 else ".stop"
        choice = self._random.random()
        live = self._soaked.live()
        if choice < 0.08:
            return str(self._soaked.own / name), "project"
        run_id = self._random.choice(live) if live else ""
        if choice < 0.4 or not live:
            bound = self._soaked.bound.get(run_id) or self._random.choice(self._soaked.workspaces)
            return str(bound / name), "workspace"
        return str(self._soaked.own / "runs" / run_id / name), "run"

    def _take_away(self, path: str, how: str) -> None:
        standing = self._standing.get(path)
        # Before it is gone: whoever applies it afterwards has read it before that moment.
        identity = self._ids_at(path)
        os.unlink(path)
        if standing is not None and identity in standing.ids:
            standing.gone_at, standing.gone_by = time.monotonic(), how

    def _ids_at(self, path: str) -> str | None:
        directory, name = os.path.split(path)
        found = files.read(directory, "abort" if name == ".abort" else "stop")
        return found.signal_id if found else None

    def _write(self, path: str, governs: str, kind: Kind) -> None:
        self._collect(path)
        manner = self._random.choice(("touch", "echo", "rename", "ours", "ours", "expired", "timeout"))
        written = Written(path, kind, manner, governs, time.monotonic())
        before = self._standing.get(path)
        replaces = before is not None and before.gone_at is None and self._ids_at(path) in before.ids
        if before is not None and replaces:
            before.gone_at, before.gone_by = time.monotonic(), "replaced"
        try:
            self._put(written)
        except (OSError, *REPORTED):
            if (
                before is not None and replaces and self._ids_at(path) in before.ids
            ):  # the disk is full: it still stands
                before.gone_at = before.gone_by = None
            raise
        written.stood_at = time.monotonic()
        self._standing[path] = written
        self.written.append(written)

    def _put(self, written: Written) -> None:
        directory = os.path.dirname(written.path)
        if written.manner in ("touch", "echo"):
            self._put_bare(written)
        elif written.manner == "rename":
            temporary = f"{directory}/soak-{len(self.written)}"
            Path(temporary).write_text("by rename\n", encoding="utf-8")
            written.ids.append(_id_of(os.lstat(temporary)))
            os.rename(temporary, written.path)
        else:
            timeout_s = 1.5 if written.manner == "timeout" and written.kind == "stop" else None
            trailers = files.new_trailers(timeout_s=timeout_s)
            trailers.expires_at = _EXPIRED if written.manner == "expired" else None
            written.ids.append(trailers.signal_id or "")
            files.write(directory, written.kind, "the soak", trailers)

    def _put_bare(self, written: Written) -> None:
        try:
            os.unlink(written.path)
        except FileNotFoundError:
            pass
        file = os.open(written.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            written.ids.append(_id_of(os.fstat(file)))
            if written.manner == "echo":
                os.write(file, b"by echo\n")
                written.ids.append(_id_of(os.fstat(file)))
        finally:
            os.close(file)


def _id_of(found: os.stat_result) -> str:
    """As readers name a bare file."""
    return f"file-{found.st_dev:x}-{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"


def record(signaller: Signaller) -> dict[str, Any]:
    """For the auditor, as JSON has it."""
    told = {"signals": [asdict(written) for written in signaller.written], "receipts": signaller.receipts}
    parsed: dict[str, Any] = json.loads(json.dumps(told))
    return parsed
