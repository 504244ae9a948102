"""Decides what is asked of a run now: nothing, a stop or an abort, and an abort beats a stop.

It reads the files that govern the run whenever it is refreshed (by the watcher, a boundary, a key) and holds what it
found. The files stay the truth: the board only remembers what they cannot tell, that an abort was seen,
that a stop was typed at the terminal, that a stop for many was refused for this run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import anyio

from sidecar.errors import SidecarError
from sidecar.signals import files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from anyio.abc import TaskStatus

    from sidecar.signals.files import Kind, Signal
    from sidecar.signals.watch import Watcher

Source = Literal["keyboard", "file"]
Relevance = Literal["applies", "stale", "expired", "other run", "refused", "taken"]
TYPED_REASON = "requested at the terminal"


@dataclass(frozen=True, slots=True)
class SignalScope:
    """A run as signals see it: who it is, the directories that govern it, its own one last, and what stood there at its
    beginning (`run_lock.Mark.standing`)."""

    run_id: str
    directories: tuple[str, ...]
    standing: frozenset[str] = frozenset()

    @property
    def own_directory(self) -> str:
        """Where a signal reaches this run and no other."""
        return self.directories[-1]


@dataclass(frozen=True, slots=True)
class Request:
    """One thing that is asked of the run."""

    kind: Kind
    reason: str
    source: Source
    since: float
    signal: Signal | None  # None: typed while the file could not be written


def classify(signal: Signal, scope: SignalScope, now: float) -> Relevance:
    """Whether a signal that stands in one of a run's directories is meant for it, now."""
    if signal.trailers.run_id not in (None, scope.run_id):
        return "other run"
    expires = files.parse_timestamp(signal.trailers.expires_at) if signal.trailers.expires_at else None
    if expires is not None and expires <= now:
        return "expired"
    # An abort is about what runs when it is written. A stop may wait for the run that it is to prevent.
    if signal.kind == "abort" and signal.occurrence in scope.standing:
        return "stale"
    return "applies"


