"""Schedules the tasks of `parallel_foreach`: starts them while there is room, and ends those whose step has failed.

A batch is one execution of a `parallel_foreach`. Each of its tasks is a thread of the run, and a task of the group in
which the run executes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from sidecar.catalog import workflows
from sidecar.catalog.workflows import Definition
from sidecar.engine.boundary import Ending, RunEnds
from sidecar.engine.cursor.actions import Parallel
from sidecar.engine.cursor.moves import Cursor
from sidecar.engine.cursor.position import Error
from sidecar.engine.run import Thread
from sidecar.engine.step import StepRunner, needs_agent, of_task
from sidecar.errors import StoreError, UnwrappedErrors
from sidecar.model import events as kinds
from sidecar.model.agent import EndReason
from sidecar.model.events import Driver
from sidecar.model.steps import ParallelForEach
from sidecar.state.reactive import Write


@dataclass(slots=True, eq=False)
class _Running:
    child: Thread
    step: ParallelForEach
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)  # cancelled: its step has failed or was left


class Batches:
    """All batches of one run."""

    def __init__(
        self,
        steps: StepRunner,
        run_task: Callable[[Thread], Awaitable[Error | None]],
        end_run: Callable[[Ending], None],
    ) -> None:
        """`run_task` runs a task to its end; its error. `end_run`: for a task that ends the run."""
        self._run = steps.run
        self._steps = steps
        self._ledger = steps.ledger
        self._run_task = run_task
        self._end_run = end_run
        self._reset()

    def _reset(self) -> None:
        self.group: TaskGroup | None = None  # while tasks can run
        self._running: dict[str, _Running] = {}  # by thread
        self._begun: set[tuple[str, int]] = set()  # threads and batches whose beginning is journalled
        self._changed = anyio.Event()
        self.draining = False  # no further task is started: the run is about to stop or pause
        self.pause: Ending | None = None  # a task waits for a person: the others finish, then the run pauses
        self.exit: Ending | None = None  # a task ends the run, as `exit` does

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Tasks can run in here; those that still do at the end are cancelled."""
        self._reset()
        with UnwrappedErrors():
            async with anyio.create_task_group() as group:
                self.group = group
                try:
                    yield
                finally:
                    self.group = None
                    group.cancel_scope.cancel()

    # --- for the thread that stands at a batch

    async def run_tasks(self, thread: Thread, action: Parallel) -> None:
        """Until the cursor is past this batch. RunEnds at a stop or a pause, when what runs is over."""
        self.record_begin(thread, action)
        while _waits_for(thread, action.batch):
            self.start_tasks(thread)
            if self.exit is not None and thread is self._run.main:
                raise RunEnds(self.exit)
            if not self._of(thread) and _waits_for(thread, action.batch):
                if self.pause is not None:
                    raise RunEnds(self.pause)
                current = thread.cursor.action
                if isinstance(current, Parallel) and current.stoppable and self._steps.guard.stop_requested():
                    raise self._steps.guard.stopped()
            await self._changed.wait()
        await self.cancelled_over(thread)

    def record_begin(self, thread: Thread, action: Parallel) -> None:
        """Journal the beginning of the step, once each time that the thread comes to it."""
        at = (thread.key, action.batch)
        if at not in self._begun and stands_at(thread.cursor, action.batch):
            self._begun.add(at)
            self._steps.begin_tasks(thread, action.step)

    def start_tasks(self, thread: Thread) -> None:
        """Start the tasks of a thread that there is room for, and cancel those that are not wanted any more."""
        batches = open_batches(thread)
        wanted = {(action.batch, index) for action in batches for index in action.todo}
        for running in self._of(thread):
            if not running.scope.cancel_called and running.child.place not in wanted:
                self._cancel(running, "sibling_failed")
        for action in batches:
            if not (thread.handed_out and self.need_agent(thread, action, "agent")):
                self._start_batch(thread, action)

    async def cancelled_over(self, thread: Thread) -> None:
        """Wait for the tasks of a thread that were cancelled: their step has failed when they have ended."""
        while any(running.scope.cancel_called for running in self._of(thread)):
            await self._changed.wait()

    def need_agent(self, thread: Thread, action: Parallel, driver: Driver) -> bool:
        """Whether some step of these tasks is for an agent."""
        definition = self._run.states[thread.state_path(action.scope.path)].definition
        task = definition.tasks[action.step.sub_agent_task]

        def includes(includer: Definition | None, name: str) -> Definition:
            return workflows.included(self._steps.services.root, includer or definition, name)

        return needs_agent(of_task(task), definition.tasks, includes, driver)

    # --- for the end of a run

    async def drained(self) -> None:
        """Start nothing more, and wait for what runs."""
        self.draining = True
        await self.quiet()

    async def quiet(self) -> None:
        """Wait until no task runs."""
        while self._running:
            await self._changed.wait()

    async def cancel(self, reason: EndReason) -> None:
        """End every task that runs, now."""
        for running in self._running.values():
            self._cancel(running, reason)
        await self.drained()

    def wake(self) -> None:
        """Have all who wait look again: something may be possible that was not."""
        self._changed.set()
        self._changed = anyio.Event()

    def is_running(self, thread: Thread) -> bool:
        """Whether a task runs here: what follows its last step is done when its agent has ended."""
        return thread.key in self._running

    # --- one task

    def create(self, thread: Thread, action: Parallel, index: int, *, handed_out: bool) -> Thread:
        """The thread of a task: the one it has where it was interrupted, else a new one, which is journalled."""
        known = thread.children.get((action.batch, index))
        state = self._run.states[thread.state_path(action.scope.path)]
        task = state.definition.tasks[action.step.sub_agent_task]
        if known is not None and not known.reported:  # else it failed, and its step is tried again
            began = known.cursor.state.transitions or known.cursor.state.iterations or known.cursor.is_over
            if began or known.names.keys() >= task.inputs.keys():  # else they could not be computed, and now may
                known.handed_out = handed_out
                return known
        names = self._names(thread, action, index)
        child = self._started(thread, action, index, names | state.view(names).value(task.inputs))
        child.handed_out = handed_out
        return child

    def end_task(self, child: Thread, error: Error | None) -> None:
        """End a task, completed or failed: in its batch, in the journal, and in the state where errors are collected
        there."""
        parent, place = child.parent, child.place
        assert parent is not None
        assert place is not None
        before = parent.cursor
        batch = before.state.batches.get(place[0])
        again = self._run.end_task(child, error)
        if error is not None and not again and batch is not None:
            self._collect(child, batch.step, error)
        data = {"step": batch.step.id if batch else "", "error": error, "will_retry": again}
        self._ledger.record(kinds.TASK_ENDED, thread=child.key, task=child.task_id, **data)
        if batch is not None and stands_at(before, place[0]) and not stands_at(parent.cursor, place[0]):
            failed = error is not None and batch.step.on_sub_agent_error.strategy != "continue"
            step_error = {**(error or {}), "task": child.task_id} if failed else None
            self._steps.end_tasks(parent, batch.step, before.state, step_error)
            self._begun.discard((parent.key, place[0]))
        self._ledger.commit(durable=True)
        self.wake()

    # --- inside

    def _start_batch(self, thread: Thread, action: Parallel) -> None:
        assert self.group is not None
        mine = {each.child.place for each in self._of(thread)}
        taken = {index for index in range(len(action.items)) if (action.batch, index) in mine}
        room = action.max_parallel - len(taken)
        for index in action.todo:
            ends = self.pause or self.exit or (self.draining and thread.parent is None)
            if room <= 0 or (ends and not thread.is_failure_thread):
                return
            if index in taken:
                continue
            if self._steps.guard.stop_requested() and action.stoppable:
                return
            with self._steps.attempt(action.step) as tried:
                handed_out = self.need_agent(thread, action, "server")
                child = self.create(thread, action, index, handed_out=handed_out)
            if tried.error is not None:  # its inputs cannot be computed
                names = self._names(thread, action, index)
                self.end_task(self._started(thread, action, index, names), tried.error)
                # The batch is another one now. Not at once: the caller may be about to wait for the next change.
                self.group.start_soon(self._guarded, self._start_next, thread)
                return
            running = self._running[child.key] = _Running(child, action.step)
            self.group.start_soon(self._guarded, self._execute, thread, running)
            room -= 1

    async def _guarded(self, do: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """A task of the group: what ends the run is passed on, not raised in the group; then all waiters look again."""
        try:
            await do(*arguments)
        except StoreError as lost:
            self._steps.processes.lost(lost)
        except RunEnds as ends:
            self._end_run(ends.ending)
        self.wake()

    async def _start_next(self, thread: Thread) -> None:
        self.start_tasks(thread)

    async def _execute(self, thread: Thread, running: _Running) -> None:
        """One task, from where it stands to its end. One that was cancelled is not reported to its batch."""
        child, error, over = running.child, None, False
        try:
            with running.scope:
                await anyio.lowlevel.checkpoint()  # one that is cancelled before its turn does not begin
                with self._steps.attempt(running.step) as tried:
                    error = await self._run_task(child)
                error = tried.error or error
                if error is not None:
                    # What fails while the run is being ended may have failed by that: a resume does it again.
                    await anyio.lowlevel.checkpoint()
                over = True
        except RunEnds as ends:
            if ends.ending.status == "paused":
                self.pause = self.pause or ends.ending
            elif child.exited:
                self.exit = self.exit or ends.ending
            else:
                self._end_run(ends.ending)
        finally:
            self._running.pop(child.key, None)
        if over and not running.scope.cancel_called:
            self.end_task(child, error)
            self.start_tasks(thread)

    def _cancel(self, running: _Running, reason: EndReason) -> None:
        # The reason first: another reason may end its processes meanwhile, and the first counts.
        self._steps.processes.request_end(reason, running.child.key)
        running.scope.cancel()

    def _of(self, thread: Thread) -> list[_Running]:
        return [running for running in self._running.values() if running.child.parent is thread]

    def _names(self, thread: Thread, action: Parallel, index: int) -> dict[str, Any]:
        """What a task sees besides its inputs."""
        return {**self._run.place(thread, action.scope).view.names, "item": action.items[index], "index": index}

    def _started(self, thread: Thread, action: Parallel, index: int, names: dict[str, Any]) -> Thread:
        child = self._run.start_task(thread, action, index, names)
        data = {"thread": thread.key, "task": child.task_id, "step": action.step.id, "batch": action.batch}
        self._ledger.record(kinds.TASK_STARTED, **data, index=index, names=names)
        return child

    def _collect(self, child: Thread, step: ParallelForEach, error: Error) -> None:
        """Append the error of a task to the state, where its step says so."""
        handling = step.on_sub_agent_error
        if not (handling.collect_errors and handling.error_state_path):
            return
        state = self._run.states[child.path]
        with self._steps.attempt(step) as tried:
            path = state.view(child.names).path(handling.error_state_path)
            self._steps.write(child.path, state, [Write(path, {**error, "task": child.task_id}, "append")])
        if tried.error is not None:
            text = f"the error of task {child.task_id} is not in the state: {tried.error['message']}"
            self._ledger.record(kinds.WARNING, text=text)


def stands_at(cursor: Cursor, batch: int) -> bool:
    """Whether the current step is the one that has this batch; not so where only the run's end waits for it."""
    state = cursor.state
    if state.ending is not None or state.failure is not None or not state.frames:
        return False
    return state.frames[-1].phase == "parallel" and state.frames[-1].batch == batch


def _waits_for(thread: Thread, batch: int) -> bool:
    action = thread.cursor.action
    return isinstance(action, Parallel) and action.batch == batch


def open_batches(thread: Thread) -> list[Parallel]:
    """The batches whose tasks are wanted: the one that the thread waits for, and those behind it."""
    action = thread.cursor.action
    found = [action] if isinstance(action, Parallel) else []
    return found + [one for one in thread.cursor.background if not found or one.batch != found[0].batch]
