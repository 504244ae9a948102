"""The loop: it does what the cursor asks for, tells it what came of that, and journals both.

One interpreter serves both drivers. A thread that is `handed` stops before what an agent outside has to do, and goes
on when somebody says that it is done; any other thread does everything itself.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.lowlevel

from sidecar.catalog import workflows
from sidecar.engine.boundary import Ending, RunEnds
from sidecar.engine.cursor import moves
from sidecar.engine.cursor.actions import (
    Answer,
    ApplyErrorUpdate,
    Boundary,
    Completed,
    Delay,
    Evaluate,
    Execute,
    Include,
    Leave,
    Parallel,
    Passed,
)
from sidecar.engine.evaluation import positive_s
from sidecar.engine.run import ON_FAILURE, begin_failure_steps, included_path
from sidecar.engine.step import Outcomes, Work, completion_writes, has_own_agent, is_for_agent
from sidecar.errors import StepFailed, UnwrappedErrors
from sidecar.model import events as kinds
from sidecar.model.parameters import bind
from sidecar.model.steps import IncludeWorkflow, ParallelForEach, StateUpdate, UserMessage, While

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from sidecar.engine.boundary import Gate
    from sidecar.engine.cursor.actions import Action, Include, Leave
    from sidecar.engine.cursor.position import Error, State
    from sidecar.engine.evaluation import View
    from sidecar.engine.ledger import Ledger
    from sidecar.engine.processes import Processes
    from sidecar.engine.run import Path, Run, Thread
    from sidecar.engine.step import Outcomes
    from sidecar.engine.steps.context import RunServices
    from sidecar.model.workflow import Workflow


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
        image: Run,
        around: RunServices,
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
        if not isinstance(action, Execute) or not is_for_agent(action.step, "agent"):
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
        elif isinstance(action, Execute):
            await self.work.run(thread, action)
        elif isinstance(action, Parallel):
            await self.batches.attend(thread, action)
        elif isinstance(action, ApplyErrorUpdate):
            self.outcomes.settle(thread, action)
        elif isinstance(action, Include):
            enter_included(self.outcomes, self.work.around.root, thread, action)
        elif isinstance(action, Leave):
            leave_included(self.outcomes, thread, action)
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
            self.gate.check_limits(action.step, iterates=iterates)
        if iterates:
            count = thread.cursor.loops[-1]
            of = count.of if count.of is not None else self._most(thread, action.step)
            told = {"iteration": count.iteration + 1, "of": of, "task": thread.task_id}
            self.ledger.note(kinds.ITERATION, step=action.step.id, **told)
        thread.cursor = thread.cursor.after(Passed())

    def _most(self, thread: Thread, step: Any) -> Any:
        known = isinstance(step, While)
        return moves.field_value(step, "max_iterations", thread.cursor.state.top.answers) if known else None

    def _evaluate(self, thread: Thread, action: Evaluate) -> None:
        view = self.outcomes.view(thread, action.scope)
        written = moves.field_value(action.step, action.field, {})
        with self.outcomes.attempt(action.step) as tried:
            if action.field == "condition":
                found: Any = view.truth(written)
            else:
                found = view.text(written) if action.field == "message" else view.value(written)
            try:
                moves.checked_answer(action.step, action.field, found)
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
            if state.frames[level].branch == "steps":
                await self.see_to(thread, f"{ON_FAILURE}.{level}", thread.space(state.path(level)), names)

    async def see_to(self, thread: Thread, word: str, path: Path, names: dict[str, Any]) -> None:
        """Do the steps for a failure that a thread ends with, or go on with them."""
        spare = thread.spares.get(word)
        if spare is None:
            spare = begin_failure_steps(self.image.spaces, thread, word, path, names)
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
    if isinstance(action, Execute):
        return not isinstance(action.step, StateUpdate | UserMessage)
    return isinstance(action, Boundary)


def _has_nothing_to_do(before: State, after: State) -> bool:
    """Whether a `parallel_foreach` without items was passed, with the last answer that it needed."""
    begun = after.failure is None and after.batches_begun > before.batches_begun
    return begun and after.batches.keys() <= before.batches.keys()


# `include_workflow`: another workflow is entered, with a state of its own, and left again.


def enter_included(outcomes: Outcomes, root: str, thread: Thread, action: Include) -> None:
    """Find the workflow, give it its inputs, begin its state."""
    step, key = action.step, thread.step_key()
    scope = thread.scope(action.scope)
    space = outcomes.image.spaces[scope.path]
    with outcomes.attempt(step) as tried:
        given = space.view(scope.names).value(step.inputs)
        definition = workflows.included(root, space.definition, step.workflow)
        inputs, fields = _bound(definition.workflow, given, f"workflow {step.workflow!r}")
        positive_s(space.view(scope.names), step.timeout_s, "timeout")
        included = outcomes.image.include(thread, definition, inputs, fields)
    if tried.error is not None:
        outcomes.failed(thread, step, tried.error)
        return
    # What was found by its name may be another file tomorrow: the run keeps what it began with.
    record = None if step.workflow in space.definition.components else definition.record()
    told = {"step": key, "id": step.id, "type": step.type, "attempt": action.attempt, "task": thread.task_id}
    outcome = ["included", record, inputs, step.workflow, fields]
    outcomes.ledger.note(kinds.STEP_STARTED, thread=thread.key, **told, outcome=outcome)
    thread.cursor = thread.cursor.after(included)


def _bound(workflow: Workflow, given: Mapping[str, Any], subject: str) -> tuple[dict[str, Any], list[str]]:
    """The inputs, and which of them also set a field of that name. A field that is no input can be given, too."""
    fields = [name for name in given if name in workflow.raw_fields]
    undeclared = {name: given[name] for name in fields if name not in workflow.inputs}
    declared = {name: value for name, value in given.items() if name not in undeclared}
    return {**bind(workflow.parameters, declared, subject), **undeclared}, fields


def leave_included(outcomes: Outcomes, thread: Thread, action: Leave) -> None:
    """The included workflow is done: what it left is the step's result."""
    step, key = action.step, thread.step_key()
    scope = thread.scope(action.scope)
    space = outcomes.image.spaces[scope.path]
    with outcomes.attempt(step) as tried:
        result = outcomes.image.spaces[included_path(thread)].state.flattened()
        update = [step.state_update] if step.state_update else []
        writes = space.view(scope.names).with_names(result=result).writes(update)
        outcomes.write(space, scope.path, [*writes, *completion_writes(space, step.id)])
    if tried.error is not None:
        outcomes.failed(thread, step, tried.error)
        return
    outcomes.completed(thread, step, key, ["left"])
    outcomes.image.left(thread)
    thread.cursor = thread.cursor.after(Completed())