class Board:
    """What is asked of one run. Nothing here raises: a stop that cannot be shown must not end a run."""

    def __init__(
        self,
        scope: SignalScope,
        *,
        taken: Collection[str] = (),
        noted: Request | None = None,
        report: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """`taken` are the ids of signals that were applied to this run before, and are not again. `noted` is a stop
        whose file did not wait for this run."""
        self._taken = frozenset(taken)
        self._noted = noted
        self.scope = scope
        self.stop: Request | None = None
        self.abort: Request | None = None
        self.report = report
        self._clock = clock
        self._elapsed = elapsed
        self._seen_at: dict[str, float] = {}  # stops with a timeout, by id: when they were first seen, by `elapsed`
        self._paths = [files.path_of(directory, kind) for directory in scope.directories for kind in files.FILE_NAMES]
        self._typed: set[str] = set()  # ids of signals that the keyboard wrote
        self._refused: set[tuple[object, ...]] = set()  # fingerprints of stops for many, refused for this run
        self._unwritten: Request | None = None
        self._overdue_at = float("inf")  # when the first of the stops becomes an abort, shown or not
        self._changed = anyio.Event()

    # --- what a run and its display ask

    @property
    def request(self) -> Request | None:
        """What is asked of the run now. An abort beats a stop."""
        return self.abort or self.stop

    def any_present(self) -> bool:
        """Whether anything is asked or any signal file is there: a few microseconds, at every boundary."""
        asked = self.abort is not None or self._unwritten is not None or self._noted is not None
        return asked or any(map(files.present, self._paths))

    async def wait_changed(self) -> None:
        """Return when something is asked that was not, or no longer is."""
        await self._changed.wait()

    # --- what changes it

    def refresh(self) -> None:
        """Read the files and note what they ask."""
        now = self._clock()
        found = {kind: self._applying(kind, now) for kind in files.FILE_NAMES}
        overdue = [request for request in found["stop"] if self._deadline(request) <= self._elapsed()]
        overdue_at = min(map(self._deadline, found["stop"]), default=float("inf"))
        abort = self._noted_abort([*found["abort"], *map(_as_abort, overdue)])
        stop = _first(self.stop, [*found["stop"], *(one for one in (self._unwritten, self._noted) if one)])
        if (stop, abort, overdue_at) != (self.stop, self.abort, self._overdue_at):
            self.stop, self.abort, self._overdue_at = stop, abort, overdue_at
            self._changed.set()
            self._changed = anyio.Event()

    def toggle(self) -> None:
        """What the key `s` does: ask this run to stop, or take back whatever asks it to."""
        self.refresh()
        if self.stop is None:
            self._type_stop()
        else:
            self._take_back()
        self.refresh()

    def cleanup(self) -> None:
        """Remove the run's own leftovers when it has ended otherwise; a second time does nothing."""
        for kind in files.FILE_NAMES:
            signal = files.read(self.scope.own_directory, kind)
            if signal is not None:
                self._clear(signal)
        self._unwritten = None
        self.refresh()

    async def follow(self, watcher: Watcher, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the board true while the run lives: look when the watcher says so, and when a stop is overdue."""
        for directory in self.scope.directories:
            watcher.add(directory, self._hinted)
        try:
            self.refresh()
            task_status.started()
            while True:
                overdue_at = float("inf") if self.abort else self._overdue_at
                with anyio.move_on_after(max(0.0, overdue_at - self._elapsed())):
                    await self._changed.wait()
                self.refresh()
        finally:
            for directory in self.scope.directories:
                watcher.discard(directory, self._hinted)

    # --- inside

    def _hinted(self, _directory: str) -> None:
        self.refresh()

    def _applying(self, kind: Kind, now: float) -> list[Request]:
        signals = [files.read(directory, kind) for directory in self.scope.directories]
        return [self._request(s) for s in signals if s is not None and self.relevance(s, now) == "applies"]

    def relevance(self, signal: Signal, now: float | None = None) -> Relevance:
        """What becomes of a signal here, the refusals of this run included."""
        if signal.fingerprint in self._refused:
            return "refused"
        if signal.signal_id in self._taken:
            return "taken"
        return classify(signal, self.scope, self._clock() if now is None else now)

    def _deadline(self, stop: Request) -> float:
        """When a stop becomes an abort, counted from the first look: the clock that dates files may be set."""
        timeout_s = _timeout_s(stop)
        if stop.signal is None or timeout_s == float("inf"):
            return timeout_s
        return self._seen_at.setdefault(stop.signal.signal_id, self._elapsed()) + timeout_s

    def _request(self, signal: Signal) -> Request:
        source: Source = "keyboard" if signal.signal_id in self._typed else "file"
        return Request(signal.kind, signal.reason, source, signal.arrived_at, signal)

    def _noted_abort(self, found: list[Request]) -> Request | None:
        """Once seen, an abort stays, whatever becomes of its file; only its reason may arrive late."""
        if self.abort is None:
            return min(found, key=_since, default=None)
        if self.abort.reason == files.NO_REASON["abort"]:
            explained = [request for request in found if request.reason != self.abort.reason]
            return replace(explained[0], since=self.abort.since) if explained else self.abort
        return self.abort

    def _type_stop(self) -> None:
        written = files.new_trailers(run_id=self.scope.run_id)
        self._typed.add(written.signal_id or "")
        try:
            files.write(self.scope.own_directory, "stop", TYPED_REASON, written)
        except SidecarError as error:
            # The person asked: a full disk does not change that. It only will not survive this process.
            self.report(str(error))
            self._unwritten = Request("stop", TYPED_REASON, "keyboard", self._clock(), None)

    def _take_back(self) -> None:
        self._unwritten = self._noted = None
        for directory in self.scope.directories:
            signal = files.read(directory, "stop")
            if signal is None:
                continue
            if directory == self.scope.own_directory:
                self._clear(signal)
            self._refused.add(signal.fingerprint)  # others may still be governed by it; this run no longer is

    def _clear(self, signal: Signal) -> None:
        try:
            files.clear(signal)
        except SidecarError as error:
            self.report(str(error))


def _since(request: Request) -> float:
    return request.since


def _first(current: Request | None, found: list[Request]) -> Request | None:
    """The request that is shown: the one that is, while it stands; else the one that came first."""
    for request in found:
        if current and request.source == current.source and _path(request) == _path(current):
            return request
    return min(found, key=_since, default=None)


def _path(request: Request) -> str | None:
    return request.signal.path if request.signal else None


def _timeout_s(stop: Request) -> float:
    return (stop.signal.trailers.timeout_s if stop.signal else None) or float("inf")


def _as_abort(stop: Request) -> Request:
    return replace(stop, kind="abort", reason=f"{stop.reason} (not stopped within {_timeout_s(stop):g} s)")
