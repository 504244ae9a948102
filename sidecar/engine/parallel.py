"""The tasks of `parallel_foreach`: started while there is room, ended when nobody waits for them any more."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from sidecar.catalog import workflows
from sidecar.engine.boundary import Ending, RunEnds, iterations_exhausted
from sidecar.engine.cursor.actions import Finished, LimitReached, Parallel
from sidecar.engine.run import CLEANUP
from sidecar.engine.step import needs_agent, of_task
from sidecar.engine.steps.agent import run_task_agent
from sidecar.errors import StoreError, UnwrappedErrors
from sidecar.model import events as kinds
from sidecar.state.reactive import Write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from anyio.abc import TaskGroup

    from sidecar.catalog.workflows import Definition
    from sidecar.engine.boundary import Ending
    from sidecar.engine.cursor.moves import Cursor
    from sidecar.engine.cursor.position import Error, Scope
    from sidecar.engine.interpreter import Interpreter
    from sidecar.engine.run import Thread
    from sidecar.model.agent import EndReason
    from sidecar.model.events import Driver
    from sidecar.model.steps import ParallelForEach
    from sidecar.model.workflow import SubAgentTask


@dataclass(slots=True, eq=False)
class _Running:
    child: Thread
    step: ParallelForEach
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)  # cancelled: its step has failed or was left


class Batches:
    """Every batch of one run. A task is a thread of the run, and a task of the group in which the run executes."""

    def __init__(self, interpreter: Interpreter, ends: Callable[[Ending], None]) -> None:
        self._interpreter = interpreter
        self._image = interpreter.image
        self._ends = ends
        self.group: TaskGroup | None = None  # while tasks can run
        self._running: dict[str, _Running] = {}  # by thread
        self._changed = anyio.Event()
        self.tasks = TaskThreads(interpreter, self.stir)
        self.draining = False  # no further item is started: the run is about to stop or pause
        self.pause: Ending | None = None  # a task waits for a person: the others finish, then the run pauses
        self.exit: Ending | None = None  # a task ends the run, as `exit` does

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Tasks can run in here; those that still do at the end are cancelled."""
        with UnwrappedErrors():
            async with anyio.create_task_group() as group:
                self.group = group
                self._running, self.draining, self.pause, self.exit = {}, False, None, None
                try:
                    yield
                finally:
                    self.group = None
                    group.cancel_scope.cancel()

    # --- for the loop

    async def attend(self, thread: Thread, action: Parallel) -> None:
        """Until the cursor is past this batch. RunEnds at a stop, or before a pause, when what runs is over."""
        self.tasks.tell_begin(thread, action)
        while self._stands(thread, action.batch):
            self.begin(thread)
            if self.exit is not None and thread is self._image.main:
                raise RunEnds(self.exit)
            if not self._of(thread) and self._stands(thread, action.batch):
                if self.pause is not None:
                    raise RunEnds(self.pause)
                if self._held_back(thread):
                    raise self._interpreter.gate.stopped()
            await self._changed.wait()
        await self.settled(thread)

    async def settled(self, thread: Thread) -> None:
        """A step has failed when its tasks are ended."""
        while any(running.scope.cancel_called for running in self._of(thread)):
            await self._changed.wait()

    def begin(self, thread: Thread) -> None:
        """Start what there is room for, and end what belongs to nobody any more."""
        if not thread.cursor.state.batches and not thread.children:
            return
        for running in self._of(thread):
            assert running.child.place is not None
            if not running.scope.cancel_called and not self._wanted(thread, running.child.place):
                self._cancel(running, "sibling_failed")
        for action in open_batches(thread):
            if not (thread.handed and self.need_agents(thread, action)):
                self._begin_batch(thread, action)

    async def drained(self) -> None:
        """Start nothing more, and wait for what runs."""
        self.draining = True
        while self._running:
            await self._changed.wait()

    async def quiet(self) -> None:
        """Wait until nothing runs, and nothing is left that could."""
        while self._running:
            await self._changed.wait()

    def go_on(self) -> None:
        """A stop was taken back while what ran was waited for."""
        self.draining = False

    async def cancel(self, reason: EndReason) -> None:
        """End every task that runs, now."""
        self.draining = True
        for running in self._running.values():
            self._cancel(running, reason)
        await self.drained()

    def stir(self) -> None:
        """Something may be possible that was not."""
        self._changed.set()
        self._changed = anyio.Event()

    def sees_to(self, thread: Thread) -> bool:
        """Whether a task is under way here: what follows its last step is done when its agent has ended."""
        return thread.key in self._running

    def need_agents(self, thread: Thread, action: Parallel) -> bool:
        """Whether an agent outside has to see to these tasks."""
        return self.tasks.need_agent(thread, action, "agent")

    # --- inside

    def _begin_batch(self, thread: Thread, action: Parallel) -> None:
        assert self.group is not None
        mine = [each for each in self._of(thread) if each.child.place and each.child.place[0] == action.batch]
        room = action.max_parallel - len(mine)
        taken = {each.child.place[1] for each in mine if each.child.place}
        for index in action.todo:
            ends = self.pause or self.exit or (self.draining and thread.parent is None)
            if room <= 0 or (ends and not thread.spare):
                return
            if index in taken:
                continue
            if self._interpreter.gate.stop_requested() and action.stoppable:
                return
            with self._interpreter.outcomes.attempt(action.step) as tried:
                handed = self.tasks.need_agent(thread, action, "server")
                child = self.tasks.create(thread, action, index, handed=handed)
            if tried.error is not None:
                self.tasks.could_not_begin(thread, action, index, tried.error)
                # The batch is another one now. Not at once: whoever asked may be about to wait for what is told next.
                self.group.start_soon(self._guarded, self._begin_next, thread)
                return
            running = self._running[child.key] = _Running(child, action.step)
            self.group.start_soon(self._guarded, self._do_task, thread, running)
            room -= 1

    async def _guarded(self, do: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """A task of the group: what ends the run is told to the run, and whoever waits looks again."""
        try:
            await do(*arguments)
        except StoreError as lost:
            self._interpreter.processes.lost(lost)
        except RunEnds as ends:
            self._ends(ends.ending)
        self.stir()

    async def _begin_next(self, thread: Thread) -> None:
        self.begin(thread)

    async def _do_task(self, thread: Thread, running: _Running) -> None:
        """One task, from where it stands to its end. Its batch is not told of one that was cancelled."""
        child, error, over = running.child, None, False
        try:
            with running.scope:
                await anyio.lowlevel.checkpoint()  # one that is cancelled before its turn does not begin
                with self._interpreter.outcomes.attempt(running.step) as tried:
                    error = await self.tasks.steps(child)
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
                self._ends(ends.ending)
        finally:
            self._running.pop(child.key, None)
        if over and not running.scope.cancel_called:
            self.tasks.over(child, error)
            self.begin(thread)

    def _cancel(self, running: _Running, reason: EndReason) -> None:
        # The reason first: another reason may end its processes meanwhile, and the first counts.
        self._interpreter.processes.request_end(reason, running.child.key)
        running.scope.cancel()

    def _of(self, thread: Thread) -> list[_Running]:
        return [running for running in self._running.values() if running.child.parent is thread]

    def _wanted(self, thread: Thread, place: tuple[int, int]) -> bool:
        return any(action.batch == place[0] and place[1] in action.todo for action in open_batches(thread))

    def _held_back(self, thread: Thread) -> bool:
        action = thread.cursor.action
        return isinstance(action, Parallel) and action.stoppable and self._interpreter.gate.stop_requested()

    @staticmethod
    def _stands(thread: Thread, batch: int) -> bool:
        action = thread.cursor.action
        return isinstance(action, Parallel) and action.batch == batch


# One task of a `parallel_foreach`: it begins as a thread, is done here or by an agent of its own, and its batch hears
# what came of it.


class TaskThreads:
    """The tasks of one run, one by one; who does which of them when is not decided here."""

    def __init__(self, interpreter: Interpreter, stir: Callable[[], None]) -> None:
        self._interpreter = interpreter
        self._image = interpreter.image
        self._stir = stir  # a batch may go on that could not
        self._told: set[tuple[str, int]] = set()  # batches of threads whose beginning was told

    def tell_begin(self, thread: Thread, action: Parallel) -> None:
        """The step begins, once each time that the thread comes to it."""
        at = (thread.key, action.batch)
        if at not in self._told and stands_at(thread.cursor, action.batch):
            self._told.add(at)
            self._interpreter.outcomes.tasks_begin(thread, action.step)

    def create(self, thread: Thread, action: Parallel, index: int, *, handed: bool) -> Thread:
        """The thread of a task, as it was left where it was, else from its first step; journalled."""
        known = thread.children.get((action.batch, index))
        scope, names = self._scope(thread, action, index)
        task = self._image.task_of(scope.path, action)
        if known is not None and not known.told:  # else it failed, and its step is tried again
            began = known.cursor.transitions or known.cursor.iterations or known.cursor.is_over
            if began or known.names.keys() >= task.inputs.keys():  # else they could not be computed, and now may
                known.handed = handed
                return known
        names |= self._image.spaces[scope.path].view(names).value(task.inputs)
        child = self._started(thread, action, index, names)
        child.handed = handed
        return child

    def over(self, child: Thread, error: Error | None) -> None:
        """A task is over: its batch is told, its error kept where that is wanted."""
        parent, place = child.parent, child.place
        assert parent is not None
        assert place is not None
        before = parent.cursor
        batch = before.state.batches.get(place[0])
        again = self._image.end_task(child, error)
        wanted = batch.step.on_sub_agent_error if batch else None
        if error is not None and not again and batch and wanted and wanted.collect_errors and wanted.error_state_path:
            self._collect(child, batch.step, wanted.error_state_path, error)
        self._interpreter.ledger.note(
            kinds.TASK_ENDED,
            thread=child.key,
            task=child.task_id,
            step=batch.step.id if batch else "",
            error=error,
            will_retry=again,
        )
        if batch is not None and stands_at(before, place[0]) and not stands_at(parent.cursor, place[0]):
            failed = error is not None and batch.step.on_sub_agent_error.strategy != "continue"
            named = {**(error or {}), "task": child.task_id} if failed else None
            self._interpreter.outcomes.tasks_over(parent, batch.step, before, named)
            self._told.discard((parent.key, place[0]))
        self._interpreter.ledger.commit(durable=True)
        self._stir()

    async def finish(self, child: Thread) -> Error | None:
        """What a thread that is over comes to; its clean-up steps are done."""
        action = child.cursor.action
        if isinstance(action, LimitReached):
            raise RunEnds(iterations_exhausted(action))
        assert isinstance(action, Finished)
        if child.exited:
            error = action.error or {"message": action.message}
            raise RunEnds(Ending(action.status, action.message, error=error if action.status == "failed" else None))
        if action.status == "completed":
            return None
        error = action.error or {"message": action.message}
        child.error = error
        await self._interpreter.failed_parts(child)
        return await self.clean_up(child, error)

    async def clean_up(self, child: Thread, error: Error) -> Error | None:
        """The steps for a task that failed; the error as its batch is to hear of it."""
        handling = self.definition_of(child).error_handling
        names = {**child.names, "error": error}
        await self._interpreter.see_to(child, CLEANUP, child.path, names)
        return error if handling.return_on_error else None

    def could_not_begin(self, thread: Thread, action: Parallel, index: int, error: Error) -> None:
        """The task's inputs cannot be computed."""
        self.over(self._started(thread, action, index, self._scope(thread, action, index)[1]), error)

    @staticmethod
    def _scope(thread: Thread, action: Parallel, index: int) -> tuple[Scope, dict[str, Any]]:
        """Where a task is, and what it sees besides its inputs."""
        scope = thread.scope(action.scope)
        return scope, {**scope.names, "item": action.items[index], "index": index}

    def _started(self, thread: Thread, action: Parallel, index: int, names: dict[str, Any]) -> Thread:
        child = self._image.start_task(thread, action, index, names)
        told = {"thread": thread.key, "task": child.task_id, "step": action.step.id, "batch": action.batch}
        self._interpreter.ledger.note(kinds.TASK_STARTED, **told, index=index, names=names)
        return child

    async def steps(self, child: Thread) -> Error | None:
        """Do a task from where it stands to its end; its error, where it failed."""
        if not child.handed or child.cursor.is_over:
            await self._interpreter.walk(child)
            return await self.finish(child)
        return await self._by_an_agent(child)

    async def _by_an_agent(self, child: Thread) -> Error | None:
        """An agent of its own asks for the task's steps and does them."""
        interpreter, parent = self._interpreter, child.parent
        assert parent is not None
        assert child.place is not None
        step = parent.cursor.state.batches[child.place[0]].step
        work = interpreter.work
        while True:
            interpreter.gate.check_limits()
            work.give_feedback(child.key)
            with work.redirectable(child.key) as scope, interpreter.outcomes.attempt(step) as tried:
                taken = await run_task_agent(
                    work.task_context(child),
                    agent_name=step.agent,
                    prompt_override=step.sub_agent_prompt_override,
                    task_id=child.task_id or "",
                    description=self.definition_of(child).description,
                )
            if tried.error is not None:
                return await self.clean_up(child, tried.error)
            work.keep_gate(child.key)
            if not scope.cancelled_caught:
                break
        failure = taken.failure
        async with child.lock:
            action = await interpreter.walk(child)  # what follows the last step that it did
            if child.cursor.is_over:
                return await self.finish(child)
        waits = f"step {action.step.id!r}" if hasattr(action, "step") else "its steps"
        message = f"the sub-agent of task {child.task_id} ended before {waits} was done"
        return await self.clean_up(child, {"message": f"{message}: {failure}" if failure else message, "step": step.id})

    def _collect(self, child: Thread, step: ParallelForEach, path: str, error: Error) -> None:
        space, outcomes = self._image.spaces[child.path], self._interpreter.outcomes
        kept = {**error, "task": child.task_id}
        with outcomes.attempt(step) as tried:
            write = Write(space.view(child.names).path(path), kept, "append")
            outcomes.write(space, child.path, [write])
        if tried.error is not None:
            text = f"the error of task {child.task_id} is not in the state: {tried.error['message']}"
            outcomes.ledger.note(kinds.WARNING, text=text)

    def definition_of(self, child: Thread) -> SubAgentTask:
        """What a task is."""
        parent, place = child.parent, child.place
        assert parent is not None
        assert place is not None
        step = parent.cursor.state.batches[place[0]].step
        return self._image.spaces[child.path].definition.tasks[step.sub_agent_task]

    def need_agent(self, thread: Thread, action: Parallel, driver: Driver) -> bool:
        """Whether some step of these tasks is for an agent."""
        definition = self._image.spaces[thread.space(action.scope.path)].definition
        task = definition.tasks[action.step.sub_agent_task]

        def includes(includer: Definition | None, name: str) -> Definition:
            return workflows.included(self._interpreter.work.around.root, includer or definition, name)

        return needs_agent(of_task(task), definition.tasks, includes, driver)


def stands_at(cursor: Cursor, batch: int) -> bool:
    """Whether the current step is the one that has this batch; not so where only the run's end waits for it."""
    state = cursor.state
    if state.ending is not None or state.failure is not None or not state.frames:
        return False
    return state.top.phase == "parallel" and state.top.batch == batch


def open_batches(thread: Thread) -> list[Parallel]:
    """The batches whose tasks are wanted: the one that the thread waits for, and those behind it."""
    action = thread.cursor.action
    found = [action] if isinstance(action, Parallel) else []
    return found + [one for one in thread.cursor.background if not found or one.batch != found[0].batch]
