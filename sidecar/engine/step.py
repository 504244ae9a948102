"""The steps that do something: begun, done, and completed or failed, here or by an agent outside."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.engine import run_log
from sidecar.engine.boundary import Ending, RunEnds
from sidecar.engine.cursor import moves
from sidecar.engine.cursor.actions import ActionFailed, Answer, Completed, EnclosingStepFailed, Evaluate
from sidecar.engine.steps import HANDLERS
from sidecar.engine.steps.context import AnswerNeeded, Context
from sidecar.errors import ExpressionError, SidecarError, StepFailed, StoreError, unwrapped
from sidecar.model import events as kinds
from sidecar.model.steps import (
    AgentShellCommand,
    AgentStep,
    ApplyHints,
    IncludeWorkflow,
    McpCall,
    ParallelForEach,
    StateUpdate,
    UserInput,
    UserMessage,
    Working,
    branches,
)
from sidecar.state.reactive import Write
from sidecar.state.values import DEEPEST, too_deep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sidecar.catalog.workflows import Definition
    from sidecar.engine.boundary import Gate
    from sidecar.engine.cursor.actions import ApplyErrorUpdate, Execute
    from sidecar.engine.cursor.moves import Cursor
    from sidecar.engine.cursor.position import Error, Scope
    from sidecar.engine.evaluation import View
    from sidecar.engine.ledger import Ledger
    from sidecar.engine.processes import Processes
    from sidecar.engine.run import Path, Run, Thread, WorkflowState
    from sidecar.engine.steps.context import RunServices
    from sidecar.model.events import Driver
    from sidecar.model.steps import StepBase, Steps
    from sidecar.model.workflow import SubAgentTask
    from sidecar.state.reactive import Write

    Includes = Callable[[Definition | None, str], Definition]


class Work:
    """Everything that a run does to the world."""

    def __init__(
        self,
        outcomes: Outcomes,
        around: RunServices,
        *,
        gate: Gate,
        processes: Processes,
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.around = around
        self.submitted: dict[str, Any] | None = None  # a stage that waits for approval: its step does not complete
        self._outcomes = outcomes
        self._image = outcomes.image
        self._ledger = outcomes.ledger
        self._gate = gate
        self._processes = processes
        self._tell = tell
        self._redirectable: dict[str, anyio.CancelScope] = {}  # what is being done now, by key

    # --- done here

    async def run(self, thread: Thread, action: Execute) -> None:
        """Do a step."""
        step = action.step
        if isinstance(step, StateUpdate):
            self._at_once(thread, action, step.writes)
        elif isinstance(step, UserMessage):
            self._at_once(thread, action, (), message=step.message)
        else:
            await self._work(thread, action)

    def _at_once(self, thread: Thread, action: Execute, updates: Sequence[Any], message: str | None = None) -> None:
        """A step without an effect that could be repeated: journalled with what follows."""
        step, key = action.step, thread.step_key()
        scope = thread.scope(action.scope)
        space = self._image.spaces[scope.path]
        with self._outcomes.attempt(step) as tried:
            view = space.view(scope.names)
            if message is not None:
                self._ledger.note(kinds.MESSAGE, text=view.text(message), step=key, task=thread.task_id)
            writes = [*view.writes(updates), *completion_writes(space, step.id)]
            self._outcomes.write(space, scope.path, writes)
        if tried.error is not None:
            self._outcomes.failed(thread, step, tried.error)
            return
        self._outcomes.completed(thread, step, key, ["completed"])
        thread.cursor = thread.cursor.after(Completed())

    async def _work(self, thread: Thread, action: Execute) -> None:
        """A step that reaches out into the world."""
        step, key = action.step, thread.step_key()
        while True:
            if is_for_agent(step, "server") or has_own_agent(step):
                self.give_feedback(key)
            attempt = await self.begin(thread, step, key)
            result: Any = None
            with self.redirectable(key) as scope, self._outcomes.attempt(step) as tried:
                try:
                    result = await HANDLERS[type(step)](step, self.context(thread, action, key, attempt))
                except AnswerNeeded as needed:
                    raise self._asks(key, thread, needed.question) from None
            error = tried.error
            self.keep_gate(key)
            if not scope.cancelled_caught:
                break
            self._ledger.fail(key, attempt, {"message": "redirected"})
        if error is None:
            self.complete(thread, action, key, attempt, result, owe=True)
        elif error.get("kind") == "budget" and self._gate.cost_left_usd() == 0:  # not its own budget, but the run's
            self._ledger.fail(key, attempt, error)
            self._gate.check_limits(step)
        else:
            self.fail(thread, step, key, attempt, error)

    def keep_gate(self, key: str) -> None:
        """RunEnds where this step has submitted a stage: what its agent said afterwards does not count."""
        if self.submitted is not None and self.submitted["step"] == key:
            raise RunEnds(Ending("paused", f"{self.submitted['stage']} waits for approval", waits=self.submitted))

    def _asks(self, key: str, thread: Thread, question: dict[str, Any]) -> RunEnds:
        """The run pauses for an answer."""
        waits = {**question, "step": key}
        self._ledger.note(kinds.QUESTION, **waits, task=thread.task_id)
        return RunEnds(Ending("paused", f"waits for an answer: {question['prompt']}", waits=waits))

    # --- done here or outside

    async def begin(self, thread: Thread, step: StepBase, key: str) -> int:
        """A step is about to be done; its attempt."""
        told = {"step": key, "id": step.id, "type": step.type, "task": thread.task_id}  # type: ignore[attr-defined]
        if step.description:
            told["description"] = step.description
        return await self._ledger.begin(key, **told)

    def complete(
        self,
        thread: Thread,
        action: Execute,
        key: str,
        attempt: int,
        result: Any,
        *,
        writes_result: bool = True,
        owe: bool = False,
    ) -> None:
        """A step was done: its result goes into the state, and both into the journal, together.

        `writes_result` is False where an agent outside gave none: it may have written the state itself. `owe`: as
        `Ledger.complete` says.
        """
        step = action.step
        scope = thread.scope(action.scope)
        space = self._image.spaces[scope.path]
        names = {"result": result}
        if isinstance(step, ApplyHints) and isinstance(result, dict):
            names["applied_count"] = result.get("applied_count")
        update = step.state_update if isinstance(step, Working) else None
        if update is not None and not writes_result and not update.has_value:
            update = None
        with self._outcomes.attempt(step) as tried:
            if too_deep(result):
                raise StepFailed(f"the result is nested more than {DEEPEST} levels deep", kind="output")
            writes = space.view(scope.names).with_names(**names).writes([update] if update else [])
            self._outcomes.write(space, scope.path, [*writes, *completion_writes(space, step.id)])
        if tried.error is not None:
            self.fail(thread, step, key, attempt, tried.error)
            return
        self._outcomes.completed(thread, step, key, ["completed"])
        if isinstance(step, UserInput):
            self._ledger.note(kinds.ANSWERED, step=key, value=result, task=thread.task_id)
        self._ledger.complete(key, attempt, result, owe=owe)
        self._image.settled(key)
        thread.cursor = thread.cursor.after(Completed())

    def fail(self, thread: Thread, step: StepBase, key: str, attempt: int, error: Error) -> None:
        """A step failed: the cursor decides what becomes of it."""
        error = self.around.mask.masked_value(error)  # an agent outside may have worded it
        self._outcomes.failed(thread, step, error)
        self._ledger.fail(key, attempt, error)

    # --- steering

    @contextmanager
    def redirectable(self, key: str) -> Iterator[anyio.CancelScope]:
        """What is done in here can be begun again with a text added: then the scope was cancelled."""
        with anyio.CancelScope() as scope:
            self._redirectable[key] = scope
            try:
                yield scope
            finally:
                self._redirectable.pop(key, None)

    def redirect(self, text: str, name: str | None = None) -> list[str]:
        """Have what agents do now done again with a text added: the steps that are. `name`: the text's, by which it is
        known when it comes again after a crash."""
        text = self.around.mask.masked_text(text)
        keys = sorted(self._processes.steps() & set(self._redirectable))
        for key in keys:
            self._image.redirected(key, text, name)
            self._ledger.note(kinds.REDIRECTED, step=key, text=text, name=name)
        self._ledger.commit(durable=True)
        for key in keys:
            self._processes.request_end("redirect", key)
            self._redirectable[key].cancel()
        return keys

    def give_feedback(self, key: str) -> None:
        """What was said at a resume goes to the agent that gets the next prompt, and to no other."""
        for text in list(self._image.unheard):
            self._image.heard(key, text)
            self._ledger.note(kinds.FEEDBACK, step=key, text=text)

    # --- what a step may use

    def context(self, thread: Thread, action: Execute, key: str, attempt: int) -> Context:
        """For one attempt at a step."""
        return self._context_of(thread, self._outcomes.view(thread, action.scope), key, attempt)

    def task_context(self, thread: Thread) -> Context:
        """For the agent that does a whole task."""
        view = self._image.spaces[thread.path].view(thread.names)
        return self._context_of(thread, view, thread.key, 1)

    def _context_of(self, thread: Thread, view: View, key: str, attempt: int) -> Context:
        processes, task_id = self._processes, thread.task_id
        return Context(
            services=self.around,
            view=view,
            key=key,
            attempt=attempt,
            task_id=task_id,
            additions=tuple(self._image.additions.get(key, ())),
            cost_left_usd=self._gate.cost_left_usd(),
            start=lambda launch, name: processes.start(launch, name, key, task_id),
            log_path=processes.log_path,
            emit=lambda kind, data: self._tell(kind, {"step": key, "task": task_id, **data}),
            spend=lambda cost, tokens: processes.spend(key, cost, tokens),
        )


# What came of a step: the cursor is told, the state is written, the journal has both, together.


_LONGEST_SAID = 300


@dataclass(slots=True)
class Attempt:
    """Something that is tried; `error` where it failed."""

    error: Error | None = None


class Outcomes:
    """The books of one run."""

    def __init__(self, image: Run, ledger: Ledger, around: RunServices) -> None:
        self.image = image
        self.ledger = ledger
        self._around = around

    @contextmanager
    def attempt(self, step: StepBase) -> Iterator[Attempt]:
        """What is raised in here is the step's error, whether anybody foresaw it or not: the run goes on from there.

        Not so the end of the run, and the loss of the journal: nothing in a workflow may catch these.
        """
        tried = Attempt()
        try:
            yield tried
        except Exception as error:
            cause = unwrapped(error)
            if isinstance(cause, StoreError | RunEnds):
                raise cause from None
            if self.ledger.lost is not None:  # whatever followed from that
                raise self.ledger.lost from None
            if not isinstance(cause, SidecarError):
                self.keep_traceback(cause)
            tried.error = self._around.mask.masked_value(error_of(cause, step))

    def keep_traceback(self, error: Exception) -> None:
        """What nobody foresaw, for whoever mends it: people get one line."""
        run_log.keep_traceback(self._around.root, self._around.run_id, error, self._around.mask)

    def completed(self, thread: Thread, step: StepBase, key: str, outcome: list[Any]) -> None:
        """Its writes are done. The caller tells the cursor."""
        self.ledger.note(kinds.STEP_COMPLETED, thread=thread.key, **_told(thread, step, key), outcome=outcome)

    def failed(self, thread: Thread, step: StepBase, error: Error) -> None:
        """The current step failed: the cursor decides what becomes of it."""
        self._failed(thread, step, error, None)

    def failed_around(self, thread: Thread, level: int, error: Error) -> None:
        """A step failed that has the current one inside it."""
        self._failed(thread, thread.cursor.state.frames[level].step, error, level)

    def _failed(self, thread: Thread, step: StepBase, error: Error, around: int | None) -> None:
        error = typed(error)
        before = thread.cursor
        level = len(before.state.frames) - 1 if around is None else around
        key, path = thread.step_key(before.state.trimmed(level + 1)), thread.space(before.state.path(level))
        told_cursor = ActionFailed(error) if around is None else EnclosingStepFailed(level, error)
        after, asked = self._judged(thread, before.after(told_cursor))
        again = _tried_again(before, after)
        self._keep_failure(path, step, error, again=again, key=key)
        told = {**_told(thread, step, key), "error": error, "will_retry": again}
        outcome = ["failed", error] if around is None else ["failed_around", error, level]
        self.ledger.note(kinds.STEP_FAILED, thread=thread.key, **told, outcome=outcome)
        for each in asked:
            self.ledger.note(kinds.EVALUATED, **each)
        thread.error = error
        self.image.move(thread, after)

    def settle(self, thread: Thread, action: ApplyErrorUpdate) -> None:
        """Write what a failed step leaves behind."""
        state = thread.cursor.state
        assert state.failure is not None
        step, key = action.step, thread.step_key(state.trimmed(state.failure.level + 1))
        scope = thread.scope(action.scope)
        space = self.image.spaces[scope.path]
        view = space.view(scope.names)
        with self.attempt(step) as tried:
            writes: list[Write] = []
            if step.error_state_update is not None:
                writes += view.with_names(error=action.error, result=action.error).writes([step.error_state_update])
            update = step.state_update if isinstance(step, Working) else None
            if action.continues and step.has_fallback and update is not None:
                fallback = view.value(step.fallback_value)
                writes += view.with_names(result=fallback, applied_count=fallback).writes([update])
            self.write(space, scope.path, writes)
        if (told := tried.error) is not None:
            facts = {**_told(thread, step, key), "error": told, "will_retry": False}
            self.ledger.note(kinds.STEP_FAILED, thread=thread.key, **facts, outcome=["failed", told])
            thread.error = told
            self.image.move(thread, thread.cursor.after(ActionFailed(told)))
            return
        self.ledger.note(kinds.ERROR_HANDLED, thread=thread.key, step=key, id=step.id, outcome=["completed"])
        self.image.move(thread, thread.cursor.after(Completed()))

    # --- steps whose tasks decide

    def tasks_begin(self, thread: Thread, step: StepBase) -> None:
        """A `parallel_foreach` begins, or goes on with what is left of it."""
        attempt = thread.cursor.state.top.failures + 1
        self.ledger.note(kinds.STEP_STARTED, **_told(thread, step, thread.step_key()), attempt=attempt)

    def tasks_over(self, thread: Thread, step: StepBase, before: Cursor, error: Error | None) -> None:
        """The tasks of the step that the thread stood at are over, well or not. The cursor knows already."""
        key, path = thread.step_key(before.state), thread.space(before.state.path(len(before.state.frames) - 1))
        if error is None:
            space = self.image.spaces[path]
            with self.attempt(step) as tried:
                self.write(space, path, completion_writes(space, step.id))
            self._tell_not_kept(tried, key)
            self.ledger.note(kinds.STEP_COMPLETED, **_told(thread, step, key))
            return
        error = typed(error)
        after, asked = self._judged(thread, thread.cursor)
        self.image.move(thread, after)
        again = _tried_again(before, after)
        self._keep_failure(path, step, error, again=again, key=key)
        self.ledger.note(kinds.STEP_FAILED, **_told(thread, step, key), error=error, will_retry=again)
        for each in asked:
            self.ledger.note(kinds.EVALUATED, **each)

    # --- the state

    def write(self, space: WorkflowState, path: Path, writes: list[Write]) -> None:
        """A transaction of a state; the event that is noted next is what it belongs to."""
        if writes:
            space.update(writes)
            self.ledger.wrote(path, [[write.path, write.value, write.operation] for write in writes])

    def view(self, thread: Thread, scope: Scope) -> View:
        """What an expression of a thread's step sees."""
        scope = thread.scope(scope)
        return self.image.spaces[scope.path].view(scope.names)

    def _judged(self, thread: Thread, cursor: Cursor) -> tuple[Cursor, list[dict[str, Any]]]:
        """The cursor when it has decided about a failure: whether the step is tried again belongs to its books."""
        asked = []
        while cursor.state.failure is not None and isinstance(action := cursor.action, Evaluate):
            with self.attempt(action.step) as tried:
                found = self.view(thread, action.scope).value(moves.field_value(action.step, action.field, {}))
                outcome: list[Any] = ["answer", found]
                told: Answer | ActionFailed = Answer(found)
            if tried.error is not None:
                outcome, told = ["failed", tried.error], ActionFailed(tried.error)
            asked.append({"thread": thread.key, "step": action.step.id, "field": action.field, "outcome": outcome})
            cursor = cursor.after(told)
        return cursor, asked

    def _keep_failure(self, path: Path, step: StepBase, error: Error, *, again: bool, key: str) -> None:
        space = self.image.spaces[path]
        with self.attempt(step) as tried:
            self.write(space, path, failure_writes(space, step.id, error, again=again))
        self._tell_not_kept(tried, key)

    def _tell_not_kept(self, tried: Attempt, key: str) -> None:
        """Books that cannot be kept change nothing about the step: a field computed from them may have failed."""
        if tried.error is not None:
            problem = tried.error["message"]
            self.ledger.note(kinds.WARNING, text=f"what became of step {key} is not in the state: {problem}")


