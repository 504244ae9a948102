"""A pure, serialisable program counter: it says what is to be done next, and is told what came of it.

    cursor = Cursor.start(parts.of_workflow(workflow))
    while not cursor.is_over:
        cursor = cursor.after(do(cursor.action))

At any point `to_json` writes it down, `restore` brings it back to the same action, and `resumed` takes it to the
last boundary, for a run that was stopped, aborted, interrupted, or that failed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sidecar.engine.program import asks, failing, frames_json, moves
from sidecar.engine.program.actions import (
    Answer,
    Boundary,
    Completed,
    Delay,
    Evaluate,
    Failed,
    FailedAround,
    Finished,
    Include,
    Included,
    Leave,
    LimitReached,
    Parallel,
    Passed,
    Run,
    Settle,
    Stopped,
    TaskCompleted,
    TaskFailed,
)
from sidecar.engine.program.frames import State
from sidecar.model.steps import Fallible
from sidecar.model.steps_control import IncludeWorkflow, Loop

if TYPE_CHECKING:
    from sidecar.engine.program.actions import Action, Error, Json, Outcome
    from sidecar.engine.program.frames import Batch, Frame
    from sidecar.engine.program.frames_json import PartAt
    from sidecar.engine.program.parts import Part

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
    def start(cls, part: Part) -> Cursor:
        """Before the first step."""
        return cls(moves.enter_list(State(), part.steps, "part", part))

    @classmethod
    def restore(cls, data: dict[str, Json], part_at: PartAt) -> Cursor:
        """From JSON. `part_at` gives the definitions again: of () the run's, of a path an included one."""
        return cls(frames_json.load(data, part_at))

    def to_json(self) -> dict[str, Json]:
        """Plain JSON, at any point."""
        return frames_json.dump(self.state)

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be told."""
        return isinstance(self.action, Finished | LimitReached)

    def after(self, outcome: Outcome) -> Cursor:
        """What follows. TypeError where the outcome does not belong to the action."""
        if isinstance(outcome, TaskCompleted | TaskFailed):
            return Cursor(_task(self.state, outcome))
        if isinstance(outcome, FailedAround) and self.state.ending is None:
            return Cursor(moves.resolve(failing.failed_around(self.state, outcome.level, outcome.error)))
        action = self.action
        if isinstance(outcome, Stopped) and _can_stop(action):
            return self
        if self.state.failure is not None:
            return Cursor(moves.resolve(_judged(self.state, action, outcome)))
        can_fail = self.state.ending is None and isinstance(action, Evaluate | Run | Parallel | Include | Leave)
        if isinstance(outcome, Failed) and can_fail:
            return Cursor(moves.fail(self.state, outcome.error))
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
        return LimitReached(step, asks.value(step, "max_iterations", state.top.answers))
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
        return Settle(step, failure.error, failure.settling == "goes_on", scope)
    field = asks.to_judge(step, failure.answers)
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
        field = "condition" if phase == "check" else asks.to_enter(step, frame.answers)
        assert field is not None
        return Evaluate(step, field, scope)
    if phase == "run":
        return Run(step, scope, frame.failures + 1)
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
        return moves.begin(state) if phase == "boundary" else moves.iterate_body(state)
    if isinstance(outcome, Answer) and isinstance(action, Evaluate):
        return _answered(state, action, outcome.value)
    if isinstance(outcome, Completed) and phase == "delay":
        return state.with_top(phase="boundary")
    if isinstance(outcome, Completed) and phase in ("run", "leave"):
        return moves.advance(state)
    if isinstance(outcome, Included) and phase == "include":
        return moves.enter_list(state, outcome.part.steps, "part", outcome.part)
    raise _misfit(action, outcome)


def _answered(state: State, action: Evaluate, value: Json) -> State:
    try:
        answer = asks.accepted(action.step, action.field, value)
    except ValueError as error:
        return moves.fail(state, {"message": str(error)})
    if state.top.phase == "check":
        return moves.condition_is(state, answer)
    return moves.begin(state.with_top(answers={**state.top.answers, action.field: answer}))


def _judged(state: State, action: Action, outcome: Outcome) -> failing.Judged:
    if isinstance(outcome, Failed):
        return failing.up(state, outcome.error)
    if isinstance(action, Settle) and isinstance(outcome, Completed):
        return failing.settled(state)
    if isinstance(action, Evaluate) and isinstance(outcome, Answer):
        return failing.answered(state, outcome.value)
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
    return moves.after_task(state) if waited_for else state


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
