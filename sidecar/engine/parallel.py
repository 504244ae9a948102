"""The tasks of `parallel_foreach`: started while there is room, ended when nobody waits for them any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.engine.dispatch import Task
from sidecar.engine.ending import RunEnds
from sidecar.engine.program.actions import Parallel
from sidecar.engine.task_threads import TaskThreads, open_batches
from sidecar.errors import StepFailed, StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup

    from sidecar.engine.dispatch import Dispatch, Result
    from sidecar.engine.ending import Ending
    from sidecar.engine.interpreter import Interpreter
    from sidecar.engine.program.actions import Error
    from sidecar.engine.threads import Thread
    from sidecar.model.agent import EndReason
    from sidecar.model.steps_control import ParallelForEach

KIND = "task"


@dataclass(slots=True, eq=False)
class _Running:
    child: Thread
    step: ParallelForEach
    dispatched: str = ""
    unwanted: bool = False  # its step has failed or was left


class Batches:
    """Every batch of one run. A task is a thread of the run; who does it is the dispatch's affair."""

    def __init__(
        self, interpreter: Interpreter, dispatch: Dispatch, group: TaskGroup, ends: Callable[[Ending], None]
    ) -> None:
        self._interpreter = interpreter
        self._image = interpreter.image
        self._dispatch = dispatch
        self._group = group
        self._ends = ends
        self._running: dict[str, _Running] = {}  # by thread
        self._changed = anyio.Event()
        self.tasks = TaskThreads(interpreter, self.stir)
        self.draining = False  # no further item is started: the run is about to stop or pause
        self.pause: Ending | None = None  # a task waits for a person: the others finish, then the run pauses
        self.exit: Ending | None = None  # a task ends the run, as `exit` does

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
        while any(running.unwanted for running in self._of(thread)):
            await self._changed.wait()

    def begin(self, thread: Thread) -> None:
        """Start what there is room for, and end what belongs to nobody any more."""
        if not thread.cursor.state.batches and not thread.children:
            return
        for running in self._of(thread):
            assert running.child.place is not None
            if not running.unwanted and not self._wanted(thread, running.child.place):
                running.unwanted = True
                # The reason first: whoever else ends them meanwhile has another, and the first counts.
                self._interpreter.processes.request_end("sibling_failed", running.child.key)
                self._group.start_soon(self._end, running)
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
        for running in list(self._running.values()):
            running.unwanted = True
            self._interpreter.processes.request_end(reason, running.child.key)
            if running.dispatched:
                await self._dispatch.cancel(running.dispatched)
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

    # --- tasks

    async def do(self, task: Task, _tell: Callable[[str, dict[str, Any]], None]) -> None:
        """The doer of the local dispatch: one task, from where it stands to its end."""
        running = self._running[task.content["thread"]]
        error: Error | None = None
        try:
            with self._interpreter.outcomes.attempt(running.step) as tried:
                error = await self.tasks.steps(running.child)
            error = tried.error or error
        except RunEnds as ends:
            if ends.ending.status == "paused":
                self.pause = self.pause or ends.ending
            elif running.child.exited:
                self.exit = self.exit or ends.ending
            else:
                self._ends(ends.ending)
            self._running.pop(running.child.key, None)
            self.stir()
            await anyio.sleep_forever()  # its dispatch ends with the run; the task is done when that goes on
        except StoreError as lost:
            self._interpreter.processes.lost(lost)
            await anyio.sleep_forever()
        if error is not None:
            raise StepFailed(str(error.get("message", "")), **{k: v for k, v in error.items() if k != "message"})

    # --- inside

    def _begin_batch(self, thread: Thread, action: Parallel) -> None:
        mine = [each for each in self._of(thread) if each.child.place and each.child.place[0] == action.batch]
        room = action.max_parallel - len(mine)
        taken = {each.child.place[1] for each in mine if each.child.place}
        for index in action.todo:
            ends = self.pause or self.exit or (self.draining and thread.parent is None)
            if room <= 0 or (ends and not thread.spare):
                return
            if index in taken:
                continue
            if self._interpreter.gate.stop_asked() and action.stoppable:
                return
            with self._interpreter.outcomes.attempt(action.step) as tried:
                handed = self.tasks.need_agent(thread, action, "server")
                child = self.tasks.create(thread, action, index, handed=handed)
            if tried.error is not None:
                self.tasks.could_not_begin(thread, action, index, tried.error)
                # The batch is another one now. Not at once: whoever asked may be about to wait for what is told next.
                self._group.start_soon(self._guarded, self._begin_next, thread)
                return
            running = self._running[child.key] = _Running(child, action.step)
            self._group.start_soon(self._guarded, self._have_done, thread, action, running)
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

    async def _have_done(self, thread: Thread, action: Parallel, running: _Running) -> None:
        child = running.child
        try:
            result = await self._dispatched(action, running)
        finally:
            self._running.pop(child.key, None)
        if result.state != "cancelled":
            self.tasks.over(child, result.error)
            self.begin(thread)

    async def _dispatched(self, action: Parallel, running: _Running) -> Result:
        """Have it done by whoever does tasks."""
        child = running.child
        content = {"run_id": self._interpreter.ledger.run_id, "thread": child.key, "step": action.step.id}
        number = 1
        while True:
            running.dispatched = f"{content['run_id']}/{child.key}" + (f"+{number}" if number > 1 else "")
            state = await self._dispatch.submit(Task(running.dispatched, KIND, content))
            if state in ("cancelled", "failed"):  # before a resume: this is another try
                number += 1
                continue
            return await self._dispatch.result(running.dispatched)

    async def _end(self, running: _Running) -> None:
        """Its siblings do not need it any more: a task has failed."""
        if running.dispatched:
            await self._dispatch.cancel(running.dispatched)

    def _of(self, thread: Thread) -> list[_Running]:
        return [running for running in self._running.values() if running.child.parent is thread]

    def _wanted(self, thread: Thread, place: tuple[int, int]) -> bool:
        return any(action.batch == place[0] and place[1] in action.todo for action in open_batches(thread))

    def _held_back(self, thread: Thread) -> bool:
        action = thread.cursor.action
        return isinstance(action, Parallel) and action.stoppable and self._interpreter.gate.stop_asked()

    @staticmethod
    def _stands(thread: Thread, batch: int) -> bool:
        action = thread.cursor.action
        return isinstance(action, Parallel) and action.batch == batch
