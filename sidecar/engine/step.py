"""Executes the steps of a run: each is started, and completed or failed in state, journal and cursor together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from sidecar.catalog.workflows import Definition
from sidecar.engine import run_log
from sidecar.engine.boundary import BoundaryGuard, Ending, RunEnds
from sidecar.engine.cursor.actions import (
    ActionFailed,
    Answer,
    ApplyErrorUpdate,
    Completed,
    EnclosingStepFailed,
    Evaluate,
    Execute,
    Leave,
)
from sidecar.engine.cursor.moves import Cursor
from sidecar.engine.cursor.position import Error, Scope, State
from sidecar.engine.evaluation import View
from sidecar.engine.handout import HANDED_OUT
from sidecar.engine.ledger import Ledger
from sidecar.engine.processes import Processes
from sidecar.engine.run import Path, Place, Run, Thread, WorkflowState, included_path
from sidecar.engine.steps import HANDLERS
from sidecar.engine.steps.context import AnswerNeeded, Context, RunServices
from sidecar.errors import ExpressionError, SidecarError, StepFailed, StoreError, unwrapped
from sidecar.model import events as kinds
from sidecar.model.events import Driver
from sidecar.model.steps import (
    AGENT_STEPS,
    ApplyHints,
    IncludeWorkflow,
    ParallelForEach,
    StateUpdate,
    StepBase,
    Steps,
    UserInput,
    UserMessage,
    Working,
    branches,
)
from sidecar.model.workflow import SubAgentTask
from sidecar.state.reactive import Write
from sidecar.state.values import DEEPEST, too_deep

Includes = Callable[[Definition | None, str], Definition]

_MESSAGE_LENGTH = 300  # at most, of an unexpected error


@dataclass(slots=True)
class Attempt:
    """Something that is tried; `error` where it failed."""

    error: Error | None = None


class StepRunner:
    """Executes, completes and fails the steps of one run."""

    def __init__(
        self,
        run: Run,
        services: RunServices,
        *,
        ledger: Ledger,
        guard: BoundaryGuard,
        processes: Processes,
        emit: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.services = services
        self.submitted: dict[str, Any] | None = None  # a stage that waits for approval: its step does not complete
        self.run = run
        self.ledger = ledger
        self.guard = guard
        self.processes = processes
        self._emit = emit
        self._redirectable: dict[str, anyio.CancelScope] = {}  # of the steps that execute now, by key

    # --- executed here

    async def execute(self, thread: Thread, action: Execute) -> None:
        """Execute a step, and complete or fail it."""
        step = action.step
        if isinstance(step, StateUpdate | UserMessage):  # no effect that could be repeated: nothing is journalled first
            self.complete(thread, action)
            return
        key, place = thread.step_key(), self.run.place(thread, action.scope)
        while True:
            if is_for_agent(step, "server") or has_own_agent(step):
                self.use_feedback(key)
            attempt = await self.begin(thread, step, key)
            result: Any = None
            with self.redirectable(key) as scope, self.attempt(step) as tried:
                try:
                    result = await HANDLERS[type(step)](step, self.context(thread, place.view, key, attempt))
                except AnswerNeeded as needed:
                    asked = needed.question
                    self.ledger.record(kinds.QUESTION, **asked, task=thread.task_id)
                    raise RunEnds(Ending("paused", f"waits for an answer: {asked['prompt']}", waits=asked)) from None
            self.pause_if_submitted(key)
            if not scope.cancelled_caught:
                break
            self.ledger.fail(key, attempt, {"message": "redirected"})
        error = tried.error
        if error is None:
            self.complete(thread, action, result, attempt=attempt, defer=True, place=place)
        elif error.get("kind") == "budget" and self.guard.cost_remaining_usd() == 0:  # the run's budget
            self.ledger.fail(key, attempt, error)
            self.guard.check_limits(step)
        else:
            self.fail(thread, step, error, attempt=attempt)

    def pause_if_submitted(self, key: str) -> None:
        """RunEnds where this step has submitted a stage: what its agent printed afterwards does not count."""
        if self.submitted is not None and self.submitted["step"] == key:
            raise RunEnds(Ending("paused", f"{self.submitted['stage']} waits for approval", waits=self.submitted))

    # --- executed here or by an outside agent

    async def begin(self, thread: Thread, step: StepBase, key: str) -> int:
        """Journal that a step is about to be executed; the number of the attempt."""
        facts = _facts(thread, step, key)
        if step.description:
            facts["description"] = step.description
        return await self.ledger.begin(key, **facts)

    def complete(
        self,
        thread: Thread,
        action: Execute | Leave,
        result: Any = None,
        *,
        attempt: int | None = None,
        has_result: bool = True,
        defer: bool = False,
        place: Place | None = None,
    ) -> None:
        """Complete the current step: its result goes into the state, both go into the journal, the cursor moves on.

        `attempt`: as `begin` gave it; None for a step that has no effect. `has_result`: False where an outside agent
        reported none, because it may have written the state itself. `defer`: as in `Ledger.complete`. `place`: where
        its scope is, if that is known. Where the result cannot be written, the step fails.
        """
        step, key = action.step, thread.step_key()
        path, state, view = place or self.run.place(thread, action.scope)
        with self.attempt(step) as tried:
            if isinstance(action, Leave):
                result = self.run.states[included_path(thread)].state.flattened()
            elif attempt is None and isinstance(step, UserMessage):
                self.ledger.record(kinds.MESSAGE, text=view.text(step.message), step=key, task=thread.task_id)
            elif isinstance(result, dict | list) and too_deep(result):
                raise StepFailed(f"the result is nested more than {DEEPEST} levels deep", kind="output")
            writes: list[Write] = []
            if updates := _updates(step, has_result=has_result):
                if not isinstance(step, StateUpdate):
                    view = view.with_names(**_result_names(step, result))
                writes = view.writes(updates)
            self.write(path, state, [*writes, *_completion_writes(state, step.id)])
        if tried.error is not None:
            self.fail(thread, step, tried.error, attempt=attempt)
            return
        outcome = ["left" if isinstance(action, Leave) else "completed"]
        self.ledger.record(kinds.STEP_COMPLETED, thread=thread.key, **_facts(thread, step, key), outcome=outcome)
        if isinstance(action, Leave):
            self.run.leave_included(thread)
        if attempt is not None:
            if isinstance(step, UserInput):
                self.ledger.record(kinds.ANSWERED, step=key, value=result, task=thread.task_id)
            self.ledger.complete(key, attempt, result, defer=defer)
            self.run.clear_additions(key)
        thread.cursor = thread.cursor.after(Completed())

    def fail(
        self, thread: Thread, step: StepBase, error: Error, *, attempt: int | None = None, level: int | None = None
    ) -> None:
        """Fail the current step, or with `level` the step of that frame, which the current one is in: the cursor
        decides whether it is tried again, and what follows."""
        error = self.services.mask.masked_value(error)  # an outside agent may have worded it
        before, typed = thread.cursor, _typed(error)
        outcome: list[Any] = ["failed", typed]
        if level is None:
            level, after = len(before.state.frames) - 1, before.after(ActionFailed(typed))
        else:
            outcome, after = ["failed_around", typed, level], before.after(EnclosingStepFailed(level, typed))
        thread.error = typed
        key = self._fail(thread, step, typed, before=before.state.trimmed(level + 1), after=after, outcome=outcome)
        if attempt is not None:
            self.ledger.fail(key, attempt, error)

    def _fail(
        self,
        thread: Thread,
        step: StepBase,
        error: Error,
        *,
        before: State,
        after: Cursor,
        outcome: list[Any] | None = None,
    ) -> str:
        """`before`: the state at the step; `after`: the cursor that has its failure; `outcome`: for a replay. Returns
        the key of the step."""
        key = thread.step_key(before)
        after, evaluated = self._decided(thread, after)
        again = _is_tried_again(before, after)
        path = thread.state_path(before.path(len(before.frames) - 1))
        state = self.run.states[path]
        with self.attempt(step) as tried:
            self.write(path, state, _failure_writes(state, step.id, error, again=again))
        self._warn_not_written(tried, key)
        self._fail_includes(thread, error, before, after)
        data = {**_facts(thread, step, key), "error": error, "will_retry": again}
        if outcome is not None:
            data = {"thread": thread.key, **data, "outcome": outcome}
        self.ledger.record(kinds.STEP_FAILED, **data)
        for each in evaluated:
            self.ledger.record(kinds.EVALUATED, **each)
        self.run.move(thread, after)
        return key

    def apply_error_update(self, thread: Thread, action: ApplyErrorUpdate) -> None:
        """Write what a failed step leaves in the state: its `error_state_update`, and its fallback value."""
        failure = thread.cursor.state.failure
        assert failure is not None
        before = thread.cursor.state.trimmed(failure.level + 1)
        step, key = action.step, thread.step_key(before)
        path, state, view = self.run.place(thread, action.scope)
        with self.attempt(step) as tried:
            writes: list[Write] = []
            if step.error_state_update is not None:
                writes += view.with_names(error=action.error, result=action.error).writes([step.error_state_update])
            update = step.state_update if isinstance(step, Working) else None
            if action.continues and step.has_fallback and update is not None:
                fallback = view.value(step.fallback_value)
                writes += view.with_names(result=fallback, applied_count=fallback).writes([update])
            self.write(path, state, writes)
        outcome: Completed | ActionFailed = Completed()
        if (error := tried.error) is not None:
            thread.error, outcome = error, ActionFailed(error)
            facts = {**_facts(thread, step, key), "error": error, "will_retry": False}
            self.ledger.record(kinds.STEP_FAILED, thread=thread.key, **facts, outcome=["failed", error])
        else:
            self.ledger.record(kinds.ERROR_HANDLED, thread=thread.key, step=key, id=step.id, outcome=["completed"])
        after = thread.cursor.after(outcome)
        self._fail_includes(thread, action.error, before, after)
        self.run.move(thread, after)

    def _fail_includes(self, thread: Thread, error: Error, before: State, after: Cursor) -> None:
        """Write the failure of each `include_workflow` step that fails with the step of its workflow at `before`."""
        for at in after.state.failed_includes(before):
            step, key = before.frames[at].step, thread.step_key(before.trimmed(at + 1))
            path = thread.state_path(before.path(at))
            state = self.run.states[path]
            again = _is_tried_again(before, after) and len(after.state.frames) == at + 1
            with self.attempt(step) as tried:
                self.write(path, state, _failure_writes(state, step.id, error, again=again))
            self._warn_not_written(tried, key)

    # --- `parallel_foreach`, whose tasks decide what becomes of it

    def begin_tasks(self, thread: Thread, step: StepBase) -> None:
        """Journal that a `parallel_foreach` starts, or continues with the tasks that are left."""
        attempt = thread.cursor.state.frames[-1].failures + 1
        self.ledger.record(kinds.STEP_STARTED, **_facts(thread, step, thread.step_key()), attempt=attempt)

    def end_tasks(self, thread: Thread, step: StepBase, before: State, error: Error | None) -> None:
        """Complete or fail a `parallel_foreach` whose tasks are over. `before`: the cursor's state at the step; the
        thread's cursor has moved on already."""
        if error is not None:
            self._fail(thread, step, _typed(error), before=before, after=thread.cursor)
            return
        key, path = thread.step_key(before), thread.state_path(before.path(len(before.frames) - 1))
        state = self.run.states[path]
        with self.attempt(step) as tried:
            self.write(path, state, _completion_writes(state, step.id))
        self._warn_not_written(tried, key)
        self.ledger.record(kinds.STEP_COMPLETED, **_facts(thread, step, key))

    # --- errors

    @contextmanager
    def attempt(self, step: StepBase) -> Iterator[Attempt]:
        """What is raised in here is the step's error, expected or not: the run goes on from there.

        Not so the end of the run, and the loss of the journal: nothing in a workflow may catch these.
        """
        tried = Attempt()
        try:
            yield tried
        except Exception as error:
            cause = unwrapped(error)
            if isinstance(cause, StoreError | RunEnds):
                raise cause from None
            if self.ledger.lost is not None:  # the cause of any other error
                raise self.ledger.lost from None
            if not isinstance(cause, SidecarError):
                self.log_traceback(cause)
            tried.error = self.services.mask.masked_value(_error_of(cause, step))

    def log_traceback(self, error: Exception) -> None:
        """Write the traceback of an unexpected error to run.log: people get one line."""
        run_log.keep_traceback(self.services.root, self.services.run_id, error, self.services.mask)

    def _decided(self, thread: Thread, cursor: Cursor) -> tuple[Cursor, list[dict[str, Any]]]:
        """The cursor when it has decided about a failure, and what was evaluated for that: whether the step is tried
        again is written into the state with the failure."""
        evaluated = []
        while cursor.state.failure is not None and isinstance(action := cursor.action, Evaluate):
            with self.attempt(action.step) as tried:
                found = self.view(thread, action.scope).value(action.written)
                outcome: list[Any] = ["answer", found]
                answer: Answer | ActionFailed = Answer(found)
            if tried.error is not None:
                outcome, answer = ["failed", tried.error], ActionFailed(tried.error)
            evaluated.append({"thread": thread.key, "step": action.step.id, "field": action.field, "outcome": outcome})
            cursor = cursor.after(answer)
        return cursor, evaluated

    # --- the state

    def write(self, path: Path, state: WorkflowState, writes: list[Write]) -> None:
        """Write into a state; it is journalled with the event that is recorded next."""
        if writes:
            changes = [[write.path, write.value, write.operation] for write in writes]
            state.state.update(writes)
            self.ledger.record_writes(path, changes)

    def view(self, thread: Thread, scope: Scope) -> View:
        """The values that an expression of a thread's step sees."""
        return self.run.place(thread, scope).view

    def _warn_not_written(self, tried: Attempt, key: str) -> None:
        """Engine fields that cannot be written change nothing about the step: a computed field may have failed."""
        if tried.error is not None:
            problem = tried.error["message"]
            self.ledger.record(kinds.WARNING, text=f"what became of step {key} is not in the state: {problem}")

    # --- redirects and feedback

    @contextmanager
    def redirectable(self, key: str) -> Iterator[anyio.CancelScope]:
        """What is executed in here can be redirected: then the scope is cancelled, and the caller starts it again."""
        with anyio.CancelScope() as scope:
            self._redirectable[key] = scope
            try:
                yield scope
            finally:
                self._redirectable.pop(key, None)

    def redirect(self, text: str, name: str | None = None) -> list[str]:
        """Have the steps that agents execute now executed again with a text added; their keys. `name`: the redirect's,
        by which it is recognized when it comes again after a crash."""
        text = self.services.mask.masked_text(text)
        keys = sorted(self.processes.steps() & set(self._redirectable))
        for key in keys:
            self.run.add_redirect(key, text, name)
            self.ledger.record(kinds.REDIRECTED, step=key, text=text, name=name)
        self.ledger.commit(durable=True)
        for key in keys:
            self.processes.request_end("redirect", key)
            self._redirectable[key].cancel()
        return keys

    def use_feedback(self, key: str) -> None:
        """Give the feedback of a resume to the agent that gets the next prompt, and to no other."""
        for text in list(self.run.pending_feedback):
            self.run.use_feedback(key, text)
            self.ledger.record(kinds.FEEDBACK, step=key, text=text)

    # --- what a handler may use

    def task_context(self, thread: Thread) -> Context:
        """For the agent that executes a whole task."""
        return self.context(thread, self.run.states[thread.path].view(thread.names), thread.key, 1)

    def context(self, thread: Thread, view: View, key: str, attempt: int) -> Context:
        """For one attempt at a step."""
        processes, task_id = self.processes, thread.task_id
        return Context(
            services=self.services,
            view=view,
            key=key,
            attempt=attempt,
            task_id=task_id,
            additions=tuple(self.run.additions.get(key, ())),
            cost_remaining_usd=self.guard.cost_remaining_usd(),
            start=partial(processes.start, key=key, task_id=task_id),
            log_path=processes.log_path,
            emit=lambda kind, data: self._emit(kind, {"step": key, "task": task_id, **data}),
            spend=partial(processes.spend, key),
        )


