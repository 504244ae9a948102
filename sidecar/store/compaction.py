"""Compaction: deletes old runs from the journal; never one that has not ended, and no young one that can be resumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.store.journal import OPEN, Journal

if TYPE_CHECKING:
    from collections.abc import Collection

    from sidecar.store.db import Database


_DAY_S = 86_400.0
_PAGES = 1_000  # given back at a time, so that no other process waits long


@dataclass(frozen=True, slots=True)
class Keep:
    """What stays of the runs that have ended: of the completed ones the newest, up to an age; of the others every one
    that is not older than that."""

    newest: int = 200
    age_s: float = 30 * _DAY_S


def compact(database: Database, keep: Keep, live: Collection[str] = (), *, at_most: int | None = None) -> list[str]:
    """Delete what need not stay; `live` are the runs that are executed now. Returns the ids of those that went,
    `at_most` so many.

    The age is counted from the last change. A clock that jumped back makes runs younger, which keeps them.
    """
    oldest = database.clock() - keep.age_s
    journal = Journal(database)
    completed = 0
    gone: list[str] = []
    for run_id, status, changed_at in journal.standings():
        completed += status == "completed"
        surplus = status == "completed" and completed > keep.newest
        if status in OPEN or run_id in live or not (surplus or changed_at < oldest):
            continue
        if len(gone) == at_most:
            break
        # A transaction each: a process that wants to write meanwhile waits for one run, not for a year of them.
        with database.transaction(durable=False):
            run = journal.find(run_id)
            # Another process may have resumed or deleted it since it was listed.
            if run is not None and (run.status, run.updated_at) == (status, changed_at):
                database.execute("DELETE FROM agents WHERE run_id = ? AND ended IS NOT NULL", (run_id,))
                database.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))
                gone.append(run_id)
    if gone:
        with database.transaction():
            database.execute("DELETE FROM agents WHERE run_id IS NULL AND ended IS NOT NULL")
        database.shrink(_PAGES)
    return gone
