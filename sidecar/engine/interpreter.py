"""The loop: it does what the cursor asks for, tells it what came of that, and journals both.

One interpreter serves both drivers. A thread that is `handed` stops before what an agent outside has to do, and goes
on when somebody says that it is done; any other thread does everything itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.lowlevel

from sidecar.engine import aftermath, including
from sidecar.engine.ending import Ending, RunEnds
from sidecar.engine.including_time import IncludingTimes, in_time
from sidecar.engine.needs import has_own_agent, is_for_agent
from sidecar.engine.outcomes import Outcomes
from sidecar.engine.program import asks
from sidecar.engine.program.actions import (
    Answer,
    Boundary,
    Completed,
    Delay,
    Evaluate,
    Include,
    Leave,
    Parallel,
    Passed,
    Run,
    Settle,
)
from sidecar.engine.working import Work
from sidecar.errors import StepFailed
from sidecar.model import run as kinds
from sidecar.model.steps import StateUpdate, UserMessage
from sidecar.model.steps_control import ParallelForEach, While

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.engine.boundary import Gate
    from sidecar.engine.context import Surroundings
    from sidecar.engine.processes import Processes
    from sidecar.engine.program.actions import Action
    from sidecar.engine.program.frames import State
    from sidecar.engine.record.image import Image
    from sidecar.engine.record.ledger import Ledger
    from sidecar.engine.spaces import Path
    from sidecar.engine.threads import Thread


_CHECKPOINT_EVERY = 256  # events: what a resume has to read at most
_TURN_S = 0.01  # of work without waiting, after which others get their turn


class Tasks(Protocol):
    """Who sees to the tasks of `parallel_foreach`."""

    pause: Ending | None
    exit: Ending | None

    def begin(self, thread: Thread) -> None: ...
    def stir(self) -> None: ...
    def need_agents(self, thread: Thread, action: Parallel) -> bool: ...
    async def attend(self, thread: Thread, action: Parallel) -> None: ...
    async def settled(self, thread: Thread) -> None: ...


class Interpreter:
    """Walks the threads of one run. Raises RunEnds where the run ends before its last step, StoreError where the
    journal cannot be kept: then nothing more is done, and a resume goes on from what was kept."""

    def __init__(
        self,
        image: Image,
        around: Surroundings,
        *,
        ledger: Ledger,
        gate: Gate,
        processes: Processes,
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.image = image
        self.ledger = ledger
        self.gate = gate
        self.processes = processes
        self.outcomes = Outcomes(image, ledger, around)
        self._times = IncludingTimes(self.outcomes)
        self.work = Work(self.outcomes, around, gate=gate, processes=processes, tell=tell)
        self.batches: Tasks  # while the machinery around it is there
        self._turn_began = time.monotonic()

    async def walk(self, thread: Thread) -> Action:
        """Until the thread is over, or stands before what somebody else has to do: the action that it stands at."""
        while True:
            while thread.left:
                self.ledger.pay()
                await self._walk_spare(thread.left[0])
                del thread.left[0]
            if self.ledger.is_behind:  # what is done without an effect would fill the memory
                await self.ledger.caught_up()
            action = thread.cursor.action
            stands = thread.cursor.is_over or self.waits_outside(thread, action)
            if stands or not _leads_to_effect(action):
                self.ledger.pay()
            if stands:
                return action
            began = time.monotonic()
            try:
                await self._do_in_time(thread, action)
            except RunEnds:
                self.ledger.pay()  # tasks that still run may be waited for until then
                raise
            self.batches.begin(thread)
            if thread is self.image.main and self.ledger.since_checkpoint >= _CHECKPOINT_EVERY:
                await self.ledger.checkpoint(self.image.to_json)
            now = time.monotonic()
            if now - began > _TURN_S:
                self._turn_began = now  # it was waited for: others had their turn
            elif now - self._turn_began > _TURN_S:
                self.ledger.pay()
                await anyio.lowlevel.checkpoint()
                self._turn_began = time.monotonic()

    def waits_outside(self, thread: Thread, action: Action) -> bool:
        """Whether an agent outside has to do this."""
        if not thread.handed:
            return False
        if isinstance(action, Parallel):
            return self.batches.need_agents(thread, action)
        if not isinstance(action, Run) or not is_for_agent(action.step, "agent"):
            return False
        return self.image.main.handed or not has_own_agent(action.step)  # else the agent of a task has no part in it

    def stir(self) -> None:
        """Something may be possible that was not: a stop was taken back."""
        if hasattr(self, "batches"):
            self.batches.stir()

    async def _do_in_time(self, thread: Thread, action: Action) -> None:
        """Do it; where a workflow that it is in has had its time, that one fails instead."""
        due = self._times.due(thread)
        if due is None:
            await self._do(thread, action)
            return
        self.ledger.pay()
        if anyio.current_time() < due.at:
            async with in_time(due.at, lambda: self.processes.request_end("timeout", due.key)) as work:
                await self._do(thread, action)
            if not work.cancelled_caught:
                return
        self.outcomes.failed_around(thread, due.level, due.error)
        self.ledger.commit(durable=True)
        self.batches.begin(thread)
        await self.batches.settled(thread)

    async def _do(self, thread: Thread, action: Action) -> None:
        if isinstance(action, Boundary):
            self._pass(thread, action)
        elif isinstance(action, Evaluate):
            self._evaluate(thread, action)
        elif isinstance(action, Run):
            await self.work.run(thread, action)
        elif isinstance(action, Parallel):
            await self.batches.attend(thread, action)
        elif isinstance(action, Settle):
            self.outcomes.settle(thread, action)
        elif isinstance(action, Include):
            including.enter(self.outcomes, self.work.around.root, thread, action)
        elif isinstance(action, Leave):
            including.leave(self.outcomes, thread, action)
        else:
            assert isinstance(action, Delay)
            self.ledger.commit()
            await anyio.sleep(action.seconds_s)
            thread.cursor = thread.cursor.after(Completed())

    # --- between steps

    def _pass(self, thread: Thread, action: Boundary) -> None:
        asked = self.batches.exit or self.batches.pause
        if asked is not None and thread is self.image.main:
            raise RunEnds(asked)
        iterates = thread.cursor.state.top.phase == "iteration"
        self.gate.check(action.kind)
        if not thread.spare:
            self.gate.keep_limits(action.step, iterates=iterates)
        if iterates:
            count = thread.cursor.loops[-1]
            of = count.of if count.of is not None else self._most(thread, action.step)
            told = {"iteration": count.iteration + 1, "of": of, "task": thread.task_id}
            self.ledger.note(kinds.ITERATION, step=action.step.id, **told)
        thread.cursor = thread.cursor.after(Passed())

    def _most(self, thread: Thread, step: Any) -> Any:
        known = isinstance(step, While)
        return asks.value(step, "max_iterations", thread.cursor.state.top.answers) if known else None

    def _evaluate(self, thread: Thread, action: Evaluate) -> None:
        view = self.outcomes.view(thread, action.scope)
        written = asks.value(action.step, action.field, {})
        with self.outcomes.attempt(action.step) as tried:
            if action.field == "condition":
                found: Any = view.truth(written)
            else:
                found = view.text(written) if action.field == "message" else view.value(written)
            try:
                asks.accepted(action.step, action.field, found)
            except ValueError as error:  # the cursor would refuse it
                raise StepFailed(str(error)) from None
        if tried.error is not None:
            self.outcomes.failed(thread, action.step, tried.error)
            return
        before = thread.cursor
        after = before.after(Answer(found))
        outcome = ["answer", found]
        self.ledger.note(kinds.EVALUATED, thread=thread.key, step=action.step.id, field=action.field, outcome=outcome)
        if isinstance(action.step, ParallelForEach) and _has_nothing_to_do(before.state, after.state):
            self.outcomes.tasks_begin(thread, action.step)
            thread.cursor = after
            self.outcomes.tasks_over(thread, action.step, before, None)
        thread.cursor = after

    # --- steps for failures

    async def failed_parts(self, thread: Thread) -> None:
        """The steps that included workflows have for their failure, of all that the thread is in."""
        state, names = thread.cursor.state, {"error": thread.error or {"message": ""}}
        for level in range(len(state.frames) - 1, 0, -1):
            if state.frames[level].branch == "part":
                await self.see_to(thread, f"{aftermath.ON_FAILURE}.{level}", thread.space(state.path(level)), names)

    async def see_to(self, thread: Thread, word: str, path: Path, names: dict[str, Any]) -> None:
        """Do the steps for a failure that a thread ends with, or go on with them."""
        spare = thread.spares.get(word)
        if spare is None:
            spare = aftermath.begin(self.image.spaces, thread, word, path, names)
            if spare is None:
                return
            self.ledger.note(kinds.FAILURE_STEPS, thread=thread.key, handler=word, path=list(path), names=names)
        await self._walk_spare(spare)

    async def _walk_spare(self, spare: Thread) -> None:
        """What becomes of them changes nothing; only a signal ends them."""
        try:
            await self.walk(spare)
        except RunEnds as ends:
            if ends.ending.status != "paused":
                raise
            self.ledger.note(kinds.WARNING, text=f"steps for a failure cannot wait for an answer: {ends}")


def _leads_to_effect(action: Action) -> bool:
    """Whether the next entry that goes to the disk is a moment away: nothing is computed or waited for until then."""
    if isinstance(action, Run):
        return not isinstance(action.step, StateUpdate | UserMessage)
    return isinstance(action, Boundary)


def _has_nothing_to_do(before: State, after: State) -> bool:
    """Whether a `parallel_foreach` without items was passed, with the last answer that it needed."""
    begun = after.failure is None and after.batches_begun > before.batches_begun
    return begun and after.batches.keys() <= before.batches.keys()