def error_of(error: Exception, step: StepBase) -> Error:
    """What `error` is in expressions."""
    if isinstance(error, StepFailed):
        return typed({"step": step.id, **error.error})
    known: Error = {"message": str(error), "step": step.id, "type": type(error).__name__}
    if isinstance(error, ExpressionError):
        known |= {"kind": error.kind, "line": error.line, "column": error.column}
    if not isinstance(error, SidecarError):
        known |= {"message": unforeseen(error), "kind": "internal_error"}
    return typed(known)


def typed(error: Error) -> Error:
    """With a `type`, whoever made it: its kind where nothing better is known."""
    return {"type": error.get("kind") or "failed", **error}


def unforeseen(error: Exception) -> str:
    """One line for people about an error that is no word of ours."""
    said = " ".join(str(error).split())[:_LONGEST_SAID]
    return f"unexpected {type(error).__name__}{f': {said}' if said else ''} (run.log has the traceback)"


def _told(thread: Thread, step: StepBase, key: str) -> dict[str, Any]:
    return {"step": key, "id": step.id, "type": step.type, "task": thread.task_id}  # type: ignore[attr-defined]


def _tried_again(before: Cursor, after: Cursor) -> bool:
    """Whether the cursor went back to the beginning of a step that failed, the same or one around it."""
    if after.is_over or not after.state.frames or after.state.failure is not None:
        return False
    level = len(after.state.frames) - 1
    return level < len(before.state.frames) and after.state.top.failures > before.state.frames[level].failures