# How long an included workflow may take: its `timeout` holds for all that is done inside it, in one start.


@dataclass(frozen=True, slots=True)
class Due:
    """When an included workflow has to be done: the one of those around a step whose time is over first."""

    level: int  # of the frame of the step that includes it
    key: str
    at: float  # on the clock of the event loop
    error: Error  # what its step fails with then


class IncludingTimes:
    """The clocks of all that a run includes now. They begin anew with a resume, as the clock of any step does."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self._known: dict[str, Due | None] = {}  # by the key of a step and its attempt

    def due(self, thread: Thread) -> Due | None:
        """What the current step has to be done by."""
        state = thread.cursor.state
        if len(state.frames) < 2 or state.ending is not None:
            return None
        found = None
        # One that has failed is judged, and what is inside it is given up: only those around it have a clock.
        inside = len(state.frames) - 1 if state.failure is None else state.failure.level
        for level, frame in enumerate(state.frames[:inside]):
            step = frame.step
            if isinstance(step, IncludeWorkflow) and step.timeout_s is not None:
                due = self._of(thread, level, step)
                if due is not None and (found is None or due.at < found.at):
                    found = due
        return found

    def _of(self, thread: Thread, level: int, step: IncludeWorkflow) -> Due | None:
        state = thread.cursor.state
        key = thread.step_key(state.trimmed(level + 1))
        attempt = f"{key}~{state.frames[level].failures}"
        if attempt not in self._known:
            self._known[attempt] = self._begun(level, key, step, self._outcomes.view(thread, state.scope(level)))
        return self._known[attempt]

    def _begun(self, level: int, key: str, step: IncludeWorkflow, view: View) -> Due | None:
        now = anyio.current_time()
        timeout_s = None
        with self._outcomes.attempt(step) as tried:
            timeout_s = positive_s(view, step.timeout_s, "timeout")
        if tried.error is not None:  # it could be computed when the step began: this is a resume
            return Due(level, key, now, tried.error)
        if timeout_s is None:
            return None
        message = f"the included workflow was not done within {timeout_s:g} s"
        return Due(level, key, now + timeout_s, {"message": message, "step": step.id, "kind": "timeout"})


@asynccontextmanager
async def in_time(at: float, late: Callable[[], object]) -> AsyncIterator[anyio.CancelScope]:
    """What is done in here is cancelled at a moment, after `late` was called: why something ends is said first."""
    with UnwrappedErrors():
        async with anyio.create_task_group() as beside:
            work = anyio.CancelScope()

            async def ring() -> None:
                await anyio.sleep_until(at)
                late()
                work.cancel()

            beside.start_soon(ring)
            with work:
                yield work
            beside.cancel_scope.cancel()
