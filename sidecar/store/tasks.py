"""Tasks that somebody was asked to do: each is kept once it was taken on, tells what happens to it, and ends once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from sidecar.errors import StoreError
from sidecar.store import sql
from sidecar.store.sealed import dump, load, plain, seal

if TYPE_CHECKING:
    from collections.abc import Collection

    from sidecar.store.db import Database

TaskEnding = Literal["completed", "failed", "cancelled"]
TaskState = Literal["queued", "running"] | TaskEnding
# Kinds of events that tasks have by themselves; whoever does one adds others.
QUEUED = "queued"
STARTED = "started"  # again after a restart
ENDED = "ended"  # state


@dataclass(frozen=True, slots=True)
class StoredTask:
    """One task as it stands. `run_id` is what its content says: it goes when that run goes."""

    task_id: str
    kind: str
    run_id: str | None
    content: dict[str, Any]
    state: TaskState
    added_at: float
    ended_at: float | None
    outcome: Any  # its value, or why it failed

    @property
    def has_ended(self) -> bool:
        return self.ended_at is not None


@dataclass(frozen=True, slots=True)
class StoredTaskEvent:
    """One thing that happened to a task. `seq` has no gaps and begins with 1."""

    task_id: str
    seq: int
    at: float
    kind: str
    data: dict[str, Any]


class Tasks:
    """Each call is a transaction, or a part of the one that is open."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, task_id: str, kind: str, content: dict[str, Any]) -> StoredTask:
        """Keep it, durably. Where the id is known already, nothing changes: the task that stands is given."""
        kept = plain(content)
        run_id = kept.get("run_id")
        with self._db.transaction():
            if (known := self.find(task_id)) is not None:
                return known
            owner = run_id if isinstance(run_id, str) else None
            task = StoredTask(task_id, kind, owner, kept, "queued", self._db.clock(), None, None)
            columns = _columns(task)
            self._db.execute(sql.ADD_TASK, (*columns, seal(*columns)), f"task {task_id}")
            self._append(task_id, QUEUED, {})
        return task

    def begin(self, task_id: str) -> bool:
        """Somebody does it now; False where it has ended. Not durable: what has not ended is done again anyway."""
        with self._db.transaction(durable=False):
            task = self._get(task_id)
            if not task.has_ended:
                self._append(task_id, STARTED, {})
                self._change(replace(task, state="running"))
            return not task.has_ended

    def tell(self, task_id: str, kind: str, data: dict[str, Any]) -> None:
        """Something happened. Not durable by itself; refused when the task has ended."""
        with self._db.transaction(durable=False):
            self._append(task_id, kind, data)

    def end(self, task_id: str, state: TaskEnding, outcome: object = None) -> StoredTask:
        """It is over, durably. Of several ends the first stands: the task is given as it is now."""
        kept = plain(outcome)
        with self._db.transaction():
            task = self._get(task_id)
            if task.has_ended:
                return task
            self._append(task_id, ENDED, {"state": state})
            return self._change(replace(task, state=state, ended_at=self._db.clock(), outcome=kept))

    def find(self, task_id: str) -> StoredTask | None:
        """One task; None where nobody was asked to do it."""
        rows = self._db.rows(sql.TASK, (task_id,), f"task {task_id}")
        return self._read(rows[0]) if rows else None

    def not_ended(self, kinds: Collection[str]) -> list[StoredTask]:
        """Those of some kinds that are still to be done, in the order in which they came."""
        tasks = [self._read(row) for row in self._db.rows(sql.TASKS_NOT_ENDED)]
        return [task for task in tasks if task.kind in kinds]

    def events(self, task_id: str, after: int = 0) -> list[StoredTaskEvent]:
        """In order, those behind a sequence number."""
        rows = self._db.rows(sql.TASK_EVENTS, (task_id, after))
        for expected, (*columns, sealed) in enumerate(rows, start=after + 1):
            if columns[1] != expected or seal(*columns) != sealed:
                raise self._db.damaged(f"event {expected} of task {task_id}")
        return [StoredTaskEvent(task_id, seq, at, kind, load(data)) for _, seq, at, kind, data, _ in rows]

    def _get(self, task_id: str) -> StoredTask:
        if (task := self.find(task_id)) is None:
            raise StoreError(f"the journal knows no task {task_id}", kind="missing")
        return task

    def _append(self, task_id: str, kind: str, data: dict[str, Any]) -> None:
        last: int = self._db.rows(sql.LAST_TASK_EVENT, (task_id,))[0][0]
        columns = (task_id, last + 1, self._db.clock(), kind, dump(data))
        self._db.execute(sql.ADD_TASK_EVENT, (*columns, seal(*columns)), f"task {task_id}, {kind}")

    def _change(self, task: StoredTask) -> StoredTask:
        columns = _columns(task)
        values = (task.state, task.ended_at, columns[-1], seal(*columns), task.task_id)
        self._db.execute(sql.CHANGE_TASK, values, f"task {task.task_id}")
        return task

    def _read(self, row: tuple[Any, ...]) -> StoredTask:
        *columns, sealed = row
        if seal(*columns) != sealed:
            raise self._db.damaged(f"task {row[0]}")
        task_id, kind, run_id, content, state, added_at, ended_at, outcome = columns
        return StoredTask(task_id, kind, run_id, load(content), state, added_at, ended_at, load(outcome))


def _columns(task: StoredTask) -> tuple[Any, ...]:
    head = (task.task_id, task.kind, task.run_id, dump(task.content), task.state)
    return (*head, task.added_at, task.ended_at, dump(task.outcome))
