"""Checkpoints: the cursor and the states of a run at a boundary, from which a resume goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sidecar.store.db import Database, pack, seal, unpack

_KEPT = 2


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last boundary that a run has passed."""

    run_id: str
    number: int
    at: float
    content: Any


class Checkpoints:
    """Each call is a transaction, or a part of the one that is open."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def save(self, run_id: str, content: object, *, durable: bool = True) -> int:
        """One more checkpoint; the oldest goes. Returns its number."""
        packed = pack(content)
        with self._db.transaction(durable=durable):
            last = "SELECT COALESCE(MAX(number), 0) FROM checkpoints WHERE run_id = ?"
            number: int = self._db.rows(last, (run_id,))[0][0] + 1
            columns = (run_id, number, self._db.clock(), packed)
            insert = "INSERT INTO checkpoints (run_id, number, at, content, seal) VALUES (?, ?, ?, ?, ?)"
            self._db.execute(insert, (*columns, seal(*columns)), f"run {run_id}")
            self._db.execute("DELETE FROM checkpoints WHERE run_id = ? AND number <= ?", (run_id, number - _KEPT))
        return number

    def last(self, run_id: str) -> Checkpoint | None:
        """The newest; None where the run has passed no boundary yet."""
        select = """SELECT run_id, number, at, content, seal FROM checkpoints WHERE run_id = ?
            ORDER BY number DESC LIMIT 1"""
        for _, number, at, content, sealed in self._db.rows(select, (run_id,)):
            if seal(run_id, number, at, content) != sealed:
                raise self._db.damaged(f"checkpoint {number} of run {run_id}")
            return Checkpoint(run_id, number, at, unpack(content))
        return None
