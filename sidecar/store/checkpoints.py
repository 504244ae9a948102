"""Checkpoints: the cursor and the states of a run at a boundary, from which a resume goes on."""

from __future__ import annotations

from typing import Any, NamedTuple

from sidecar.store.db import Database, Table, pack, unpack

_KEPT = 2


class Checkpoint(NamedTuple):
    """The last boundary that a run has passed."""

    run_id: str
    number: int
    at: float
    content: Any  # packed in the table


_CHECKPOINTS = Table("checkpoints", Checkpoint, "checkpoint {number} of run {run_id}")


class Checkpoints:
    """Each call is a transaction, or a part of the one that is open."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def save(self, run_id: str, content: object, *, durable: bool = True) -> int:
        """One more checkpoint; the oldest goes. Returns its number."""
        packed = pack(content)
        last = "SELECT COALESCE(MAX(number), 0) FROM checkpoints WHERE run_id = ?"
        with self._db.transaction(durable=durable):
            number: int = self._db.rows(last, (run_id,))[0][0] + 1
            self._db.insert(_CHECKPOINTS, Checkpoint(run_id, number, self._db.clock(), packed))
            self._db.execute("DELETE FROM checkpoints WHERE run_id = ? AND number <= ?", (run_id, number - _KEPT))
        return number

    def last(self, run_id: str) -> Checkpoint | None:
        """The newest; None where the run has passed no boundary yet."""
        rows = self._db.select(_CHECKPOINTS, "WHERE run_id = ? ORDER BY number DESC LIMIT 1", (run_id,))
        return rows[0]._replace(content=unpack(rows[0].content)) if rows else None
