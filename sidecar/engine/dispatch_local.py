"""Tasks done by this very process: kept in the journal, done in one task group, done again after a restart.

    async with LocalDispatch(database, {"greet": greet}, limit=3) as dispatch:
        await dispatch.submit(Task("T", "greet", {"name": "Ada"}))
        result = await dispatch.result("T")

Whoever leaves it ends what still runs. Those tasks are not over: they are done again when they are submitted again, or
by `recover`. The journal does not say who does a task, so the same one must not be taken up by two processes at once:
whoever submits or recovers holds the lock that goes with it, of its run or of its project.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.lowlevel

from sidecar.engine.dispatch import Result, Task, TaskEvent
from sidecar.errors import NotFound, StepFailed, StoreError
from sidecar.store.sealed import plain
from sidecar.store.tasks import Tasks
from sidecar.store.waiting import when_free

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
    from types import TracebackType

    from anyio.abc import TaskGroup

    from sidecar.engine.dispatch import State
    from sidecar.store.db import Database
    from sidecar.store.tasks import StoredTask, TaskEnding

    Tell = Callable[[str, dict[str, Any]], None]
    # Gives the task's value, as JSON has it. Cancelled: everything that it started is ended first.
    Doer = Callable[[Task, Tell], Awaitable[Any]]
    Ending = tuple[TaskEnding, Any]
    Written = TypeVar("Written")


@dataclass(slots=True)
class _Doing:
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    cancelled: bool = False  # by `cancel`, not because everything is ended


class LocalDispatch:
    """The port's default. A doer is given what the journal kept, the first time as well as after a restart.

    `limit` holds for tasks of all kinds together, so a task that waits for another one needs room for both.
    """

    def __init__(self, database: Database, doers: Mapping[str, Doer], *, limit: int | None = None) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"with room for {limit} tasks none would ever be done")
        self._database = database
        self._tasks = Tasks(database)
        self._doers = doers
        self._limit = limit
        self._waiting: dict[str, Task] = {}  # in the order in which they came
        self._running: dict[str, _Doing] = {}
        # Made by those who wait for a task, taken away by whoever sets them.
        self._ends: dict[str, anyio.Event] = {}
        self._news: dict[str, anyio.Event] = {}
        self._closed: StoreError | None = None
        self._broken: StoreError | None = None
        self._group: TaskGroup

    async def __aenter__(self) -> LocalDispatch:
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(StoreError("no more tasks are done here; those that are left are kept", kind="closed"))
        # Only a cancellation, since the group has to know whose it is: it would wrap any other error into a group.
        cancelled = isinstance(error, anyio.get_cancelled_exc_class())
        told = (kind, error, trace) if cancelled else (None, None, None)
        ours = await self._group.__aexit__(*told) and cancelled
        if self._broken is not None and (error is None or ours):
            raise self._broken
        assert not ours, "nothing but a broken journal ends it from inside"

    async def submit(self, task: Task) -> State:
        """Have it done. Kept when this returns. The same id again changes nothing, and says how far it is."""
        await anyio.lowlevel.checkpoint()  # before anything is done, so that a cancelled `submit` did nothing
        if self._closed is not None:
            raise self._closed
        if task.kind not in self._doers:
            known = ", ".join(sorted(self._doers)) or "none"
            raise NotFound(f"nobody here does tasks of kind {task.kind!r}; known kinds: {known}")
        stored = await self._write(lambda: self._tasks.add(task.id, task.kind, task.content))
        if self._closed is not None:
            raise self._closed
        if stored.has_ended:
            return stored.state
        if task.id in self._running:
            return "running"
        self._take_on(stored)
        return "queued"

    async def result(self, task_id: str) -> Result:
        """Wait for the end; at once where it has ended, also before a restart. NotFound: nobody submitted it.

        A task that nobody has taken up since a restart is waited for: it is to be submitted again or recovered.
        """
        await anyio.lowlevel.checkpoint()
        while not (stored := self._get(task_id)).has_ended:
            await self._wait(self._ends, task_id)
        return _result(stored)

    async def cancel(self, task_id: str) -> bool:
        """End it, queued or running, and return when it is over; False where it already was.

        True means that its result is `cancelled`, even if it came to its end meanwhile.
        """
        await anyio.lowlevel.checkpoint()
        if self._get(task_id).has_ended:
            return False
        if task_id not in self._running:  # queued, or left over from before a restart
            self._waiting.pop(task_id, None)
            await self._end(task_id, ("cancelled", None))
        else:
            self._running[task_id].cancelled = True
            self._running[task_id].scope.cancel()
        return (await self.result(task_id)).state == "cancelled"

    async def events(self, task_id: str, after: int = 0) -> AsyncIterator[TaskEvent]:
        """In order, those behind a sequence number, until its end. What a doer tells comes between our own kinds."""
        while True:
            await anyio.lowlevel.checkpoint()
            # First the task, then its events: if it had ended by then, all of them are there.
            ended = self._get(task_id).has_ended
            found = self._tasks.events(task_id, after)
            for event in found:
                yield TaskEvent(event.task_id, event.seq, event.at, event.kind, event.data)
                after = event.seq
            if ended:
                return
            if not found:
                await self._wait(self._news, task_id)

    def recover(self, kinds: Collection[str]) -> list[str]:
        """Take up what was left unfinished, in the order in which it was submitted; the ids of those tasks."""
        if self._closed is not None:
            raise self._closed
        left = [task for task in self._tasks.not_ended(kinds) if task.kind in self._doers]
        left = [task for task in left if task.task_id not in self._running and task.task_id not in self._waiting]
        for task in left:
            self._take_on(task)
        return [task.task_id for task in left]

    def _take_on(self, stored: StoredTask) -> None:
        self._waiting.setdefault(stored.task_id, Task(stored.task_id, stored.kind, stored.content))
        self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and self._closed is None and (self._limit is None or len(self._running) < self._limit):
            task = self._waiting.pop(next(iter(self._waiting)))
            self._running[task.id] = _Doing()
            self._group.start_soon(self._do, task, name=f"task {task.id}")

    async def _do(self, task: Task) -> None:
        doing = self._running[task.id]
        ending: Ending | None = None
        try:
            with doing.scope:
                # A task that is cancelled before its turn, or when all of us are, does not even begin.
                await anyio.lowlevel.checkpoint()
                if await self._write(lambda: self._tasks.begin(task.id), durable=False):
                    self._wake(self._news, task.id)
                    ending = await self._outcome(task)
                else:  # another process has cancelled it; its end stands, and ours only wakes those who wait
                    ending = ("cancelled", None)
        except StoreError as error:  # of ours: those of a doer are its outcome
            self._break(error)
            return
        finally:
            if doing.cancelled:
                ending = ("cancelled", None)
            # What failed while everything is being ended may have failed by that: it is done again.
            try:
                if ending is not None and not (ending[0] == "failed" and _is_cancelled()):
                    await self._end(task.id, ending)
            finally:
                del self._running[task.id]
                self._start_waiting()

    async def _outcome(self, task: Task) -> Ending:
        def tell(kind: str, data: dict[str, Any]) -> None:
            self._tasks.tell(task.id, kind, data)
            self._wake(self._news, task.id)

        try:
            return "completed", await self._doers[task.kind](task, tell)
        except Exception as error:
            return "failed", _error(error)
        except anyio.get_cancelled_exc_class():
            if _is_cancelled():
                raise
            # Nobody here asked for it. Passed on, it would end all of us and leave those who wait without an answer.
            return "failed", {"message": "it was cancelled from outside"}

    async def _end(self, task_id: str, ending: Ending) -> None:
        try:
            try:
                await self._write(lambda: self._tasks.end(task_id, *ending))
            except StoreError as error:
                if error.kind != "value":
                    raise
                told = {"message": f"its result cannot be kept: {error}"}
                await self._write(lambda: self._tasks.end(task_id, "failed", told))
        except StoreError as error:
            self._break(error)
            return
        self._wake(self._ends, task_id)
        self._wake(self._news, task_id)

    async def _write(self, act: Callable[[], Written], *, durable: bool = True) -> Written:
        """In its turn, however long another process has the journal locked: only who is cancelled does not wait."""
        return await when_free(self._database, act, durable=durable, at_most_s=math.inf)

    def _break(self, error: StoreError) -> None:
        """What was done cannot be kept, so nothing more is done: whoever waits hears of it, and so does our owner."""
        if self._broken is None:
            self._broken = error
        self._close(error)

    def _close(self, why: StoreError) -> None:
        if self._closed is None:
            self._closed = why
        self._group.cancel_scope.cancel()
        for waited in (self._ends, self._news):
            for task_id in list(waited):
                self._wake(waited, task_id)

    def _get(self, task_id: str) -> StoredTask:
        if (stored := self._tasks.find(task_id)) is None:
            raise NotFound(f"nobody has submitted a task {task_id!r}")
        return stored

    async def _wait(self, waited: dict[str, anyio.Event], task_id: str) -> None:
        if self._closed is not None:
            raise self._closed
        await waited.setdefault(task_id, anyio.Event()).wait()

    @staticmethod
    def _wake(waited: dict[str, anyio.Event], task_id: str) -> None:
        if (event := waited.pop(task_id, None)) is not None:
            event.set()


def _is_cancelled() -> bool:
    """Whether the scope we are in, or one around it, was cancelled."""
    return anyio.current_effective_deadline() == -math.inf


def _result(stored: StoredTask) -> Result:
    if stored.state == "failed":
        return Result(stored.task_id, "failed", error=stored.outcome)
    assert stored.state in ("completed", "cancelled")
    return Result(stored.task_id, stored.state, stored.outcome)


def _error(error: Exception) -> dict[str, Any]:
    """What `error` is in expressions: a message, and what else is known of it and is JSON."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if not isinstance(error, StepFailed):
        return {"message": str(error) or type(error).__name__, "type": type(error).__name__}
    return {name: plain(value) for name, value in error.error.items() if _is_json(value)}


def _is_json(value: object) -> bool:
    try:
        plain(value)
    except StoreError:
        return False
    return True
