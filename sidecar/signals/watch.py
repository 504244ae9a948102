"""The watcher: says when a signal file appeared, vanished or changed, in any of many directories.

The truth is whether the name exists. An event source only hints where to look now, and since no source is
complete (overflows, network file systems, mounts, limits) a tick looks at everything once more.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.lowlevel

from sidecar.signals import files
from sidecar.signals.inotify import Inotify

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from anyio.abc import TaskStatus

    Level = tuple[int, int, int, int] | None
    Ground = tuple[str, int, int]

_SIGNAL_NAMES = frozenset(os.fsencode(name) for name in files.FILE_NAMES.values())
_STOP, _ABORT = f"/{files.FILE_NAMES['stop']}", f"/{files.FILE_NAMES['abort']}"
_NOTHING: tuple[Level, Level] = (None, None)
_TICK_S = 1.0
# A look takes about 6 µs. Beyond this many directories a tick looks at a part of them only, so that an idle
# watcher stays below 2 % of a core; a slice at a time, so that it never holds up the event loop for long.
_LOOKS_PER_TICK = 2000
_LOOKS_PER_SLICE = 200
_RECOVERIES_PER_TICK = 20
_ATTEMPTS = 20


class EventSource(Protocol):
    """What hints that something may have happened in a directory. It may be wrong, late or silent."""

    names: Counter[bytes]
    """Hints about other names are not wanted; the watcher keeps this up to date."""

    def fileno(self) -> int:
        """Readable when there is something to drain; -1: there never is."""

    def arm(self, directory: str) -> bool:
        """Hint about the directory that stands at this path now. False: this source never hints.

        Armed already: make sure that it still is. Raises OSError where the system refuses.
        """

    def disarm(self, directory: str) -> None:
        """No more hints about this path. Idempotent."""

    def drain(self) -> Collection[tuple[str, bytes]] | None:
        """What to look at: an armed path and a name in it, or no name for the directory itself. None: everything."""

    def close(self) -> None:
        """Give everything back. Idempotent."""


class Polling:
    """The source that never hints: the tick finds everything."""

    def __init__(self) -> None:
        self.names: Counter[bytes] = Counter()

    def fileno(self) -> int:
        """There is none."""
        return -1

    def arm(self, directory: str) -> bool:
        """Nothing is armed."""
        return False

    def disarm(self, directory: str) -> None:
        """Nothing was armed."""

    def drain(self) -> Collection[tuple[str, bytes]] | None:
        """Nothing to look at."""
        return ()

    def close(self) -> None:
        """Nothing to give back."""


def source_for(setting: str, report: Callable[[str], None]) -> EventSource:
    """The event source that the setting `watcher` asks for; polling, and a line about it, where it cannot be had."""
    if setting == "polling":
        return Polling()
    try:
        if setting == "inotify" or (setting == "auto" and sys.platform == "linux"):
            return Inotify()
        # Imported late: watchdog costs more start-up time than everything else here together.
        from sidecar.signals.watchdog_source import WatchdogSource  # noqa: PLC0415

        return WatchdogSource()
    except OSError as error:
        report(f"no file system events ({error.strerror}); signal files are looked for every second instead")
        return Polling()


class Watcher:
    """Calls back whenever the level of `.stop` or `.abort` in one of its directories changed.

    Not thread-safe: it lives on the event loop, and so do the callbacks, which must not block.
    """

    def __init__(self, source: EventSource, report: Callable[[str], None], *, tick_s: float = _TICK_S) -> None:
        self._source = source
        self._report = report
        self._tick_s = tick_s
        self._watched: dict[str, _WatchedDirectory] = {}
        self._polled: dict[_WatchedDirectory, None] = {}
        # Ancestors of directories that do not exist, and by the next name on the way down those who wait for it.
        self._awaited: dict[str, dict[bytes, set[_WatchedDirectory]]] = {}
        self._turns, self._polled_turns, self._recovery_turns = _RoundRobin(), _RoundRobin(), _RoundRobin()
        self._lost_hints = anyio.Event()
        self._reported: set[int | None] = set()
        self.turns = 0  # of the tick: whoever sees it grow knows that this watcher is awake
        source.names.update(_SIGNAL_NAMES)

    @property
    def polled(self) -> list[str]:
        """The directories that only the tick looks at, because the source cannot hint about them."""
        return [watched.path for watched in self._polled]

    def add(self, directory: str, on_change: Callable[[str], None]) -> None:
        """Call back about this directory (an absolute path) from now on; at once, if a signal is there already."""
        path = directory.rstrip("/") or "/"
        watched = self._watched.get(path)
        if watched is None:
            watched = _WatchedDirectory(path)
            files.recover(path)
            self._watched[path] = watched
            self._arm(watched)
        # Listed before the look: the look may call others back, and a directory that they all discard then must not go.
        watched.listeners = (*watched.listeners, on_change)
        if not self._check(watched) and watched.levels is not _NOTHING:
            self._notify(path, (on_change,))

    def discard(self, directory: str, on_change: Callable[[str], None]) -> None:
        """Undo one `add`. Harmless if there was none."""
        watched = self._watched.get(directory.rstrip("/") or "/")
        if watched is None or on_change not in watched.listeners:
            return
        at = watched.listeners.index(on_change)
        watched.listeners = watched.listeners[:at] + watched.listeners[at + 1 :]
        if not watched.listeners:
            del self._watched[watched.path]
            self._polled.pop(watched, None)
            self._stand_on(watched, None)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled; the source is closed then. Directories can be added before and meanwhile."""
        descriptor = self._source.fileno()
        # A reader that stays, instead of one `anyio.wait_readable` after the other: that costs two system calls
        # and another turn of the loop for each hint, twice the latency of the whole rest.
        loop = asyncio.get_running_loop()
        if descriptor >= 0:
            loop.add_reader(descriptor, self._on_hints)
        try:
            task_status.started()
            while True:
                await self._tick()
        finally:
            if descriptor >= 0:
                loop.remove_reader(descriptor)
            self._source.close()

    async def _tick(self) -> None:
        self.turns += 1
        with anyio.move_on_after(self._tick_s):
            await self._lost_hints.wait()
        self._on_hints()  # also what a source can only tell when asked: a dead thread
        if self._lost_hints.is_set():
            self._lost_hints = anyio.Event()
            # Among what was lost may be that a watch is gone, even though a directory with the same inode number
            # stands in its place: arm all of them again, whatever they look like.
            await self._sweep(list(self._watched.values()), arm=True)
            return
        self._try_polled_again()
        for watched in self._recovery_turns.take(self._watched.values(), _RECOVERIES_PER_TICK):
            files.recover(watched.path)
        await self._sweep(self._due())

    def _on_hints(self) -> None:
        hints = self._source.drain()
        if hints is None:
            self._lost_hints.set()
            return
        for directory, name in hints:
            watched = self._watched.get(directory)
            if watched is not None:
                if not name:
                    self._arm(watched)
                self._check(watched)
            if directory in self._awaited:
                self._on_ancestor(directory, name)

    def _on_ancestor(self, ancestor: str, name: bytes) -> None:
        """Something happened where those wait whose directory does not exist."""
        waiting = self._awaited[ancestor]
        for watched in list(waiting.get(name, ())) if name else [one for some in waiting.values() for one in some]:
            if watched.listeners:  # else discarded by a callback meanwhile
                self._arm(watched)
                self._check(watched)

    def _due(self) -> list[_WatchedDirectory]:
        if len(self._watched) <= _LOOKS_PER_TICK:
            return list(self._watched.values())
        # The tick is all that the polled ones have, so they come first, but never so many that the others starve.
        polled = self._polled_turns.take(self._polled, _LOOKS_PER_TICK * 3 // 4)
        return polled + self._turns.take(self._watched.values(), _LOOKS_PER_TICK - len(polled))

    async def _sweep(self, several: list[_WatchedDirectory], *, arm: bool = False) -> None:
        for start in range(0, len(several), _LOOKS_PER_SLICE):
            if start:
                await anyio.lowlevel.checkpoint()
            for watched in several[start : start + _LOOKS_PER_SLICE]:
                if not watched.listeners:  # discarded meanwhile
                    continue
                # Renamed ancestors, mounts and links that lead elsewhere give no event at all.
                if arm or (watched not in self._polled and _ground(watched.path) != watched.ground):
                    self._arm(watched)
                self._check(watched)

    def _try_polled_again(self) -> None:
        for watched in list(islice(self._polled, _LOOKS_PER_SLICE)):
            self._arm(watched)
            if watched in self._polled:  # the limit still holds, or this one is hopeless: another one next time
                return

    def _arm(self, watched: _WatchedDirectory) -> None:
        """Have the source hint about the directory, or about where its path ends for now."""
        self._polled.pop(watched, None)
        for _ in range(_ATTEMPTS):
            ground = _ground(watched.path)
            self._stand_on(watched, ground)
            try:
                hinted = self._source.arm(ground[0])
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                self._cannot_arm(watched, error)
                hinted = False
            if not hinted:
                self._polled[watched] = None
                return
            # What was created or replaced before the watch stood gave no event.
            if _ground(watched.path) == ground:
                return
        # Somebody creates and deletes it faster than we can follow.
        self._polled[watched] = None

    def _cannot_arm(self, watched: _WatchedDirectory, error: OSError) -> None:
        if error.errno not in self._reported:
            self._reported.add(error.errno)
            self._report(
                f"no file system events for {watched.path} ({error.strerror}); "
                "it, and others with the same trouble, are looked at every second instead"
            )

    def _stand_on(self, watched: _WatchedDirectory, ground: Ground | None) -> None:
        """Note where the directory's hints come from, and disarm what is not needed any more."""
        old, new = watched.ground and watched.ground[0], ground and ground[0]
        watched.ground = ground
        if old == new:
            return
        if new is not None and new != watched.path:
            name = _next_name(new, watched.path)
            self._awaited.setdefault(new, {}).setdefault(name, set()).add(watched)
            self._source.names[name] += 1
        if old is not None and old != watched.path:
            self._stop_awaiting(watched, old)
        if old is not None and old not in self._awaited:
            there = self._watched.get(old)
            if there is None or there.ground is None or there.ground[0] != old:
                self._source.disarm(old)

    def _stop_awaiting(self, watched: _WatchedDirectory, ancestor: str) -> None:
        name = _next_name(ancestor, watched.path)
        names = self._awaited[ancestor]
        names[name].remove(watched)
        if not names[name]:
            del names[name]
        if not names:
            del self._awaited[ancestor]
        self._source.names[name] -= 1
        if not self._source.names[name]:
            del self._source.names[name]

    def _check(self, watched: _WatchedDirectory) -> bool:
        """Whether something changed; then the listeners were called."""
        levels = _level(watched.path + _STOP), _level(watched.path + _ABORT)
        if levels == watched.levels:
            return False
        watched.levels = _NOTHING if levels == _NOTHING else levels
        self._notify(watched.path, watched.listeners)
        return True

    def _notify(self, path: str, listeners: Iterable[Callable[[str], None]]) -> None:
        for on_change in listeners:
            try:
                on_change(path)
            except Exception as error:  # one listener's mistake must not silence the others
                self._report(f"the callback for a change of the signals in {path} failed: {error!r}")


class _WatchedDirectory:
    """A directory that has listeners, whether it exists or not."""

    __slots__ = ("ground", "levels", "listeners", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.listeners: tuple[Callable[[str], None], ...] = ()
        self.levels = _NOTHING
        # The directory that the source was asked to hint about, as it was then: this one or, while it does not
        # exist, the nearest ancestor that does.
        self.ground: Ground | None = None


class _RoundRobin:
    """Each directory once before any of them twice."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[_WatchedDirectory] = []

    def take(self, everybody: Iterable[_WatchedDirectory], count: int) -> list[_WatchedDirectory]:
        """The next ones, at most this many."""
        if not self._waiting:
            self._waiting = list(everybody)
        rest = max(len(self._waiting) - count, 0)
        taken = self._waiting[rest:]
        del self._waiting[rest:]
        return taken


def _level(path: str) -> Level:
    """None, or what distinguishes this very file in this very state from another."""
    if not files.present(path):
        return None
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _ground(path: str) -> Ground:
    """The directory itself, or the nearest ancestor that is one, and its identity."""
    while True:
        try:
            found = os.stat(path)
        except OSError:
            pass
        else:
            if stat.S_ISDIR(found.st_mode):
                return path, found.st_dev, found.st_ino
        parent = os.path.dirname(path)
        if parent == path:
            return path, 0, 0
        path = parent


def _next_name(ancestor: str, path: str) -> bytes:
    return os.fsencode(path[len(ancestor) :].lstrip("/").split("/", 1)[0])
