"""The way of an error: the step's own policy, then the workflow's, then the step that included the workflow.

Each function gives the next state, and whether the current step is over and the run goes on behind it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from sidecar.engine import retry
from sidecar.engine.program import asks
from sidecar.engine.program.frames import Ending, Failure
from sidecar.model.steps import Fallible

if TYPE_CHECKING:
    from sidecar.engine.program.actions import Error, Json
    from sidecar.engine.program.frames import Phase, State

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
    field = asks.to_judge(step, failure.answers)
    assert field is not None
    try:
        answers = {**failure.answers, field: asks.accepted(step, field, answer)}
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
    if asks.to_judge(step, failure.answers) is not None:
        return state, False
    count, delay_s = (asks.value(step, field, failure.answers) for field in ("retry_count", "retry_delay"))
    verdict = retry.decide(retry.policy_of(step, count, delay_s), frame.failures + 1)
    if isinstance(verdict, retry.Again):
        return _again(state, verdict.after_s), False
    goes_on = isinstance(verdict, retry.GoOn)
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
    begin = max(at for at in range(failure.level + 1) if state.frames[at].branch == "part")
    part = state.frames[begin].part
    assert part is not None
    if part.goes_on:
        return _behind(state)
    if begin == 0:
        # The frames stay as they are: a resume does the step again that failed.
        return state._replace(failure=None, ending=Ending("failed", str(error.get("message", "")), error)), False
    return _judge(state._replace(failure=Failure(begin - 1, error)))


def _at_level(state: State) -> State:
    return state.trimmed(_failure(state).level + 1)._replace(failure=None)


def _failure(state: State) -> Failure:
    assert state.failure is not None
    return state.failure
