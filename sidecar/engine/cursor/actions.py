"""The actions that a cursor asks for, and the outcomes that move it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sidecar.engine.cursor.position import Error, Json, Scope, StepList
from sidecar.model.steps import Fallible, IncludeWorkflow, ParallelForEach, Step

FieldName = Literal[
    "condition", "items", "max_iterations", "max_parallel", "max_retries", "retry_count", "retry_delay", "message"
]


# Actions: exactly one is pending at any time, in `Cursor.action`. Those that every step needs are tuples, which are
# quickly made.


class Boundary(NamedTuple):
    """Check the signals now. Outcome: `Passed`; a signal ends the run without an outcome."""

    kind: Literal["abort-only", "stop-and-abort"]
    step: Step


class Evaluate(NamedTuple):
    """Evaluate a field of a step. Outcomes: `Answer`, `ActionFailed`. The answer of a condition is a bool."""

    step: Step
    field: FieldName
    written: Any  # in the definition
    scope: Scope


class Execute(NamedTuple):
    """Execute a step and apply its `state_update`. Outcomes: `Completed`, `ActionFailed`. `attempt` counts from 1."""

    step: Step
    scope: Scope
    attempt: int


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait before a step is tried again. Outcome: `Completed`."""

    step: Step
    seconds_s: float


@dataclass(frozen=True, slots=True)
class ApplyErrorUpdate:
    """Apply the `error_state_update` of a failed step. Outcomes: `Completed`, `ActionFailed`.

    `continues`: the run continues after the step, and its `state_update` is applied with its fallback value, too.
    """

    step: Fallible
    error: Error
    continues: bool
    scope: Scope


@dataclass(frozen=True, slots=True)
class Parallel:
    """Run tasks, at most `max_parallel` at a time. Outcome: `TaskEnded`, for each of them.

    `todo` has the indices that are not done, running ones included. Where it is `stoppable`, a stop ends the run once
    no task runs. Tasks that run when this is no longer the action, nor in the background, are to be ended: their step
    has failed.
    """

    step: ParallelForEach
    batch: int
    items: tuple[Json, ...]
    todo: tuple[int, ...]
    max_parallel: int
    scope: Scope
    stoppable: bool


@dataclass(frozen=True, slots=True)
class Include:
    """Find the included workflow, prepare its state. Outcomes: `Included`, `ActionFailed`."""

    step: IncludeWorkflow
    scope: Scope
    attempt: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The included workflow is done: apply the step's `state_update`. Outcomes: `Completed`, `ActionFailed`."""

    step: IncludeWorkflow
    scope: Scope


@dataclass(frozen=True, slots=True)
class Finished:
    """The end."""

    status: Literal["completed", "failed"]
    message: str = ""
    error: Error | None = None


@dataclass(frozen=True, slots=True)
class LimitReached:
    """The end, because a loop's condition still holds after its last iteration."""

    step: Step
    limit: int


Action = Boundary | Evaluate | Execute | Delay | ApplyErrorUpdate | Parallel | Include | Leave | Finished | LimitReached


# Outcomes. Those that every step has are tuples, too.


class Passed(NamedTuple):
    """No signal stands in the way."""


class Answer(NamedTuple):
    """The value of a field."""

    value: Json


class Completed(NamedTuple):
    """It is done, and its writes are in the state."""


class ActionFailed(NamedTuple):
    """It failed; `error` is what `error` is in expressions, with a `message` at least."""

    error: Error


class EnclosingStepFailed(NamedTuple):
    """The step at `level`, which contains the current one, failed: the steps inside it are given up."""

    level: int
    error: Error


class Included(NamedTuple):
    """The workflow that a step includes."""

    step_list: StepList


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """One item of a batch is done, or failed with an error."""

    batch: int
    index: int
    error: Error | None = None


Outcome = Passed | Answer | Completed | ActionFailed | EnclosingStepFailed | Included | TaskEnded
