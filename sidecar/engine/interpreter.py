"""The loop of a run: it does what the cursor asks for, journals the outcome and moves the cursor on.

One interpreter serves both drivers. A thread that is `handed_out` stops before a step for an outside agent, and goes on
when the agent has reported it; any other thread executes everything here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel

from sidecar.catalog import workflows
from sidecar.engine.boundary import Ending, RunEnds, iterations_exhausted
from sidecar.engine.cursor import moves
from sidecar.engine.cursor.actions import (
    Action,
    Answer,
    ApplyErrorUpdate,
    Boundary,
    Completed,
    Delay,
    Evaluate,
    Execute,
    Finished,
    Include,
    Leave,
    LimitReached,
    Parallel,
    Passed,
)
from sidecar.engine.cursor.position import Error, State
from sidecar.engine.evaluation import positive_s
from sidecar.engine.parallel import Batches
from sidecar.engine.run import CLEANUP, ON_FAILURE, Path, Thread
from sidecar.engine.step import StepRunner, has_own_agent, is_for_agent
from sidecar.engine.steps.agent import run_task_agent
from sidecar.errors import StepFailed, UnwrappedErrors
from sidecar.model import events as kinds
from sidecar.model.parameters import bind
from sidecar.model.steps import IncludeWorkflow, ParallelForEach, StateUpdate, UserMessage, While
from sidecar.model.workflow import Workflow

_CHECKPOINT_EVERY = 256  # events: what a resume has to read at most
_TURN_S = 0.01  # of work without waiting, after which other tasks get their turn


class Interpreter:
    """Executes the threads of one run. Raises RunEnds where the run ends before its last step, StoreError where the
    journal cannot be written: then nothing more is done, and a resume goes on from what was journalled."""

    def __init__(self, steps: StepRunner, end_run: Callable[[Ending], None]) -> None:
        """`end_run`: called where a task ends the run, whose main thread may be busy elsewhere."""
        self.run = steps.run
        self.ledger = steps.ledger
        self.guard = steps.guard
        self.steps = steps
        self.batches = Batches(steps, self._run_task, end_run)
        self._deadlines: dict[str, _Deadline | None] = {}  # of included workflows, by step key and attempt
        self._turn_began = time.monotonic()

    async def walk(self, thread: Thread) -> Action:
        """Execute a thread until it is over, or stands at a step for an outside agent: the action it stands at."""
        while True:
            while thread.pending_failure_steps:
                self.ledger.flush()
                await self._walk_failure_thread(thread.pending_failure_steps[0])
                del thread.pending_failure_steps[0]
            if self.ledger.is_behind:  # entries of steps without an effect would fill the memory
                await self.ledger.caught_up()
            action = thread.cursor.action
            stands = isinstance(action, Finished | LimitReached) or self.waits_outside(thread, action)
            if stands or not _leads_to_effect(action):
                self.ledger.flush()
            if stands:
                return action
            began = time.monotonic()
            try:
                await self._do_in_time(thread, action)
            except RunEnds:
                self.ledger.flush()  # before tasks that still run are waited for
                raise
            if thread.cursor.state.batches or thread.children:
                self.batches.start_tasks(thread)
            if thread is self.run.main and self.ledger.since_checkpoint >= _CHECKPOINT_EVERY:
                await self.ledger.checkpoint()
            await self._yield_turn(began)

    async def _yield_turn(self, began: float) -> None:
        """Give other tasks of the event loop their turn, after some time of work since which none had any."""
        now = time.monotonic()
        if now - began > _TURN_S:
            self._turn_began = now  # the action waited: other tasks had their turn
        elif now - self._turn_began > _TURN_S:
            self.ledger.flush()
            await anyio.lowlevel.checkpoint()
            self._turn_began = time.monotonic()

    def waits_outside(self, thread: Thread, action: Action) -> bool:
        """Whether an outside agent has to do this."""
        if not thread.handed_out:
            return False
        if isinstance(action, Parallel):
            return self.batches.need_agent(thread, action, "agent")
        if not isinstance(action, Execute) or not is_for_agent(action.step, "agent"):
            return False
        # A step that names its agent is not for the agent of a task.
        return self.run.main.handed_out or not has_own_agent(action.step)

    async def _do(self, thread: Thread, action: Action) -> None:
        if isinstance(action, Boundary):
            self._pass_boundary(thread, action)
        elif isinstance(action, Evaluate):
            self._evaluate(thread, action)
        elif isinstance(action, Execute):
            await self.steps.execute(thread, action)
        elif isinstance(action, Parallel):
            await self.batches.run_tasks(thread, action)
        elif isinstance(action, ApplyErrorUpdate):
            self.steps.apply_error_update(thread, action)
        elif isinstance(action, Include):
            self._enter_included(thread, action)
        elif isinstance(action, Leave):
            self.steps.complete(thread, action)
        else:
            assert isinstance(action, Delay)
            self.ledger.commit()
            await anyio.sleep(action.seconds_s)
            thread.cursor = thread.cursor.after(Completed())

    # --- between steps

    def _pass_boundary(self, thread: Thread, action: Boundary) -> None:
        ending = self.batches.exit or self.batches.pause
        if ending is not None and thread is self.run.main:
            raise RunEnds(ending)
        frame = thread.cursor.state.frames[-1]
        iterates = frame.phase == "iteration"
        self.guard.pass_boundary(action, iterates=iterates, limited=not thread.is_failure_thread)
        if iterates:
            loop, answers = frame.step, frame.answers
            is_while = isinstance(loop, While)
            most = moves.field_value(loop, "max_iterations", answers) if is_while else len(answers["items"])
            data = {"iteration": frame.index + 1, "of": most, "task": thread.task_id}
            self.ledger.record(kinds.ITERATION, step=loop.id, **data)
        thread.cursor = thread.cursor.after(Passed())

    def _evaluate(self, thread: Thread, action: Evaluate) -> None:
        step, view = action.step, self.steps.view(thread, action.scope)
        with self.steps.attempt(step) as tried:
            if action.field == "condition":
                found: Any = view.truth(action.written)
            else:
                found = view.text(action.written) if action.field == "message" else view.value(action.written)
            try:
                moves.checked_answer(step, action.field, found)
            except ValueError as error:  # the cursor would refuse it
                raise StepFailed(str(error)) from None
        if tried.error is not None:
            self.steps.fail(thread, step, tried.error)
            return
        before = thread.cursor
        after = before.after(Answer(found))
        outcome = ["answer", found]
        self.ledger.record(kinds.EVALUATED, thread=thread.key, step=step.id, field=action.field, outcome=outcome)
        if isinstance(step, ParallelForEach) and _has_no_items(before.state, after.state):
            self.steps.begin_tasks(thread, step)
            thread.cursor = after
            self.steps.end_tasks(thread, step, before.state, None)
        thread.cursor = after

    # --- included workflows

    def _enter_included(self, thread: Thread, action: Include) -> None:
        """Find the workflow, bind its inputs, start its state."""
        step, key = action.step, thread.step_key()
        _, state, view = self.run.place(thread, action.scope)
        includer = state.definition
        with self.steps.attempt(step) as tried:
            given = view.value(step.inputs)
            definition = workflows.included(self.steps.services.root, includer, step.workflow)
            inputs, fields = _bound(definition.workflow, given, f"workflow {step.workflow!r}")
            positive_s(view, step.timeout_s, "timeout")
            included = self.run.include(thread, definition, inputs, fields)
        if tried.error is not None:
            self.steps.fail(thread, step, tried.error)
            return
        # A workflow that was found by its name may be another file tomorrow: the run keeps the one it has begun.
        record = None if step.workflow in includer.components else definition.record()
        data = {"step": key, "id": step.id, "type": step.type, "attempt": action.attempt, "task": thread.task_id}
        outcome = ["included", record, inputs, step.workflow, fields]
        self.ledger.record(kinds.STEP_STARTED, thread=thread.key, **data, outcome=outcome)
        thread.cursor = thread.cursor.after(included)

    async def _do_in_time(self, thread: Thread, action: Action) -> None:
        """Do what the cursor asks for. Where the time of an included workflow around it is over, that one fails."""
        deadline = self._deadline(thread)
        if deadline is None:
            await self._do(thread, action)
            return
        self.ledger.flush()
        if anyio.current_time() < deadline.at:
            work = anyio.CancelScope()
            with UnwrappedErrors():
                async with anyio.create_task_group() as group:
                    group.start_soon(self._time_out, deadline, work)
                    with work:
                        await self._do(thread, action)
                    group.cancel_scope.cancel()
            if not work.cancelled_caught:
                return
        self.steps.fail(thread, deadline.step, deadline.error, level=deadline.level)
        self.ledger.commit(durable=True)
        self.batches.start_tasks(thread)
        await self.batches.cancelled_over(thread)

    async def _time_out(self, deadline: _Deadline, work: anyio.CancelScope) -> None:
        await anyio.sleep_until(deadline.at)
        self.steps.processes.request_end(
            "timeout", deadline.key
        )  # first: processes are ended for the first reason they get
        work.cancel()

    def _deadline(self, thread: Thread) -> _Deadline | None:
        """The first deadline of the included workflows that the current step is in. Each starts anew with a resume."""
        state = thread.cursor.state
        if not self.run.definitions or len(state.frames) < 2 or state.ending is not None:
            return None
        # Of a step that has failed, the deadline does not count any more: only those around it do.
        inside = len(state.frames) - 1 if state.failure is None else state.failure.level
        found = None
        for level, frame in enumerate(state.frames[:inside]):
            if isinstance(frame.step, IncludeWorkflow) and frame.step.timeout_s is not None:
                key = thread.step_key(state.trimmed(level + 1))
                attempt = f"{key}~{frame.failures}"
                if attempt not in self._deadlines:
                    self._deadlines[attempt] = self._new_deadline(thread, level, key, frame.step)
                deadline = self._deadlines[attempt]
                if deadline is not None and (found is None or deadline.at < found.at):
                    found = deadline
        return found

    def _new_deadline(self, thread: Thread, level: int, key: str, step: IncludeWorkflow) -> _Deadline | None:
        now, timeout_s = anyio.current_time(), None
        with self.steps.attempt(step) as tried:
            view = self.steps.view(thread, moves.scope(thread.cursor.state, level))
            timeout_s = positive_s(view, step.timeout_s, "timeout")
        if tried.error is not None:  # it could be evaluated when the step began: this is a resume
            return _Deadline(step, level, key, now, tried.error)
        if timeout_s is None:
            return None
        message = f"the included workflow was not done within {timeout_s:g} s"
        return _Deadline(step, level, key, now + timeout_s, {"message": message, "step": step.id, "kind": "timeout"})

    # --- tasks

    async def _run_task(self, child: Thread) -> Error | None:
        """Run a task from where it stands to its end; its error, where it failed."""
        if child.handed_out and not child.cursor.is_over:
            return await self._run_task_agent(child)
        await self.walk(child)
        return await self.finish_task(child)

    async def _run_task_agent(self, child: Thread) -> Error | None:
        """Have an agent of its own ask for the steps of a task and execute them."""
        assert child.parent is not None
        assert child.place is not None
        step = child.parent.cursor.state.batches[child.place[0]].step
        while True:
            self.guard.check_limits()
            self.steps.use_feedback(child.key)
            with self.steps.redirectable(child.key) as scope, self.steps.attempt(step) as tried:
                taken = await run_task_agent(
                    self.steps.task_context(child),
                    agent_name=step.agent,
                    prompt_override=step.sub_agent_prompt_override,
                    description=self.run.task_definition(child).description,
                )
            if tried.error is not None:
                return await self._clean_up(child, tried.error)
            self.steps.pause_if_submitted(child.key)
            if not scope.cancelled_caught:
                break
        async with child.lock:
            action = await self.walk(child)  # what follows the last step that the agent has executed
            if child.cursor.is_over:
                return await self.finish_task(child)
        waits = f"step {action.step.id!r}" if hasattr(action, "step") else "its steps"
        message = f"the sub-agent of task {child.task_id} ended before {waits} was done"
        message = f"{message}: {taken.failure}" if taken.failure else message
        return await self._clean_up(child, {"message": message, "step": step.id})

    async def finish_task(self, child: Thread) -> Error | None:
        """The outcome of a task whose last step is done, after its failure steps. RunEnds where it ends the run."""
        action = child.cursor.action
        if isinstance(action, LimitReached):
            raise RunEnds(iterations_exhausted(action))
        assert isinstance(action, Finished)
        error = action.error or {"message": action.message}
        if child.exited:
            raise RunEnds(Ending(action.status, action.message, error=error if action.status == "failed" else None))
        if action.status == "completed":
            return None
        child.error = error
        await self.run_failure_steps_of_included(child)
        return await self._clean_up(child, error)

    async def _clean_up(self, child: Thread, error: Error) -> Error | None:
        """Run the steps for a task that failed; the error that its batch gets."""
        await self.run_failure_steps(child, CLEANUP, child.path, {**child.names, "error": error})
        return error if self.run.task_definition(child).error_handling.return_on_error else None

    # --- failure steps

    async def run_failure_steps_of_included(self, thread: Thread) -> None:
        """Run the failure steps of all included workflows that a thread is in, the innermost first."""
        state, names = thread.cursor.state, {"error": thread.error or {"message": ""}}
        for level in range(len(state.frames) - 1, 0, -1):
            if state.frames[level].branch == "steps":
                path = thread.state_path(state.path(level))
                await self.run_failure_steps(thread, f"{ON_FAILURE}.{level}", path, names)

    async def run_failure_steps(self, thread: Thread, handler: str, path: Path, names: dict[str, Any]) -> None:
        """Run the steps for the failure that a thread ends with, or continue them after a resume."""
        failure = thread.failure_threads.get(handler)
        if failure is None:
            failure = self.run.start_failure_steps(thread, handler, path, names)
            if failure is None:
                return
            self.ledger.record(kinds.FAILURE_STEPS, thread=thread.key, handler=handler, path=list(path), names=names)
        await self._walk_failure_thread(failure)

    async def _walk_failure_thread(self, failure: Thread) -> None:
        """Their outcome changes nothing; only a signal ends them."""
        try:
            await self.walk(failure)
        except RunEnds as ends:
            if ends.ending.status != "paused":
                raise
            self.ledger.record(kinds.WARNING, text=f"steps for a failure cannot wait for an answer: {ends}")


@dataclass(frozen=True, slots=True)
class _Deadline:
    """When an included workflow has to be complete."""

    step: IncludeWorkflow
    level: int  # of the frame of that step
    key: str
    at: float  # on the clock of the event loop
    error: Error  # what the step fails with then


def _leads_to_effect(action: Action) -> bool:
    """Whether the next durable entry follows at once: nothing is computed or waited for until then."""
    if isinstance(action, Execute):
        return not isinstance(action.step, StateUpdate | UserMessage)
    return isinstance(action, Boundary)


def _has_no_items(before: State, after: State) -> bool:
    """Whether a `parallel_foreach` without items was passed with the last answer that it needed."""
    begun = after.failure is None and after.batches_begun > before.batches_begun
    return begun and after.batches.keys() <= before.batches.keys()


def _bound(workflow: Workflow, given: Mapping[str, Any], subject: str) -> tuple[dict[str, Any], list[str]]:
    """The inputs of an included workflow, and which of them also set a field of its state. A field that is no declared
    input can be given, too."""
    fields = [name for name in given if name in workflow.raw_fields]
    undeclared = {name: given[name] for name in fields if name not in workflow.inputs}
    declared = {name: value for name, value in given.items() if name not in undeclared}
    return {**bind(workflow.parameters, declared, subject), **undeclared}, fields
