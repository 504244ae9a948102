"""The tasks of `parallel_foreach`: started while there is room, ended when nobody waits for them any more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from sidecar.engine.ending import RunEnds
from sidecar.engine.program.actions import Parallel
from sidecar.engine.task_threads import TaskThreads, open_batches
from sidecar.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup

    from sidecar.engine.ending import Ending
    from sidecar.engine.interpreter import Interpreter
    from sidecar.engine.threads import Thread
    from sidecar.model.agent import EndReason
    from sidecar.model.steps_control import ParallelForEach


@dataclass(slots=True, eq=False)
class _Running:
    child: Thread
    step: ParallelForEach
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)  # cancelled: its step has failed or was left


class Batches:
    """Every batch of one run. A task is a thread of the run, and a task of the group in which the run executes."""

    def __init__(self, interpreter: Interpreter, group: TaskGroup, ends: Callable[[Ending], None]) -> None:
        self._interpreter = interpreter
        self._image = interpreter.image
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
            self._group.start_soon(self._guarded, self._do_task, thread, running)
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
        return isinstance(action, Parallel) and action.stoppable and self._interpreter.gate.stop_asked()

    @staticmethod
    def _stands(thread: Thread, batch: int) -> bool:
        action = thread.cursor.action
        return isinstance(action, Parallel) and action.batch == batch