# What the engine itself writes into a state for workflows that declare it: what is done, what failed, how often.


def completion_writes(space: WorkflowState, step_id: str) -> list[Write]:
    """A step is done."""
    if "steps_completed" not in space.kept or step_id in _list(space, "steps_completed"):
        return []
    return [Write(("raw", "steps_completed"), step_id, "append")]


def failure_writes(space: WorkflowState, step_id: str, error: Error, *, again: bool) -> list[Write]:
    """A step failed; `again`: it is tried once more."""
    writes: list[Write] = []
    if "last_error" in space.kept:
        writes.append(Write(("raw", "last_error"), error))
    if again:
        if "retry_counts" in space.kept:
            writes.append(Write(("raw", "retry_counts", step_id), 1, "increment"))
        return writes
    if "steps_failed" in space.kept and step_id not in _list(space, "steps_failed"):
        writes.append(Write(("raw", "steps_failed"), step_id, "append"))
    collection = space.definition.workflow.error_handling.error_collection
    if collection is not None and collection.enabled:
        path = space.view({}).path(collection.state_path)
        kept = error if collection.include_stack_traces else _without_place(error)
        writes.append(Write(path, kept, "append"))
    elif "workflow_errors" in space.kept:
        writes.append(Write(("raw", "workflow_errors"), _without_place(error), "append"))
    return writes


