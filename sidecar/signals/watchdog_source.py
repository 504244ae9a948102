"""Hints through watchdog, for systems without inotify (FSEvents, kqueue): its threads, handed to the event loop.

Whatever watchdog loses is found by the watcher's tick; what is here keeps it prompt and keeps its threads few.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, cast

from watchdog import events
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

if TYPE_CHECKING:
    from watchdog.observers.api import EventEmitter, ObservedWatch
    from watchdog.observers.inotify_c import InotifyEvent, Mask

try:
    from watchdog.observers.inotify import InotifyEmitter
    from watchdog.observers.inotify_c import InotifyConstants, InotifyFD
except Exception:  # watchdog raises whatever it likes where there is no inotify
    _ON_INOTIFY = False
else:
    _ON_INOTIFY = True

    class _PromptEmitter(InotifyEmitter):
        """Never asks for "moved from": watchdog holds back a lone one, and all behind it, for half a second."""

        def get_event_mask_from_filter(self) -> Mask:
            wanted = InotifyConstants.IN_CREATE | InotifyConstants.IN_MOVED_TO | InotifyConstants.IN_CLOSE_WRITE
            gone = InotifyConstants.IN_DELETE | InotifyConstants.IN_DELETE_SELF
            return cast("Mask", wanted | gone | InotifyConstants.IN_ONLYDIR)

    class _PromptReader(InotifyFD):
        """The thread that reads from the kernel. It drops unwanted names at once, because watchdog has two more threads
        behind this one, with queues that have no limit: a signal would wait there behind every other file."""

        def __init__(self, source: WatchdogSource) -> None:
            super().__init__()
            self._for = source

        def handle_event(self, event: InotifyEvent) -> None:
            if event.is_queue_overflow:
                self._for.overflowed()
            elif not event.name or event.name in self._for.names:
                super().handle_event(event)

    class _PromptObserver(BaseObserver):
        """As watchdog's own observer on inotify, but with the two classes above."""

        def __init__(self, source: WatchdogSource) -> None:
            self._reader = _PromptReader(source)
            self._reader.start()
            super().__init__(_PromptEmitter, inotify_fd=self._reader)

        def on_thread_stop(self) -> None:
            super().on_thread_stop()
            self._reader.stop()
            self._reader.join()


# watchdog keeps a thread for each directory.
_MOST_DIRECTORIES = 256
_WANTED: list[type[events.FileSystemEvent]] = [
    events.FileCreatedEvent,
    events.FileDeletedEvent,
    events.FileMovedEvent,
    events.DirCreatedEvent,
    events.DirDeletedEvent,
    events.DirMovedEvent,
]
if _ON_INOTIFY:
    _WANTED.append(events.FileClosedEvent)
else:
    # FSEvents knows no "closed", and says of a new subdirectory only that its parent was modified.
    _WANTED += [events.FileModifiedEvent, events.DirModifiedEvent]


class _Watched(events.FileSystemEventHandler):
    """One real directory: its watch, and every spelling of its path that somebody armed."""

    def __init__(self, source: WatchdogSource, path: str, identity: tuple[int, int]) -> None:
        self.source = source
        self.path = path
        self.identity = identity
        self.directories: tuple[str, ...] = ()
        self.lost = False
        self.watch: ObservedWatch | None = None
        self.emitter: EventEmitter | None = None

    def dispatch(self, event: events.FileSystemEvent) -> None:
        """On a thread of watchdog's, which an exception would end."""
        try:
            for path in (event.src_path, event.dest_path):
                if path:
                    self._hint(os.fsencode(path), event)
        except Exception:
            self.lost = True

    def _hint(self, path: bytes, event: events.FileSystemEvent) -> None:
        if path == os.fsencode(self.path):
            self.lost = self.lost or not isinstance(event, events.DirModifiedEvent)
            self.source.hint(self.directories, b"")
        else:
            directory, name = os.path.split(path)
            if name in self.source.names and directory == os.fsencode(self.path):
                self.source.hint(self.directories, name)


