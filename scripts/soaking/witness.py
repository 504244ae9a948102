"""The witness: notes when each event came into the journal, by a clock that nobody steps.

The journal's own times are those of the clock that the storm steps: they tell what happened, not when.
"""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_LAST = "SELECT (SELECT MAX(seq) FROM events WHERE run_id = ?1), (SELECT status FROM runs WHERE run_id = ?1)"


class Witness:
    """Looks again and again; an event came between the look that did not find it and the one that did."""

    def __init__(self, journal: Path) -> None:
        self._journal = sqlite3.connect(f"file:{journal}?mode=ro", uri=True, isolation_level=None)
        self._looked_at = time.monotonic()
        self._over: set[str] = set()
        self.seen: dict[str, list[tuple[int, float, float]]] = {}  # by run: last event, not before, not after

    def look(self, run_ids: Iterable[str]) -> None:
        """At those of the runs that can still get events."""
        looked_at = time.monotonic()
        try:
            found = [(one, *self._journal.execute(_LAST, (one,)).fetchone()) for one in set(run_ids) - self._over]
        except sqlite3.Error:  # the disk is full: the next look finds it, and knows less well when it came
            return
        for run_id, last, status in found:
            known = self.seen.setdefault(run_id, [])
            if last is not None and (not known or known[-1][0] < last):
                known.append((last, self._looked_at, time.monotonic()))
            if status == "completed":
                self._over.add(run_id)
        self._looked_at = looked_at

    def close(self) -> None:
        """Let go of the journal."""
        self._journal.close()