def _list(space: WorkflowState, name: str) -> list[Any]:
    value = space.state.raw.get(name)
    return value if isinstance(value, list) else []


def _without_place(error: Error) -> Error:
    return {key: value for key, value in error.items() if key not in ("line", "column")}


# Which steps an agent has to do, and whether there is one among the steps of a task.


_BY_DRIVER: dict[Driver, tuple[type[StepBase], ...]] = {
    "server": (AgentStep, ApplyHints),
    "agent": (AgentStep, ApplyHints, AgentShellCommand, McpCall, UserInput, UserMessage),
}


def is_for_agent(step: StepBase, driver: Driver) -> bool:
    """Whether the step itself is for the agent that drives the run, or does its task. Steps that hold others never are:
    `needs_agent` looks into them. One that names its agent is for that one, where the sidecar starts the agents."""
    return isinstance(step, _BY_DRIVER[driver]) and not (driver == "server" and has_own_agent(step))


def has_own_agent(step: StepBase) -> bool:
    """Whether the step says which agent does it."""
    return isinstance(step, AgentStep | ApplyHints) and step.agent is not None


def needs_agent(steps: Steps, tasks: Mapping[str, SubAgentTask], includes: Includes, driver: Driver) -> bool:
    """Whether a step for an agent is among these, or inside them, whichever way the run will take.

    `tasks` are those that `parallel_foreach` finds in the definition of the steps.
    """
    return _Search(includes, driver, set()).finds(steps, _Place(None, tasks))


