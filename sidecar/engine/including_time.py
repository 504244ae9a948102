"""How long an included workflow may take: its `timeout` holds for all that is done inside it, in one start."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from sidecar.engine.work.durations import positive_s
from sidecar.model.steps_control import IncludeWorkflow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sidecar.engine.evaluation import View
    from sidecar.engine.outcomes import Outcomes
    from sidecar.engine.program.actions import Error
    from sidecar.engine.threads import Thread


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
    failure: Exception | None = None
    async with anyio.create_task_group() as beside:
        work = anyio.CancelScope()

        async def ring() -> None:
            await anyio.sleep_until(at)
            late()
            work.cancel()

        beside.start_soon(ring)
        with work:
            try:
                yield work
            except Exception as error:  # raised again outside: a task group would wrap it
                failure = error
        beside.cancel_scope.cancel()
    if failure is not None:
        raise failure
