"""The program counter of a run: which action comes next, and where the run stands after its outcome.

    cursor = Cursor.start(StepList.of_workflow(workflow))
    while not cursor.is_over:
        cursor = cursor.after(do(cursor.action))

Pure functions from one state to the next. At any point `to_json` saves a cursor, `restore` loads it with the same
action, and `resumed` takes it back to the last boundary, for a run that was stopped, aborted, interrupted, or failed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sidecar.engine.cursor import position
from sidecar.engine.cursor.actions import (
    Action,
    ActionFailed,
    Answer,
    ApplyErrorUpdate,
    Boundary,
    Completed,
    Delay,
    EnclosingStepFailed,
    Evaluate,
    Execute,
    FieldName,
    Finished,
    Include,
    Included,
    Leave,
    LimitReached,
    Outcome,
    Parallel,
    Passed,
    TaskEnded,
)
from sidecar.engine.cursor.position import (
    Batch,
    Branch,
    Error,
    Failure,
    Frame,
    Json,
    PlannedEnd,
    Scope,
    State,
    StepList,
    StepListAt,
)
from sidecar.model import duration
from sidecar.model.language import has_template
from sidecar.model.steps import (
    Break,
    Conditional,
    Continue,
    Exit,
    Fallible,
    ForEach,
    IncludeWorkflow,
    Loop,
    ParallelForEach,
    StepBase,
    Steps,
    While,
)

LONGEST_DELAY_S = 86400.0  # exponential delays double up to one day
# A resume in the middle of one of these phases goes back to the boundary before the step. The others are boundaries
# themselves, or can be repeated without harm.
_BACK_TO_BOUNDARY = ("ask", "run", "include", "parallel", "delay")


class Cursor:
    """Where a run stands, and `action`: what is to be done now. Immutable: `after` gives the next one."""

    __slots__ = ("action", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.action = _action(state)  # read several times, so computed once

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cursor) and self.state == other.state

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def start(cls, step_list: StepList) -> Cursor:
        """Before the first step."""
        return cls(_enter(State(), step_list.steps, "steps", step_list))

    @classmethod
    def restore(cls, data: dict[str, Json], step_list_at: StepListAt) -> Cursor:
        """From JSON. `step_list_at` gives the definitions: of () the run's own, of a path an included one."""
        return cls(position.load(data, step_list_at))

    def to_json(self) -> dict[str, Json]:
        """Plain JSON, at any point."""
        return position.dump(self.state)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended: no outcome can follow."""
        return isinstance(self.action, Finished | LimitReached)

    def after(self, outcome: Outcome) -> Cursor:
        """The cursor after an outcome of its action. TypeError where the outcome does not belong to the action."""
        return Cursor(_after(self.state, self.action, outcome))

    def resumed(self, *, reset_error_counts: bool = False) -> Cursor:
        """At the last boundary, with everything that is done still done. A completed run stays as it is."""
        state = self.state
        batches = {number: replace(batch, error=None) for number, batch in state.batches.items()}
        if state.frames:
            state = state._replace(ending=None, failure=None)
            if state.frames[-1].phase in _BACK_TO_BOUNDARY:
                state = with_top(state, phase="boundary", answers={})
        if reset_error_counts:
            batches = {number: replace(batch, failures={}) for number, batch in batches.items()}
            state = state._replace(frames=tuple(_without_failures(frame) for frame in state.frames))
        return Cursor(state._replace(batches=batches))

    @property
    def background(self) -> tuple[Parallel, ...]:
        """Tasks that run beside the steps (`wait_for_all: false`), those that are done left out."""
        return tuple(_parallel(batch) for batch in self.state.batches.values() if batch.background and batch.todo)

    @property
    def steps(self) -> tuple[str, ...]:
        """The ids of the steps that the run is in, the top-level one first."""
        return tuple(frame.step.id for frame in self.state.frames)


def _without_failures(frame: Frame) -> Frame:
    # The number of failures identifies an attempt at an included workflow: after a reset an old would count as done.
    return frame if isinstance(frame.step, IncludeWorkflow) else frame._replace(failures=0)


# --- the action of a state


def _action(state: State) -> Action:
    if state.ending is not None:
        return _end_action(state, state.ending)
    if state.failure is not None:
        return _failure_action(state, state.failure)
    frame = state.frames[-1]
    step, phase = frame.step, frame.phase
    if phase in ("boundary", "iteration"):
        return Boundary("stop-and-abort" if _can_stop_here(state) else "abort-only", step)
    if phase == "delay":
        return Delay(step, frame.delay_s)
    if phase == "parallel":
        return _parallel(_current_batch(state))
    sees = scope(state, len(state.frames) - 1)
    if phase == "run":
        return Execute(step, sees, frame.failures + 1)
    if phase in ("ask", "check"):
        field = "condition" if phase == "check" else _missing_field(step, _fields_before(step), frame.answers)
        assert field is not None
        return Evaluate(step, field, field_value(step, field), sees)
    assert isinstance(step, IncludeWorkflow)
    return Leave(step, sees) if phase == "leave" else Include(step, sees, frame.failures + 1)


def _end_action(state: State, ending: PlannedEnd) -> Action:
    for batch in state.batches.values():
        if batch.background and batch.todo:
            return _parallel(batch)  # a run ends after its last task
    if ending.status == "limit":
        step = state.frames[-1].step
        return LimitReached(step, field_value(step, "max_iterations", state.frames[-1].answers))
    error = next((batch.error for batch in state.batches.values() if batch.error is not None), None)
    if ending.status == "completed" and error is not None:
        return Finished("failed", str(error.get("message", "")), error)
    return Finished(ending.status, ending.message, ending.error)


def _failure_action(state: State, failure: Failure) -> Action:
    step, sees = state.frames[failure.level].step, scope(state, failure.level)
    if failure.after_update is not None:
        assert isinstance(step, Fallible)
        return ApplyErrorUpdate(step, failure.error, failure.after_update == "continue", sees)
    field = _missing_field(step, _fields_on_failure(step), failure.answers)
    assert field is not None
    return Evaluate(step, field, field_value(step, field), sees)


def _can_stop_here(state: State) -> bool:
    """Whether this is before a top-level step, or before an iteration of a loop that is in no other loop."""
    step_list = state.frames[0].step_list
    if step_list is None or not step_list.stoppable:
        return False
    if state.frames[-1].phase == "boundary":
        return len(state.frames) == 1
    return not any(isinstance(frame.step, Loop) for frame in state.frames[:-1])


def _parallel(batch: Batch) -> Parallel:
    return Parallel(batch.step, batch.number, batch.items, batch.todo, batch.max_parallel, batch.scope, batch.stoppable)


# --- the state after an outcome


def _after(state: State, action: Action, outcome: Outcome) -> State:
    match outcome:
        case Passed() if isinstance(action, Boundary):
            return _begin_step(state) if state.frames[-1].phase == "boundary" else _begin_iteration(state)
        case Completed() if isinstance(action, Execute | Leave):
            return advance(state)
        case Answer() if isinstance(action, Evaluate):
            return _answered(state, action, outcome.value)
        case Included() if isinstance(action, Include):
            return _enter(state, outcome.step_list.steps, "steps", outcome.step_list)
        case Completed() if isinstance(action, Delay):
            return with_top(state, phase="boundary")
        case Completed() if isinstance(action, ApplyErrorUpdate):
            return _continue_after_failed(state) if action.continues else _propagate(state, action.error)
        case TaskEnded():
            return _task_ended(state, outcome)
        case EnclosingStepFailed() if state.ending is None:
            return _fail(state, outcome.error, outcome.level)
        case ActionFailed() if state.ending is None and not isinstance(action, Boundary | Delay):
            return _fail(state, outcome.error) if state.failure is None else _propagate(state, outcome.error)
    raise TypeError(f"{type(outcome).__name__} is no outcome of {type(action).__name__}")


def _answered(state: State, action: Evaluate, answer: Json) -> State:
    failure = state.failure
    try:
        answer = checked_answer(action.step, action.field, answer)
    except ValueError as error:
        problem = {"message": str(error)}
        return _fail(state, problem) if failure is None else _propagate(state, problem)
    if failure is not None:
        known = replace(failure, answers={**failure.answers, action.field: answer})
        return _handle_failure(state._replace(failure=known))
    if state.frames[-1].phase == "check":
        return _condition_checked(state, answer)
    return _begin_step(with_top(state, answers={**state.frames[-1].answers, action.field: answer}))


# --- parts of a state


def with_top(state: State, **changes: Any) -> State:
    """The state with changes in the frame of the current step."""
    return _with_frames(state, *state.frames[:-1], state.frames[-1]._replace(**changes))


def _with_frames(state: State, *frames: Frame) -> State:
    return State(frames, *state[1:])


def _current_batch(state: State) -> Batch:
    number = state.frames[-1].batch
    assert number is not None
    return state.batches[number]


def _with_batch(state: State, batch: Batch) -> State:
    """The state with a new or a changed batch."""
    return state._replace(batches={**state.batches, batch.number: batch})


def without_current_batch(state: State) -> State:
    """The state without the tasks of the current step, unless they run in the background."""
    return with_top(state, batch=None).trimmed(len(state.frames))


def scope(state: State, level: int) -> Scope:
    """What the current step of a frame sees. An included workflow sees nothing of the loops around its step."""
    frames = state.frames
    first = level
    while frames[first].branch != "steps":
        first -= 1
    names: dict[str, Json] = {}
    for at in range(first, level + 1):
        frame = frames[at]
        if isinstance(frame.step, Loop) and (
            frame.phase == "inside" or (at == level and frame.phase in ("check", "iteration"))
        ):
            names.update(_loop_names(frame))
    return Scope(state.path(first) if first else (), names)


def _loop_names(frame: Frame) -> dict[str, Json]:
    if isinstance(frame.step, ForEach):
        items = frame.answers["items"]
        loop = {"index": frame.index, "length": len(items)}
        return {"item": items[frame.index], "index": frame.index, "loop": loop}
    return {"loop": {"index": frame.index}}


# --- from step to step


def _enter(state: State, steps: Steps, branch: Branch, step_list: StepList | None = None) -> State:
    """Begin a list of steps inside the current step; an empty one is over at once."""
    if not steps:
        return _list_done(state, branch)
    outer = (*state.frames[:-1], state.frames[-1]._replace(phase="inside")) if state.frames else ()
    return _with_frames(state, *outer, Frame(steps, 0, steps[0], branch, step_list))


def advance(state: State) -> State:
    """On from the current step, which is over."""
    frame = state.frames[-1]
    outer, steps, place = state.frames[:-1], frame.steps, frame.place + 1
    if place < len(steps):
        return _with_frames(state, *outer, Frame(steps, place, steps[place], frame.branch, frame.step_list))
    return _list_done(_with_frames(state, *outer), frame.branch)


def _list_done(state: State, branch: Branch) -> State:
    """On from a list of steps that is over, in the step that contains it."""
    if not state.frames:
        return state._replace(ending=PlannedEnd("completed"))
    if branch == "body":
        return _before_iteration(state, state.frames[-1].index + 1)
    if branch == "steps":
        return with_top(state, phase="leave")
    return advance(state)


def _begin_step(state: State) -> State:
    """Begin the current step, once all fields that it needs for that are known."""
    frame = state.frames[-1]
    step = frame.step
    if frame.batch is None and _missing_field(step, _fields_before(step), frame.answers) is not None:
        return with_top(state, phase="ask")
    if isinstance(step, Conditional):
        if field_value(step, "condition", frame.answers):
            return _enter(state, step.then, "then")
        return _enter(state, step.else_ or (), "else")
    if isinstance(step, Loop):
        return _before_iteration(state, frame.index)
    if isinstance(step, Break | Continue):
        return _jump(state, step)
    if isinstance(step, Exit):
        return _exit(state, step)
    assert isinstance(step, Fallible)
    counted = state._replace(transitions=state.transitions + 1)
    if isinstance(step, ParallelForEach):
        return _begin_batch(counted, step)
    return with_top(counted, phase="include" if isinstance(step, IncludeWorkflow) else "run")


def _exit(state: State, step: Exit) -> State:
    message = field_value(step, "message", state.frames[-1].answers)
    if step.status == "success":
        return state._replace(frames=(), ending=PlannedEnd("completed", message, exited=True))
    return state._replace(ending=PlannedEnd("failed", message, {"message": message, "step": step.id}, exited=True))


# --- loops


def _before_iteration(state: State, index: int) -> State:
    """Before the iteration `index` of the current loop, or on from the loop where there is none."""
    step = state.frames[-1].step
    if isinstance(step, ForEach):
        more = index < len(state.frames[-1].answers["items"])
        return with_top(state, phase="iteration", index=index) if more else advance(state)
    assert isinstance(step, While)
    state = with_top(state, phase="check", index=index)
    return state if _is_evaluated(step, "condition") else _condition_checked(state, bool(step.condition))


def _condition_checked(state: State, holds: bool) -> State:
    """On from the condition of a `while`."""
    step, answers = state.frames[-1].step, state.frames[-1].answers
    if not holds:
        return advance(state)
    if _missing_field(step, _fields_before(step), answers) is not None:
        return with_top(state, phase="ask")  # after a resume with a changed definition that has a template there
    if state.frames[-1].index >= field_value(step, "max_iterations", answers):
        return state._replace(ending=PlannedEnd("limit"))
    return with_top(state, phase="iteration")


def _begin_iteration(state: State) -> State:
    loop = state.frames[-1].step
    assert isinstance(loop, Loop)
    return _enter(state._replace(iterations=state.iterations + 1), loop.inner, "body")


def _jump(state: State, step: Break | Continue) -> State:
    """To the innermost loop of the same step list: past it, or to its next iteration."""
    for level in range(len(state.frames) - 1, 0, -1):
        branch = state.frames[level].branch
        if branch == "steps":
            break
        if branch == "body":
            loop = state.trimmed(level)
            return advance(loop) if isinstance(step, Break) else _before_iteration(loop, loop.frames[-1].index + 1)
    return _fail(state, {"message": f"`{step.type}` of step {step.id!r} is outside of any loop"})


# --- tasks


def _begin_batch(state: State, step: ParallelForEach) -> State:
    """Begin the tasks, or go on with those that an earlier attempt has not done."""
    number = state.frames[-1].batch
    if number is None:
        number, answers, step_list = state.batches_begun, state.frames[-1].answers, state.frames[0].step_list
        batch = Batch(
            number,
            step,
            tuple(answers["items"]),
            field_value(step, "max_parallel", answers),
            field_value(step, "max_retries", answers) if step.on_sub_agent_error.strategy == "retry_failed" else 0,
            step_list is not None and step_list.stoppable,
            scope(state, len(state.frames) - 1),
        )
        state = state._replace(batches_begun=number + 1)
    else:
        batch = state.batches[number]
        if batch.error is not None:  # the step is tried again as a whole, and so are its tasks
            batch = replace(batch, error=None, failures={})
    return _check_batch(_with_batch(with_top(state, phase="parallel", batch=number, answers={}), batch))


def _task_ended(state: State, outcome: TaskEnded) -> State:
    """A task is over. Where its step has failed meanwhile, a completed task still counts for the next attempt, and
    another failure changes nothing."""
    batch = state.batches.get(outcome.batch)
    if batch is None or outcome.index in batch.done or (outcome.error is not None and batch.error is not None):
        return state
    after = _batch_after(batch, outcome)
    state = _with_batch(state, after)
    if batch.background:
        over = not after.todo and (after.error is None or after.step.on_error == "continue")
        others = {number: each for number, each in state.batches.items() if number != batch.number}
        return state._replace(batches=others) if over else state
    waited_for = state.ending is None and state.failure is None and state.frames[-1].phase == "parallel"
    return _check_batch(state) if waited_for else state


def _batch_after(batch: Batch, outcome: TaskEnded) -> Batch:
    index, strategy = outcome.index, batch.step.on_sub_agent_error.strategy
    if outcome.error is None or strategy == "continue":
        return replace(batch, done=batch.done | {index})
    failures = batch.failures.get(index, 0)
    if strategy == "retry_failed" and failures < batch.max_retries:
        return replace(batch, failures={**batch.failures, index: failures + 1})
    return replace(batch, error={**outcome.error, "task": f"{batch.step.id}.{index}"})


def _check_batch(state: State) -> State:
    """On from the current `parallel_foreach` where its tasks allow it."""
    batch = _current_batch(state)
    if batch.error is not None:
        return _fail(state, batch.error)
    if not batch.todo:
        return advance(without_current_batch(state))
    if batch.done and not batch.step.wait_for_all:
        return advance(_with_batch(state, replace(batch, background=True)))
    return state


# --- failure: the policy of the step decides, then that of its workflow, then the step that includes the workflow


def _fail(state: State, error: Error, level: int | None = None) -> State:
    """The step at `level` failed, by default the current one."""
    return _handle_failure(state._replace(failure=Failure(len(state.frames) - 1 if level is None else level, error)))


def _handle_failure(state: State) -> State:
    """Retry the failed step, continue after it, or propagate its error, once all fields of its policy are known."""
    failure = state.failure
    assert failure is not None
    step = state.frames[failure.level].step
    if not isinstance(step, Fallible):
        return _propagate(state, failure.error)
    if _missing_field(step, _fields_on_failure(step), failure.answers) is not None:
        return state
    continues = step.on_error == "continue"
    if step.on_error == "retry":
        failures = state.frames[failure.level].failures + 1
        if failures <= field_value(step, "retry_count", failure.answers):
            delay_s = field_value(step, "retry_delay", failure.answers)
            return _retry(state, exponential_s(delay_s, failures) if step.retry_backoff == "exponential" else delay_s)
        continues = step.has_fallback
    if step.error_state_update is not None or (continues and step.has_fallback):
        return state._replace(failure=replace(failure, after_update="continue" if continues else "fail"))
    return _continue_after_failed(state) if continues else _propagate(state, failure.error)


def exponential_s(delay_s: float, failures: int) -> float:
    """The delay after so many failures in a row: doubled each time, but not beyond a day."""
    # 2.0 ** 1024 is an OverflowError, and the longest delay is reached long before that.
    return max(delay_s, min(delay_s * 2.0 ** min(failures - 1, 64), LONGEST_DELAY_S))


def _retry(state: State, delay_s: float) -> State:
    """To the beginning of the failed step; of a `parallel_foreach` the tasks that are done stay done."""
    state = _at_failed_step(state)
    phase: position.Phase = "delay" if delay_s > 0 else "boundary"
    return with_top(state, phase=phase, failures=state.frames[-1].failures + 1, delay_s=delay_s, answers={})


def _continue_after_failed(state: State) -> State:
    return advance(without_current_batch(_at_failed_step(state)))


def _propagate(state: State, error: Error) -> State:
    """The failed step does not handle its error: its workflow does, or else the step that includes the workflow."""
    assert state.failure is not None
    first = max(level for level in range(state.failure.level + 1) if state.frames[level].branch == "steps")
    step_list = state.frames[first].step_list
    assert step_list is not None
    if step_list.continue_on_error:
        return _continue_after_failed(state)
    if first > 0:
        return _fail(state, error, first - 1)
    # The frames stay as they are: a resume repeats the step that failed.
    return state._replace(failure=None, ending=PlannedEnd("failed", str(error.get("message", "")), error))


def _at_failed_step(state: State) -> State:
    assert state.failure is not None
    return state.trimmed(state.failure.level + 1)._replace(failure=None)


# --- fields that have to be evaluated before the cursor can go on


def _fields_before(step: StepBase) -> tuple[FieldName, ...]:
    """The fields that are needed to begin a step."""
    if isinstance(step, Conditional):
        return ("condition",)
    if isinstance(step, While):
        return ("max_iterations",)
    if isinstance(step, ForEach):
        return ("items",)
    if isinstance(step, ParallelForEach):
        retries = step.on_sub_agent_error.strategy == "retry_failed"
        return ("items", "max_parallel", "max_retries") if retries else ("items", "max_parallel")
    return ("message",) if isinstance(step, Exit) else ()


def _fields_on_failure(step: StepBase) -> tuple[FieldName, ...]:
    """The fields that are needed to decide what follows the failure of a step."""
    return ("retry_count", "retry_delay") if isinstance(step, Fallible) and step.on_error == "retry" else ()


def _missing_field(step: StepBase, fields: tuple[FieldName, ...], answers: Mapping[str, Json]) -> FieldName | None:
    return next((field for field in fields if field not in answers and _is_evaluated(step, field)), None)


def _is_evaluated(step: StepBase, field: FieldName) -> bool:
    """Whether a field has to be evaluated: a condition needs no braces, and a list may contain templates."""
    written = field_value(step, field)
    if field == "condition":
        return isinstance(written, str)
    return field == "items" or (isinstance(written, str) and has_template(written))


def field_value(step: StepBase, field: FieldName, answers: Mapping[str, Json] = position.EMPTY) -> Any:
    """The value of a field: its answer, or else its value in the definition."""
    if field in answers:
        return answers[field]
    if field == "max_retries":
        assert isinstance(step, ParallelForEach)
        return step.on_sub_agent_error.max_retries
    return getattr(step, "retry_delay_s" if field == "retry_delay" else field)


def checked_answer(step: StepBase, field: FieldName, answer: Json) -> Json:
    """An answer as the cursor keeps it. ValueError where the field cannot have that value."""
    if field == "retry_delay":
        try:
            return duration.seconds(answer)
        except ValueError as error:
            raise ValueError(f"`{field}` of step {step.id!r}: {error}") from None
    if field == "condition":
        fits, expected = isinstance(answer, bool), "true or false"
    elif field == "items":
        fits, expected = isinstance(answer, list), "a list"
    elif field == "message":
        fits, expected = isinstance(answer, str), "a text"
    else:
        least = 0 if field in ("retry_count", "max_retries") else 1
        fits = isinstance(answer, int) and not isinstance(answer, bool) and answer >= least
        expected = f"a whole number, {least} or more"
    if not fits:
        shown = repr(answer) if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
        shown = shown if len(shown) <= 64 else shown[:64] + "…"
        raise ValueError(f"`{field}` of step {step.id!r} has to be {expected}, not {shown}")
    return answer