class WatchdogSource:
    """An event source. Raises OSError where watchdog cannot start."""

    def __init__(self) -> None:
        self.names: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self._hints: set[tuple[str, bytes]] = set()
        self._overflowed = False
        self._watched: dict[str, _Watched] = {}
        self._real_path_of: dict[str, str] = {}
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        try:
            self._observer = _start(self)
        except BaseException:
            os.close(self._readable)
            os.close(self._writable)
            raise

    def fileno(self) -> int:
        """Readable when there is something to drain."""
        return self._readable

    def hint(self, directories: tuple[str, ...], name: bytes) -> None:
        """From a thread of watchdog's to the event loop."""
        with self._lock:
            self._wake()
            self._hints.update((directory, name) for directory in directories)

    def overflowed(self) -> None:
        """From a thread of watchdog's: the kernel dropped events, and nobody knows which."""
        with self._lock:
            self._wake()
            self._overflowed = True

    def _wake(self) -> None:
        if not self._hints and not self._overflowed and self._writable >= 0:
            os.write(self._writable, b"!")  # never full: one byte for as long as nobody drained

    def arm(self, directory: str) -> bool:
        """Hint from now on about what happens in the directory that stands at this path now."""
        # Real paths only: FSEvents reports no others, and through a link watchdog sees nothing.
        real = os.path.realpath(directory)
        found = os.stat(real)
        identity = (found.st_dev, found.st_ino)
        if self._real_path_of.get(directory, real) != real:
            self.disarm(directory)
        watched = self._watched.get(real)
        if watched is None or watched.identity != identity or _is_dead(watched):
            watched = self._schedule(real, identity)
        if directory not in watched.directories:
            watched.directories = (*watched.directories, directory)
            self._real_path_of[directory] = real
        return True

    def disarm(self, directory: str) -> None:
        """No more hints about this path. Idempotent."""
        watched = self._watched.get(self._real_path_of.pop(directory, ""))
        if watched is not None:
            watched.directories = tuple(other for other in watched.directories if other != directory)
            if not watched.directories:
                del self._watched[watched.path]
                self._unschedule(watched)

    def drain(self) -> set[tuple[str, bytes]] | None:
        """What to look at: a directory and a name in it, or no name for the directory itself. None: everything."""
        with self._lock:
            hints, self._hints = self._hints, set()
            overflowed, self._overflowed = self._overflowed, False
            try:
                os.read(self._readable, 4096)
            except BlockingIOError:
                pass
        if not self._observer.is_alive():
            return self._start_again(hints)
        if overflowed:
            for watched in self._watched.values():
                watched.lost = True  # its end may be among what was dropped: `arm` makes a new watch
            return None
        for watched in self._watched.values():
            if _is_dead(watched):
                hints.update((directory, b"") for directory in watched.directories)
        return hints

    def close(self) -> None:
        """End the threads. Idempotent."""
        if self._readable >= 0:
            self._observer.stop()
            self._observer.join()
            with self._lock:  # an emitter that outlived the observer must not write to a descriptor of somebody else's
                os.close(self._readable)
                os.close(self._writable)
                self._readable = self._writable = -1

    def _schedule(self, real: str, identity: tuple[int, int]) -> _Watched:
        old = self._watched.get(real)
        if old is None and len(self._watched) >= _MOST_DIRECTORIES:
            raise OSError(errno.ENOSPC, f"more than {_MOST_DIRECTORIES} directories are too many for watchdog")
        watched = self._watched[real] = _Watched(self, real, identity)
        if old is not None:
            # First out, then in: to schedule what is scheduled already does nothing, even if its thread is dead.
            watched.directories = old.directories
            self._unschedule(old)
        try:
            watched.watch = self._observer.schedule(watched, real, recursive=False, event_filter=_WANTED)
        except Exception as error:
            if old is None:  # else it stays, as a dead one, because the other spellings do not know yet
                del self._watched[real]
            raise error if isinstance(error, OSError) else OSError(errno.EIO, f"watchdog: {error}") from None
        watched.emitter = next(one for one in self._observer.emitters if one.watch == watched.watch)
        return watched

    def _unschedule(self, watched: _Watched) -> None:
        if watched.watch is not None:
            try:
                self._observer.unschedule(watched.watch)
            except KeyError:  # watchdog took it out by itself
                pass

    def _start_again(self, hints: set[tuple[str, bytes]]) -> set[tuple[str, bytes]] | None:
        try:
            observer = _start(self)
        except OSError:  # not now: the next tick asks again
            return hints
        for emitter in self._observer.emitters:
            emitter.stop()
        self._observer = observer
        self._watched.clear()
        self._real_path_of.clear()
        return None


def _start(source: WatchdogSource) -> BaseObserver:
    observer: BaseObserver = _PromptObserver(source) if _ON_INOTIFY else Observer()
    observer.start()
    return observer


def _is_dead(watched: _Watched) -> bool:
    return watched.lost or watched.emitter is None or not watched.emitter.is_alive()
