"""How a run moves from step to step: pure functions from one state to the next."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from sidecar.engine.program import asks, failing
from sidecar.engine.program.frames import Batch, Ending, Frame
from sidecar.engine.program.parts import inner
from sidecar.model.steps import Exit
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
    from sidecar.engine.program.actions import Error
    from sidecar.engine.program.frames import Branch, State
    from sidecar.engine.program.parts import Part
    from sidecar.model.steps_control import Steps


def enter_list(state: State, steps: Steps, branch: Branch, part: Part | None = None) -> State:
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
        return state._replace(ending=Ending("completed"))
    if branch == "body":
        return _next_iteration(state)
    if branch == "part":
        return state.with_top(phase="leave")
    return advance(state)


def begin(state: State) -> State:
    """Begin the current step, asking first for what it needs."""
    step = state.top.step
    if state.top.batch is None and asks.to_enter(step, state.top.answers) is not None:
        return state.with_top(phase="ask")
    if isinstance(step, Conditional):
        branch: Branch = "then" if asks.value(step, "condition", state.top.answers) else "else"
        return enter_list(state, inner(step, branch) or (), branch)
    if isinstance(step, Loop):
        return _iterate(state)
    if isinstance(step, Break | Continue):
        return _jump(state, step)
    if isinstance(step, Exit):
        return _exit(state, step)
    counted = state._replace(transitions=state.transitions + 1)
    if isinstance(step, ParallelForEach):
        return _parallel(counted, step)
    return counted.with_top(phase="include" if isinstance(step, IncludeWorkflow) else "run")


def _exit(state: State, step: Exit) -> State:
    message = asks.value(step, "message", state.top.answers)
    if step.status == "success":
        return state._replace(frames=(), ending=Ending("completed", message, exited=True))
    return state._replace(ending=Ending("failed", message, {"message": message, "step": step.id}, exited=True))


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
    if asks.is_open(frame.step, "condition"):
        return checking
    assert isinstance(frame.step, While)
    return condition_is(checking, bool(frame.step.condition))


def condition_is(state: State, holds: bool) -> State:
    """On from the condition of a `while`."""
    if not holds:
        return advance(state)
    if asks.to_enter(state.top.step, state.top.answers) is not None:
        return state.with_top(phase="ask")  # a resume with a changed definition brought a template
    if state.top.index >= asks.value(state.top.step, "max_iterations", state.top.answers):
        return state._replace(ending=Ending("limit"))
    return state.with_top(phase="iteration")


def iterate_body(state: State) -> State:
    """Begin an iteration."""
    body = inner(state.top.step, "body") or ()
    return enter_list(state._replace(iterations=state.iterations + 1), body, "body")


def _jump(state: State, step: Break | Continue) -> State:
    """To the innermost loop of the same part: behind it, or to its next iteration."""
    for at in range(len(state.frames) - 1, 0, -1):
        branch = state.frames[at].branch
        if branch == "part":
            break
        if branch == "body":
            loop = state.trimmed(at)
            return advance(loop) if isinstance(step, Break) else _next_iteration(loop)
    return fail(state, {"message": f"`{step.type}` of step {step.id!r} stands outside of every loop"})


def _parallel(state: State, step: ParallelForEach) -> State:
    """Begin the tasks, or go on with those that an earlier attempt left."""
    number = state.top.batch
    if number is None:
        number, answers, part = state.batches_begun, state.top.answers, state.frames[0].part
        batch = Batch(
            number,
            step,
            tuple(answers["items"]),
            asks.value(step, "max_parallel", answers),
            asks.value(step, "max_retries", answers) if step.on_sub_agent_error.strategy == "retry_failed" else 0,
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
    return resolve(failing.failed(state, error))


def resolve(verdict: tuple[State, bool]) -> State:
    """On from a judgement: behind the step where it says so."""
    state, goes_on = verdict
    return advance(state) if goes_on else state