def of_task(task: SubAgentTask) -> Steps:
    """All the steps of a task, those for its errors too: whoever does the task does them."""
    return (*task.steps, *(task.error_handling.cleanup_on_error or ()))


@dataclass(frozen=True, slots=True)
class _Place:
    """The definition that steps stand in; None: the first."""

    definition: Definition | None
    tasks: Mapping[str, SubAgentTask]

    @property
    def name(self) -> str:
        return "" if self.definition is None else self.definition.loaded_from


@dataclass(frozen=True, slots=True)
class _Search:
    includes: Includes
    driver: Driver
    seen: set[tuple[str, str]]  # tasks and workflows, which can lead to themselves

    def finds(self, steps: Steps, place: _Place) -> bool:
        return any(self._in_step(step, place) for step in steps)

    def _in_step(self, step: StepBase, place: _Place) -> bool:
        if is_for_agent(step, self.driver):
            return True
        if isinstance(step, ParallelForEach):
            return self._in_task(step.sub_agent_task, place)
        if isinstance(step, IncludeWorkflow):
            return self._in_included(step.workflow, place)
        return any(self.finds(children, place) for children in branches(step).values())

    def _in_task(self, name: str, place: _Place) -> bool:
        task = place.tasks.get(name)
        if task is None or not self._is_new(place.name, name):
            return False
        return self.finds(of_task(task), place)

    def _in_included(self, name: str, place: _Place) -> bool:
        try:
            found = self.includes(place.definition, name)
        except SidecarError:
            return False  # the step fails when its turn comes, and no agent can help it
        if not self._is_new(found.loaded_from, ""):
            return False
        return self.finds(found.workflow.steps or (), _Place(found, found.tasks))

    def _is_new(self, where: str, name: str) -> bool:
        known = (where, name) in self.seen
        self.seen.add((where, name))
        return not known
