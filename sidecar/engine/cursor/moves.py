"""A pure, serialisable program counter: it says what is to be done next, and is told what came of it.

    cursor = Cursor.start(StepList.of_workflow(workflow))
    while not cursor.is_over:
        cursor = cursor.after(do(cursor.action))

At any point `to_json` writes it down, `restore` brings it back to the same action, and `resumed` takes it to the
last boundary, for a run that was stopped, aborted, interrupted, or that failed.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from sidecar.engine.cursor import position
from sidecar.engine.cursor.actions import (
    ActionFailed,
    Answer,
    ApplyErrorUpdate,
    Boundary,
    Completed,
    Delay,
    EnclosingStepFailed,
    Evaluate,
    Execute,
    Finished,
    Include,
    Included,
    Leave,
    LimitReached,
    Parallel,
    Passed,
    Stopped,
    TaskCompleted,
    TaskFailed,
)
from sidecar.engine.cursor.position import Batch, Failure, Frame, PlannedEnd, State, inner
from sidecar.model import duration
from sidecar.model.language import has_template
from sidecar.model.steps import Exit, Fallible
from sidecar.model.steps_control import (
    Break,
    Conditional,
    Continue,
    ForEach,
    IncludeWorkflow,
    Loop,
    ParallelForEach,
    While,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.engine.cursor.actions import Action, FieldName, Outcome
    from sidecar.engine.cursor.position import Batch, Branch, Error, Frame, Json, PartAt, Phase, State, StepList
    from sidecar.model.steps import Fallible, StepBase
    from sidecar.model.steps_control import Steps


# Where a run goes back to when it is resumed in the middle of a step. The phases that are missing are boundaries
# themselves, or are asked again without harm.
_BACK_TO_BOUNDARY = ("ask", "run", "include", "parallel", "delay")


@dataclass(frozen=True, slots=True)
class LoopCount:
    """How far a loop has come: the iteration counts from 1, 0 before the first; `of` where the number is known."""

    step: str
    iteration: int
    of: int | None


class Cursor:
    """Where a run stands, and `action`: what is to be done now. Immutable: `after` gives the next one."""

    __slots__ = ("action", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.action = _action(state)  # asked for several times, so kept

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cursor) and self.state == other.state

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def start(cls, part: StepList) -> Cursor:
        """Before the first step."""
        return cls(enter_list(State(), part.steps, "steps", part))

    @classmethod
    def restore(cls, data: dict[str, Json], part_at: PartAt) -> Cursor:
        """From JSON. `part_at` gives the definitions again: of () the run's, of a path an included one."""
        return cls(position.load(data, part_at))

    def to_json(self) -> dict[str, Json]:
        """Plain JSON, at any point."""
        return position.dump(self.state)

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be told."""
        return isinstance(self.action, Finished | LimitReached)

    def after(self, outcome: Outcome) -> Cursor:
        """What follows. TypeError where the outcome does not belong to the action."""
        if isinstance(outcome, TaskCompleted | TaskFailed):
            return Cursor(_task(self.state, outcome))
        if isinstance(outcome, EnclosingStepFailed) and self.state.ending is None:
            return Cursor(resolve(failed_around(self.state, outcome.level, outcome.error)))
        action = self.action
        if isinstance(outcome, Stopped) and _can_stop(action):
            return self
        if self.state.failure is not None:
            return Cursor(resolve(_judged(self.state, action, outcome)))
        can_fail = self.state.ending is None and isinstance(action, Evaluate | Execute | Parallel | Include | Leave)
        if isinstance(outcome, ActionFailed) and can_fail:
            return Cursor(fail(self.state, outcome.error))
        return Cursor(_told(self.state, action, outcome))

    def resumed(self, *, reset_error_counts: bool = False) -> Cursor:
        """At the last boundary, with everything that is done still done. A completed run stays as it is."""
        state = self.state
        batches = {number: replace(batch, error=None) for number, batch in state.batches.items()}
        if state.frames:
            state = state._replace(ending=None, failure=None)
            if state.top.phase in _BACK_TO_BOUNDARY:
                state = state.with_top(phase="boundary", answers={})
        if reset_error_counts:
            batches = {number: replace(batch, failures={}) for number, batch in batches.items()}
            state = state._replace(frames=tuple(_forgiven(frame) for frame in state.frames))
        return Cursor(state._replace(batches=batches))

    @property
    def background(self) -> tuple[Parallel, ...]:
        """Tasks that go on beside the steps, with what is left of them (`wait_for_all: false`)."""
        return tuple(_parallel(batch) for batch in self.state.batches.values() if batch.background and batch.todo)

    @property
    def steps(self) -> tuple[str, ...]:
        """The ids of the steps that the run is in, the top-level one first."""
        return tuple(frame.step.id for frame in self.state.frames)

    @property
    def loops(self) -> tuple[LoopCount, ...]:
        """The loops that the run is in, the outermost first."""
        return tuple(_count(frame) for frame in self.state.frames if isinstance(frame.step, Loop))

    @property
    def iterations(self) -> int:
        """Iterations begun, of all loops together."""
        return self.state.iterations

    @property
    def transitions(self) -> int:
        """Steps begun that do something, each attempt counted."""
        return self.state.transitions


def _action(state: State) -> Action:
    if state.ending is not None:
        return _ending(state)
    return _of_phase(state) if state.failure is None else _judging(state)


def _ending(state: State) -> Action:
    ending = state.ending
    assert ending is not None
    for batch in state.batches.values():
        if batch.background and batch.todo:
            return _parallel(batch)  # the run's end waits for all
    if ending.status == "limit":
        step = state.top.step
        return LimitReached(step, field_value(step, "max_iterations", state.top.answers))
    error = next((batch.error for batch in state.batches.values() if batch.error is not None), None)
    if ending.status == "completed" and error is not None:
        return Finished("failed", str(error.get("message", "")), error)
    return Finished(ending.status, ending.message, ending.error)


def _judging(state: State) -> Action:
    failure = state.failure
    assert failure is not None
    step, scope = state.frames[failure.level].step, state.scope(failure.level)
    if failure.settling is not None:
        assert isinstance(step, Fallible)
        return ApplyErrorUpdate(step, failure.error, failure.settling == "goes_on", scope)
    field = to_judge(step, failure.answers)
    assert field is not None
    return Evaluate(step, field, scope)


def _of_phase(state: State) -> Action:
    frame = state.top
    step, phase = frame.step, frame.phase
    if phase in ("boundary", "iteration"):
        return Boundary("stop-and-abort" if _takes_a_stop(state) else "abort-only", step)
    if phase == "delay":
        return Delay(step, frame.delay_s)
    if phase == "parallel":
        assert frame.batch is not None
        return _parallel(state.batches[frame.batch])
    scope = state.scope(len(state.frames) - 1)
    if phase in ("ask", "check"):
        field = "condition" if phase == "check" else to_enter(step, frame.answers)
        assert field is not None
        return Evaluate(step, field, scope)
    if phase == "run":
        return Execute(step, scope, frame.failures + 1)
    assert isinstance(step, IncludeWorkflow)
    return Leave(step, scope) if phase == "leave" else Include(step, scope, frame.failures + 1)


def _takes_a_stop(state: State) -> bool:
    """Whether this is before a top-level step, or before an iteration of a loop that stands in no other."""
    part = state.frames[0].part
    if part is None or not part.stoppable:
        return False
    if state.top.phase == "boundary":
        return len(state.frames) == 1
    return not any(isinstance(frame.step, Loop) for frame in state.frames[:-1])


def _can_stop(action: Action) -> bool:
    if isinstance(action, Parallel):
        return action.stoppable
    return isinstance(action, Boundary) and action.kind == "stop-and-abort"


def _told(state: State, action: Action, outcome: Outcome) -> State:
    phase = state.top.phase if state.ending is None else None
    if isinstance(outcome, Passed) and phase in ("boundary", "iteration"):
        return begin(state) if phase == "boundary" else iterate_body(state)
    if isinstance(outcome, Answer) and isinstance(action, Evaluate):
        return _answered(state, action, outcome.value)
    if isinstance(outcome, Completed) and phase == "delay":
        return state.with_top(phase="boundary")
    if isinstance(outcome, Completed) and phase in ("run", "leave"):
        return advance(state)
    if isinstance(outcome, Included) and phase == "include":
        return enter_list(state, outcome.part.steps, "steps", outcome.part)
    raise _misfit(action, outcome)


def _answered(state: State, action: Evaluate, value: Json) -> State:
    try:
        answer = checked_answer(action.step, action.field, value)
    except ValueError as error:
        return fail(state, {"message": str(error)})
    if state.top.phase == "check":
        return condition_is(state, answer)
    return begin(state.with_top(answers={**state.top.answers, action.field: answer}))


def _judged(state: State, action: Action, outcome: Outcome) -> Judged:
    if isinstance(outcome, ActionFailed):
        return up(state, outcome.error)
    if isinstance(action, ApplyErrorUpdate) and isinstance(outcome, Completed):
        return settled(state)
    if isinstance(action, Evaluate) and isinstance(outcome, Answer):
        return answered(state, outcome.value)
    raise _misfit(action, outcome)


def _task(state: State, outcome: TaskCompleted | TaskFailed) -> State:
    """A task is over. The step may have failed or be left meanwhile: what completed still counts, for a next attempt,
    and a second failure changes nothing."""
    batch = state.batches.get(outcome.batch)
    if batch is None or outcome.index in batch.done:
        return state
    if isinstance(outcome, TaskFailed) and batch.error is not None:
        return state
    after = _with_task(batch, outcome)
    if batch.background:
        over = not after.todo and (after.error is None or after.step.on_error == "continue")
        kept = {number: each for number, each in state.batches.items() if number != batch.number}
        return state._replace(batches=kept if over else {**state.batches, batch.number: after})
    state = state._replace(batches={**state.batches, batch.number: after})
    waited_for = state.ending is None and state.failure is None and state.top.phase == "parallel"
    return after_task(state) if waited_for else state


def _with_task(batch: Batch, outcome: TaskCompleted | TaskFailed) -> Batch:
    done = replace(batch, done=batch.done | {outcome.index})
    if isinstance(outcome, TaskCompleted):
        return done
    strategy = batch.step.on_sub_agent_error.strategy
    failures = batch.failures.get(outcome.index, 0)
    if strategy == "continue":
        return done
    if strategy == "retry_failed" and failures < batch.max_retries:
        return replace(batch, failures={**batch.failures, outcome.index: failures + 1})
    return replace(batch, error=_named(batch, outcome.index, outcome.error))


def _named(batch: Batch, index: int, error: Error) -> Error:
    return {**error, "task": f"{batch.step.id}.{index}"}


def _parallel(batch: Batch) -> Parallel:
    return Parallel(batch.step, batch.number, batch.items, batch.todo, batch.max_parallel, batch.scope, batch.stoppable)


def _forgiven(frame: Frame) -> Frame:
    # What is included is told from its last attempt by their number: an old one would be taken for done.
    return frame if isinstance(frame.step, IncludeWorkflow) else frame._replace(failures=0)


def _count(frame: Frame) -> LoopCount:
    items = frame.answers.get("items")
    begun = frame.phase == "inside"
    return LoopCount(frame.step.id, frame.index + 1 if begun else frame.index, None if items is None else len(items))


def _misfit(action: Action, outcome: Outcome) -> TypeError:
    return TypeError(f"{type(outcome).__name__} is no answer to {type(action).__name__}")


# How a run moves from step to step: pure functions from one state to the next.


def enter_list(state: State, steps: Steps, branch: Branch, part: StepList | None = None) -> State:
    """Begin a list of steps inside the current step; an empty one is over at once."""
    if not steps:
        return _left(state, branch)
    around = (*state.frames[:-1], state.top._replace(phase="inside")) if state.frames else ()
    return state.with_frames(*around, Frame(steps, 0, branch, part))


def advance(state: State) -> State:
    """On from the current step, which is over."""
    frame = state.top
    if frame.place + 1 < len(frame.steps):
        following = Frame(frame.steps, frame.place + 1, frame.branch, frame.part)
        return state.with_frames(*state.frames[:-1], following)
    return _left(state.with_frames(*state.frames[:-1]), frame.branch)


def _left(state: State, branch: Branch) -> State:
    """On from a list of steps that is over, in the step that has it."""
    if not state.frames:
        return state._replace(ending=PlannedEnd("completed"))
    if branch == "body":
        return _next_iteration(state)
    if branch == "steps":
        return state.with_top(phase="leave")
    return advance(state)


def begin(state: State) -> State:
    """Begin the current step, asking first for what it needs."""
    step = state.top.step
    if state.top.batch is None and to_enter(step, state.top.answers) is not None:
        return state.with_top(phase="ask")
    if isinstance(step, Conditional):
        branch: Branch = "then" if field_value(step, "condition", state.top.answers) else "else"
        return enter_list(state, inner(step, branch) or (), branch)
    if isinstance(step, Loop):
        return _iterate(state)
    if isinstance(step, Break | Continue):
        return _jump(state, step)
    if isinstance(step, Exit):
        return _exit(state, step)
    counted = state._replace(transitions=state.transitions + 1)
    if isinstance(step, ParallelForEach):
        return _begin_batch(counted, step)
    return counted.with_top(phase="include" if isinstance(step, IncludeWorkflow) else "run")


def _exit(state: State, step: Exit) -> State:
    message = field_value(step, "message", state.top.answers)
    if step.status == "success":
        return state._replace(frames=(), ending=PlannedEnd("completed", message, exited=True))
    return state._replace(ending=PlannedEnd("failed", message, {"message": message, "step": step.id}, exited=True))


def _next_iteration(state: State) -> State:
    return _iterate(state, state.top.index + 1)


def _iterate(state: State, index: int | None = None) -> State:
    """Before the iteration `index`, that of the frame where it is not given: whether there is one."""
    frame = state.top
    index = frame.index if index is None else index
    if isinstance(frame.step, ForEach):
        more = index < len(frame.answers["items"])
        return state.with_top(phase="iteration", index=index) if more else advance(state)
    checking = state.with_top(phase="check", index=index)
    if is_open(frame.step, "condition"):
        return checking
    assert isinstance(frame.step, While)
    return condition_is(checking, bool(frame.step.condition))


def condition_is(state: State, holds: bool) -> State:
    """On from the condition of a `while`."""
    if not holds:
        return advance(state)
    if to_enter(state.top.step, state.top.answers) is not None:
        return state.with_top(phase="ask")  # a resume with a changed definition brought a template
    if state.top.index >= field_value(state.top.step, "max_iterations", state.top.answers):
        return state._replace(ending=PlannedEnd("limit"))
    return state.with_top(phase="iteration")


def iterate_body(state: State) -> State:
    """Begin an iteration."""
    body = inner(state.top.step, "body") or ()
    return enter_list(state._replace(iterations=state.iterations + 1), body, "body")


def _jump(state: State, step: Break | Continue) -> State:
    """To the innermost loop of the same part: behind it, or to its next iteration."""
    for at in range(len(state.frames) - 1, 0, -1):
        branch = state.frames[at].branch
        if branch == "steps":
            break
        if branch == "body":
            loop = state.trimmed(at)
            return advance(loop) if isinstance(step, Break) else _next_iteration(loop)
    return fail(state, {"message": f"`{step.type}` of step {step.id!r} stands outside of every loop"})


def _begin_batch(state: State, step: ParallelForEach) -> State:
    """Begin the tasks, or go on with those that an earlier attempt left."""
    number = state.top.batch
    if number is None:
        number, answers, part = state.batches_begun, state.top.answers, state.frames[0].part
        batch = Batch(
            number,
            step,
            tuple(answers["items"]),
            field_value(step, "max_parallel", answers),
            field_value(step, "max_retries", answers) if step.on_sub_agent_error.strategy == "retry_failed" else 0,
            part is not None and part.stoppable,
            state.scope(len(state.frames) - 1),
        )
        state = state._replace(batches_begun=number + 1)
    else:
        batch = state.batches[number]
        if batch.error is not None:  # the step is tried again as a whole, and so are its tasks
            batch = dataclasses.replace(batch, error=None, failures={})
    state = state._replace(batches={**state.batches, number: batch})
    return after_task(state.with_top(phase="parallel", batch=number, answers={}))


def after_task(state: State) -> State:
    """On from the current `parallel_foreach`, if what is done allows it."""
    assert state.top.batch is not None
    batch = state.batches[state.top.batch]
    if batch.error is not None:
        return fail(state, batch.error)
    if not batch.todo:
        return advance(state.with_top(batch=None).trimmed(len(state.frames)))
    if batch.done and not batch.step.wait_for_all:
        behind = dataclasses.replace(batch, background=True)
        return advance(state._replace(batches={**state.batches, batch.number: behind}))
    return state


def fail(state: State, error: Error) -> State:
    """The current step failed: judge it, and where the run can go on behind a step, do so."""
    return resolve(failed(state, error))


def resolve(verdict: tuple[State, bool]) -> State:
    """On from a judgement: behind the step where it says so."""
    state, goes_on = verdict
    return advance(state) if goes_on else state


# The way of an error: the step's own policy, then the workflow's, then the step that included the workflow.
#
# Each function gives the next state, and whether the current step is over and the run goes on behind it.
#


Judged = tuple["State", bool]


def failed(state: State, error: Error) -> Judged:
    """The current step failed."""
    return _judge(state._replace(failure=Failure(len(state.frames) - 1, error)))


def failed_around(state: State, level: int, error: Error) -> Judged:
    """A step failed that has the current one inside it, whatever that would have come to."""
    return _judge(state._replace(failure=Failure(level, error)))


def answered(state: State, answer: Json) -> Judged:
    """A field of the policy is known."""
    failure = _failure(state)
    step = state.frames[failure.level].step
    field = to_judge(step, failure.answers)
    assert field is not None
    try:
        answers = {**failure.answers, field: checked_answer(step, field, answer)}
    except ValueError as error:
        return up(state, {"message": str(error)})
    return _judge(state._replace(failure=dataclasses.replace(failure, answers=answers)))


def settled(state: State) -> Judged:
    """What the step leaves behind is written."""
    failure = _failure(state)
    return _behind(state) if failure.settling == "goes_on" else up(state, failure.error)


def _judge(state: State) -> Judged:
    failure = _failure(state)
    frame = state.frames[failure.level]
    step = frame.step
    if not isinstance(step, Fallible):
        return up(state, failure.error)
    if to_judge(step, failure.answers) is not None:
        return state, False
    count, delay_s = (field_value(step, field, failure.answers) for field in ("retry_count", "retry_delay"))
    verdict = decide(policy_of(step, count, delay_s), frame.failures + 1)
    if isinstance(verdict, Again):
        return _again(state, verdict.after_s), False
    goes_on = isinstance(verdict, GoOn)
    if step.error_state_update is not None or (goes_on and step.has_fallback):
        return state._replace(
            failure=dataclasses.replace(failure, settling="goes_on" if goes_on else "gives_up")
        ), False
    return _behind(state) if goes_on else up(state, failure.error)


def _again(state: State, after_s: float) -> State:
    """The step from its beginning; of a `parallel_foreach` only what is not done."""
    state = _at_level(state)
    phase: Phase = "delay" if after_s > 0 else "boundary"
    return state.with_top(phase=phase, failures=state.top.failures + 1, delay_s=after_s, answers={})


def _behind(state: State) -> Judged:
    state = _at_level(state)
    return state.with_top(batch=None).trimmed(len(state.frames)), True


def up(state: State, error: Error) -> Judged:
    """Past the step that is judged, with this error: to its workflow, then to whoever included that."""
    failure = _failure(state)
    begin = max(at for at in range(failure.level + 1) if state.frames[at].branch == "steps")
    part = state.frames[begin].part
    assert part is not None
    if part.continue_on_error:
        return _behind(state)
    if begin == 0:
        # The frames stay as they are: a resume does the step again that failed.
        return state._replace(failure=None, ending=PlannedEnd("failed", str(error.get("message", "")), error)), False
    return _judge(state._replace(failure=Failure(begin - 1, error)))


def _at_level(state: State) -> State:
    return state.trimmed(_failure(state).level + 1)._replace(failure=None)


def _failure(state: State) -> Failure:
    assert state.failure is not None
    return state.failure


# Which fields of a step somebody has to evaluate before the cursor can go on, and what an answer has to be.


Answers = dict[str, Any]


def to_enter(step: StepBase, answers: Mapping[str, Json]) -> FieldName | None:
    """The next field that is needed to begin a step; None: everything is known."""
    return _next(step, _fields_to_enter(step), answers)


def to_judge(step: StepBase, answers: Mapping[str, Json]) -> FieldName | None:
    """The next field that is needed to decide what becomes of a failed step."""
    retries = isinstance(step, Fallible) and step.on_error == "retry"
    return _next(step, ("retry_count", "retry_delay") if retries else (), answers)


def field_value(step: StepBase, field: FieldName, answers: Mapping[str, Json]) -> Any:
    """What a field comes to: the answer, else what the definition says."""
    return answers[field] if field in answers else _written(step, field)


def checked_answer(step: StepBase, field: FieldName, answer: Json) -> Json:
    """An answer as the cursor keeps it. ValueError says what was wrong with it."""
    if field == "retry_delay":
        try:
            return duration.seconds(answer)
        except ValueError as error:
            raise ValueError(f"`{field}` of step {step.id!r}: {error}") from None
    fits, expected = _fits(field, answer)
    if not fits:
        raise ValueError(f"`{field}` of step {step.id!r} has to be {expected}, not {_shown(answer)}")
    return answer


def _fields_to_enter(step: StepBase) -> tuple[FieldName, ...]:
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


def _next(step: StepBase, fields: tuple[FieldName, ...], answers: Mapping[str, Json]) -> FieldName | None:
    return next((field for field in fields if field not in answers and is_open(step, field)), None)


def is_open(step: StepBase, field: FieldName) -> bool:
    """Whether a field has to be evaluated: a condition may be bare, and a list may have templates inside."""
    written = _written(step, field)
    if field == "condition":
        return isinstance(written, str)
    return field == "items" or has_template(written)


def _written(step: StepBase, field: FieldName) -> Any:
    if field == "max_retries":
        assert isinstance(step, ParallelForEach)
        return step.on_sub_agent_error.max_retries
    return getattr(step, "retry_delay_s" if field == "retry_delay" else field)


def _fits(field: FieldName, answer: Json) -> tuple[bool, str]:
    if field == "condition":
        return isinstance(answer, bool), "true or false"
    if field == "items":
        return isinstance(answer, list), "a list"
    if field == "message":
        return isinstance(answer, str), "a text"
    least = 0 if field in ("retry_count", "max_retries") else 1
    whole = isinstance(answer, int) and not isinstance(answer, bool)
    return whole and answer >= least, f"a whole number, {least} or more"


def _shown(answer: Json) -> str:
    shown = repr(answer) if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return shown if len(shown) <= 64 else shown[:64] + "…"


# What becomes of a step that failed: once more, on without it, or up with the error.


# Doubling has to end somewhere: a wait longer than a day is a run that nobody meant.
LONGEST_DELAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Policy:
    """What the author of a step wants, with every template in it already a value."""

    on_error: Literal["fail", "continue", "retry"] = "fail"
    retry_count: int = 0
    retry_delay_s: float = 0.0
    backoff: Literal["constant", "exponential"] = "constant"
    has_fallback: bool = False


@dataclass(frozen=True, slots=True)
class Again:
    """The step is done again, after a while."""

    after_s: float


@dataclass(frozen=True, slots=True)
class GoOn:
    """The run goes on behind the step, with the fallback for a result where the step has one."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The error goes up."""


Verdict = Again | GoOn | GiveUp


def policy_of(step: Fallible, retry_count: int, retry_delay_s: float) -> Policy:
    """A step's policy; the two that can be templates come from whoever evaluated them."""
    return Policy(step.on_error, retry_count, retry_delay_s, step.retry_backoff, step.has_fallback)


def decide(policy: Policy, failures: int) -> Verdict:
    """The verdict on a step that failed `failures` times in a row, this time included."""
    if policy.on_error == "continue":
        return GoOn()
    if policy.on_error == "fail":
        return GiveUp()
    if failures <= policy.retry_count:
        return Again(_delay_s(policy, failures))
    return GoOn() if policy.has_fallback else GiveUp()


def _delay_s(policy: Policy, failures: int) -> float:
    if policy.backoff == "constant":
        return policy.retry_delay_s
    # 2.0 ** 1024 is an OverflowError, and the longest delay is reached long before that.
    doubled = policy.retry_delay_s * 2.0 ** min(failures - 1, 64)
    return max(policy.retry_delay_s, min(doubled, LONGEST_DELAY_S))
