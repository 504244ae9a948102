"""Steps and their attempts: what has completed is never done again, what was in flight is, with the next number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sidecar.errors import StoreError
from sidecar.store import sql
from sidecar.store.sealed import dump, load, seal

if TYPE_CHECKING:
    from sidecar.store.db import Database

StepStatus = Literal["begun", "completed", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class Step:
    """One attempt at a step. `key` tells it from every other of the run: its id with the iterations around it."""

    run_id: str
    number: int  # in the order in which attempts were begun
    key: str
    attempt: int
    status: StepStatus
    began_at: float
    ended_at: float | None
    input: Any
    outcome: Any  # its result, or why it failed


class Steps:
    """Each call is a transaction, or a part of the one that is open. Durable unless told otherwise."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._begun: dict[tuple[str, str, int], tuple[Any, ...]] = {}  # rows of our own that are in flight

    def begin(self, run_id: str, key: str, value: object = None, *, durable: bool = True) -> int:
        """Before its effect: the step is in flight. Gives the attempt's number.

        An attempt that is still in flight belonged to an owner that died: it ends as interrupted, and if that owner
        should be alive after all, its result is refused.
        """
        text = dump(value)
        with self._db.transaction(durable=durable):
            return self._add(run_id, key, "begun", text, "null")

    def complete(self, run_id: str, key: str, attempt: int, result: object = None, *, durable: bool = True) -> None:
        """After its effect: done for ever."""
        with self._db.transaction(durable=durable):
            self._end_attempt(run_id, key, attempt, "completed", result)

    def fail(self, run_id: str, key: str, attempt: int, error: object, *, durable: bool = True) -> None:
        """This attempt is over; another may begin."""
        with self._db.transaction(durable=durable):
            self._end_attempt(run_id, key, attempt, "failed", error)

    def record(self, run_id: str, key: str, result: object = None, *, durable: bool = False) -> None:
        """A step without an effect outside, such as a condition: begun and completed in one row."""
        text = dump(result)
        with self._db.transaction(durable=durable):
            self._add(run_id, key, "completed", "null", text)

    def last(self, run_id: str, key: str) -> Step | None:
        """The latest attempt at it."""
        row = self._last(run_id, key)
        return _step(row) if row else None

    def steps(self, run_id: str) -> list[Step]:
        """Every attempt, in the order in which they were begun."""
        rows = self._db.rows(sql.STEPS, (run_id,))
        for expected, row in enumerate(rows, start=1):
            if row[1] != expected:
                raise self._db.damaged(f"step {expected} of run {run_id} is missing")
        return [_step(self._checked(row)) for row in rows]

    def completed(self, run_id: str) -> dict[str, Any]:
        """The result of every step that is done, by key."""
        return {step.key: step.outcome for step in self.steps(run_id) if step.status == "completed"}

    def _last(self, run_id: str, key: str) -> tuple[Any, ...] | None:
        rows = self._db.rows(sql.LAST_ATTEMPT, (run_id, key))
        return self._checked(rows[0]) if rows else None

    def _in_flight(self, run_id: str, key: str, attempt: int) -> tuple[Any, ...]:
        row = self._last(run_id, key)
        if row is None:
            raise StoreError(f"run {run_id}, step {key}: it was never begun", kind="missing")
        last, status = row[3:5]
        if (last, status) != (attempt, "begun"):
            message = f"run {run_id}, step {key}: attempt {attempt} is not in flight: attempt {last} is {status}"
            raise StoreError(message, kind="conflict")
        return row

    def _add(self, run_id: str, key: str, status: StepStatus, *texts: str) -> int:
        last = self._last(run_id, key)
        if last is not None and last[4] == "begun":
            self._end(last, "interrupted", None)
        attempt: int = last[3] + 1 if last else 1
        number = self._db.rows(sql.LAST_STEP, (run_id,))[0][0] + 1
        now = self._db.clock()
        columns = (run_id, number, key, attempt, status, now, None if status == "begun" else now, *texts)
        self._db.execute(sql.ADD_STEP, (*columns, seal(*columns)), f"run {run_id}, step {key}")
        if status == "begun":
            self._begun[run_id, key, attempt] = columns
        return attempt

    def _end_attempt(self, run_id: str, key: str, attempt: int, status: StepStatus, outcome: object) -> None:
        row = self._begun.pop((run_id, key, attempt), None)
        # Somebody who took us for dead may have ended it since: then nothing is changed, and the row says what it is.
        if row is None or not self._end(row, status, outcome):
            self._end(self._in_flight(run_id, key, attempt), status, outcome)

    def _end(self, row: tuple[Any, ...], status: StepStatus, outcome: object) -> bool:
        run_id, number, key, attempt, _, began_at, _, value, _ = row
        now, text = self._db.clock(), dump(outcome)
        sealed = seal(run_id, number, key, attempt, status, began_at, now, value, text)
        values = (status, now, text, sealed, run_id, number)
        return self._db.execute(sql.END_STEP, values, f"run {run_id}, step {key}") == 1

    def _checked(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        *columns, sealed = row
        if seal(*columns) != sealed:
            raise self._db.damaged(f"step {row[2]} of run {row[0]}")
        return tuple(columns)


def _step(columns: tuple[Any, ...]) -> Step:
    run_id, number, key, attempt, status, began_at, ended_at, value, outcome = columns
    return Step(run_id, number, key, attempt, status, began_at, ended_at, load(value), load(outcome))