def unexpected(error: Exception) -> str:
    """One line for people about an error that is no SidecarError."""
    text = " ".join(str(error).split())[:_MESSAGE_LENGTH]
    return f"unexpected {type(error).__name__}{f': {text}' if text else ''} (run.log has the traceback)"


def _error_of(error: Exception, step: StepBase) -> Error:
    """What `error` is in expressions."""
    if isinstance(error, StepFailed):
        return _typed({"step": step.id, **error.error})
    known: Error = {"message": str(error), "step": step.id, "type": type(error).__name__}
    if isinstance(error, ExpressionError):
        known |= {"kind": error.kind, "line": error.line, "column": error.column}
    if not isinstance(error, SidecarError):
        known |= {"message": unexpected(error), "kind": "internal_error"}
    return _typed(known)


def _typed(error: Error) -> Error:
    """With a `type`: its kind where nothing better is known."""
    return {"type": error.get("kind") or "failed", **error}


def _facts(thread: Thread, step: StepBase, key: str) -> dict[str, Any]:
    return {"step": key, "id": step.id, "type": step.type, "task": thread.task_id}  # type: ignore[attr-defined]


def _is_tried_again(before: State, after: Cursor) -> bool:
    """Whether the cursor went back to the beginning of a step that failed, the same or one around it."""
    if after.is_over or not after.state.frames or after.state.failure is not None:
        return False
    level = len(after.state.frames) - 1
    return level < len(before.frames) and after.state.frames[-1].failures > before.frames[level].failures


