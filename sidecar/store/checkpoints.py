"""Checkpoints: the cursor and the states of a run at a boundary, from which a resume goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from sidecar.store.db import Database, Table, pack, unpack

_KEPT = 2


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last boundary that a run has passed."""

    run_id: str
    number: int
    at: float
    content: Any


class _CheckpointRow(NamedTuple):
    run_id: str
    number: int
    at: float
    content: bytes


_CHECKPOINTS = Table("checkpoints", _CheckpointRow, "checkpoint {number} of run {run_id}")


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
            self._db.insert(_CHECKPOINTS, _CheckpointRow(run_id, number, self._db.clock(), packed))
            self._db.execute("DELETE FROM checkpoints WHERE run_id = ? AND number <= ?", (run_id, number - _KEPT))
        return number

    def last(self, run_id: str) -> Checkpoint | None:
        """The newest; None where the run has passed no boundary yet."""
        rows = self._db.select(_CHECKPOINTS, "WHERE run_id = ? ORDER BY number DESC LIMIT 1", (run_id,))
        return Checkpoint(run_id, rows[0].number, rows[0].at, unpack(rows[0].content)) if rows else None
