"""Steps that were handed out to an agent outside: the same one until it is done, or until its lease has run out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sidecar.errors import StoreError
from sidecar.store import sql
from sidecar.store.sealed import dump, load, plain, seal

if TYPE_CHECKING:
    from sidecar.store.db import Database


@dataclass(frozen=True, slots=True)
class Handout:
    """What a task has in hand. The run itself is the task with the empty id."""

    run_id: str
    task_id: str
    key: str
    step: Any
    holder: str
    handed_at: float
    lease_until: float


class Handouts:
    """Each call is a transaction, or a part of the one that is open; durable, since an agent acts on it."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def hand_out(self, run_id: str, task_id: str, key: str, step: object, *, holder: str, lease_s: float) -> Handout:
        """Give this step to a task; where it has one in hand already, that one again, its lease renewed."""
        with self._db.transaction():
            if (held := self.held(run_id, task_id)) is not None:
                return self._renewed(held, holder, lease_s)
            now = self._db.clock()
            handout = Handout(run_id, task_id, key, plain(step), holder, now, now + lease_s)
            columns = _columns(handout)
            self._db.execute(sql.ADD_HANDOUT, (*columns, seal(*columns)), f"run {run_id}, step {key}")
            return handout

    def renew(self, run_id: str, task_id: str, holder: str, lease_s: float) -> Handout:
        """Its holder is alive; refused where somebody else holds it by now."""
        with self._db.transaction():
            held = self.held(run_id, task_id)
            if held is None or held.holder != holder:
                now = f"{held.holder} holds it" if held else "nothing is handed out"
                raise StoreError(f"run {run_id}, task {task_id or 'of the run itself'}: {now}", kind="conflict")
            return self._renewed(held, holder, lease_s)

    def take_back(self, run_id: str, task_id: str) -> bool:
        """It is done, or given up; False where nothing was handed out."""
        with self._db.transaction():
            return self._db.execute(sql.DROP_HANDOUT, (run_id, task_id)) == 1

    def held(self, run_id: str, task_id: str = "") -> Handout | None:
        """What the task has in hand."""
        rows = self._db.rows(sql.HANDOUT, (run_id, task_id))
        return self._read(rows[0]) if rows else None

    def all_held(self, run_id: str) -> list[Handout]:
        """What every task of the run has in hand."""
        return [self._read(row) for row in self._db.rows(sql.HANDOUTS, (run_id,))]

    def age_s(self, handout: Handout) -> float:
        """How long ago it was handed out."""
        return self._db.clock() - handout.handed_at

    def expired(self, run_id: str) -> list[Handout]:
        """Those whose holder has not been heard of for the length of its lease."""
        now = self._db.clock()
        return [handout for handout in self.all_held(run_id) if handout.lease_until <= now]

    def _renewed(self, held: Handout, holder: str, lease_s: float) -> Handout:
        handout = replace(held, holder=holder, lease_until=self._db.clock() + lease_s)
        sealed = seal(*_columns(handout))
        self._db.execute(sql.RENEW_HANDOUT, (holder, handout.lease_until, sealed, held.run_id, held.task_id))
        return handout

    def _read(self, row: tuple[Any, ...]) -> Handout:
        *columns, sealed = row
        if seal(*columns) != sealed:
            raise self._db.damaged(f"the step in hand of task {row[1]} of run {row[0]}")
        run_id, task_id, key, step, holder, handed_at, lease_until = columns
        return Handout(run_id, task_id, key, load(step), holder, handed_at, lease_until)


def _columns(handout: Handout) -> tuple[Any, ...]:
    head = (handout.run_id, handout.task_id, handout.key, dump(handout.step))
    return (*head, handout.holder, handout.handed_at, handout.lease_until)