def _updates(step: StepBase, *, has_result: bool) -> Sequence[Any]:
    """What a step writes when it is complete."""
    if isinstance(step, StateUpdate):
        return step.writes
    update = step.state_update if isinstance(step, Working | IncludeWorkflow) else None
    if update is None or not (has_result or update.has_value):
        return ()
    return (update,)


def _result_names(step: StepBase, result: Any) -> dict[str, Any]:
    if isinstance(step, ApplyHints) and isinstance(result, dict):
        return {"result": result, "applied_count": result.get("applied_count")}
    return {"result": result}


# The engine fields: what the engine itself writes into the state of workflows that declare them.


def _completion_writes(state: WorkflowState, step_id: str) -> list[Write]:
    if "steps_completed" not in state.engine_fields or step_id in _list(state, "steps_completed"):
        return []
    return [Write(("raw", "steps_completed"), step_id, "append")]


def _failure_writes(state: WorkflowState, step_id: str, error: Error, *, again: bool) -> list[Write]:
    """`again`: the step is tried once more."""
    writes: list[Write] = []
    if "last_error" in state.engine_fields:
        writes.append(Write(("raw", "last_error"), error))
    if again:
        if "retry_counts" in state.engine_fields:
            writes.append(Write(("raw", "retry_counts", step_id), 1, "increment"))
        return writes
    if "steps_failed" in state.engine_fields and step_id not in _list(state, "steps_failed"):
        writes.append(Write(("raw", "steps_failed"), step_id, "append"))
    collection = state.definition.workflow.error_handling.error_collection
    if collection is not None and collection.enabled:
        path = state.view({}).path(collection.state_path)
        kept = error if collection.include_stack_traces else _without_place(error)
        writes.append(Write(path, kept, "append"))
    elif "workflow_errors" in state.engine_fields:
        writes.append(Write(("raw", "workflow_errors"), _without_place(error), "append"))
    return writes


