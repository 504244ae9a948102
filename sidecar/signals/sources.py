"""Event sources: what one is, the one that never hints, and which one a setting means."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from sidecar.signals.inotify import Inotify

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


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
        from sidecar.signals.portable import Portable  # noqa: PLC0415

        return Portable()
    except OSError as error:
        report(f"no file system events ({error.strerror}); signal files are looked for every second instead")
        return Polling()