def _list(state: WorkflowState, name: str) -> list[Any]:
    value = state.state.raw.get(name)
    return value if isinstance(value, list) else []


def _without_place(error: Error) -> Error:
    return {key: value for key, value in error.items() if key not in ("line", "column")}


# Which steps are for an agent.


_BY_DRIVER: dict[Driver, tuple[type[StepBase], ...]] = {"server": AGENT_STEPS, "agent": HANDED_OUT}


def is_for_agent(step: StepBase, driver: Driver) -> bool:
    """Whether the step itself is for the agent that drives the run, or executes its task. Steps that hold others never
    are: `needs_agent` looks into them. A step that names its agent is for that one, where the sidecar starts agents."""
    return isinstance(step, _BY_DRIVER[driver]) and not (driver == "server" and has_own_agent(step))


def has_own_agent(step: StepBase) -> bool:
    """Whether the step names its agent."""
    return isinstance(step, AGENT_STEPS) and step.agent is not None


def of_task(task: SubAgentTask) -> Steps:
    """All the steps of a task, those for its errors too."""
    return (*task.steps, *(task.error_handling.cleanup_on_error or ()))


def needs_agent(steps: Steps, tasks: Mapping[str, SubAgentTask], includes: Includes, driver: Driver) -> bool:
    """Whether a step for an agent is among these, or inside them, whichever way the run will take.

    `tasks` are those that `parallel_foreach` finds in the definition of the steps; `includes` finds a workflow by the
    definition that includes it, None for that of the steps, and its name.
    """
    seen: set[tuple[str, str]] = set()  # tasks and workflows, which can lead to themselves

    def is_new(where: str, name: str) -> bool:
        known = (where, name) in seen
        seen.add((where, name))
        return not known

    def any_of(steps: Steps, definition: Definition | None, tasks: Mapping[str, SubAgentTask]) -> bool:
        return any(inside(step, definition, tasks) for step in steps)

    def inside(step: StepBase, definition: Definition | None, tasks: Mapping[str, SubAgentTask]) -> bool:
        if is_for_agent(step, driver):
            return True
        if isinstance(step, ParallelForEach):
            task, where = tasks.get(step.sub_agent_task), "" if definition is None else definition.loaded_from
            return task is not None and is_new(where, step.sub_agent_task) and any_of(of_task(task), definition, tasks)
        if isinstance(step, IncludeWorkflow):
            try:
                found = includes(definition, step.workflow)
            except SidecarError:
                return False  # the step fails when its turn comes, and no agent can help it
            return is_new(found.loaded_from, "") and any_of(found.workflow.steps or (), found, found.tasks)
        return any(any_of(children, definition, tasks) for children in branches(step).values())

    return any_of(steps, None, tasks)
