"""What a cursor asks of whoever drives it, and what it can be told in return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from sidecar.engine.cursor.position import Error, Json, Scope

if TYPE_CHECKING:
    from sidecar.engine.cursor.position import StepList
    from sidecar.model.steps import Fallible
    from sidecar.model.steps_control import IncludeWorkflow, ParallelForEach, Step

FieldName = Literal[
    "condition", "items", "max_iterations", "max_parallel", "max_retries", "retry_count", "retry_delay", "message"
]


# Actions: exactly one is pending at any time, in `Cursor.action`. Those that every step needs are tuples, which are
# quickly made.


class Boundary(NamedTuple):
    """Look at the signals now. To be told `Passed` or `Stopped`; an abort needs no telling."""

    kind: Literal["abort-only", "stop-and-abort"]
    step: Step


class Evaluate(NamedTuple):
    """Evaluate a field of a step. To be told `Answer` or `ActionFailed`. A condition's answer is its truth, a bool."""

    step: Step
    field: FieldName
    scope: Scope


class Execute(NamedTuple):
    """Execute a step, with its `state_update`. To be told `Completed` or `ActionFailed`. `attempt` counts from 1."""

    step: Step
    scope: Scope
    attempt: int


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait before a step is tried again. To be told `Completed`."""

    step: Step
    seconds_s: float


@dataclass(frozen=True, slots=True)
class ApplyErrorUpdate:
    """Write what a failed step leaves behind. To be told `Completed` or `ActionFailed`.

    Always its `error_state_update`; with `continues` also its `state_update`, for its fallback value.
    """

    step: Fallible
    error: Error
    continues: bool
    scope: Scope


@dataclass(frozen=True, slots=True)
class Parallel:
    """Have tasks done, at most `max_parallel` at a time; each to be told as `TaskCompleted` or `TaskFailed`.

    `todo` has the indices that are not done, running ones included. Where it is `stoppable` and a stop was asked for:
    `Stopped`, once nothing runs any more. Tasks that run when this is no longer the action, nor in the background,
    are to be ended: their step has failed.
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
    """Find the workflow, prepare its state. To be told `Included` or `ActionFailed`."""

    step: IncludeWorkflow
    scope: Scope
    attempt: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The included workflow is done: apply the step's `state_update`. To be told `Completed` or `ActionFailed`."""

    step: IncludeWorkflow
    scope: Scope


@dataclass(frozen=True, slots=True)
class Finished:
    """The end. Nothing more can be told."""

    status: Literal["completed", "failed"]
    message: str = ""
    error: Error | None = None


@dataclass(frozen=True, slots=True)
class LimitReached:
    """The end, because a loop's condition still holds after all the iterations that it has."""

    step: Step
    limit: int


Action = Boundary | Evaluate | Execute | Delay | ApplyErrorUpdate | Parallel | Include | Leave | Finished | LimitReached


# Outcomes.


@dataclass(frozen=True, slots=True)
class Passed:
    """No signal stands in the way."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run ends here and will be resumed from here."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an expression yielded."""

    value: Json


@dataclass(frozen=True, slots=True)
class Completed:
    """It is done. The value is in the state already, where the step wanted it."""

    value: Json = None


@dataclass(frozen=True, slots=True)
class ActionFailed:
    """It failed; `error` is what `error` is in expressions, with a `message` at least."""

    error: Error


@dataclass(frozen=True, slots=True)
class EnclosingStepFailed:
    """A step failed that the current one stands in: it is at `level`, and what is inside it is given up."""

    level: int
    error: Error


@dataclass(frozen=True, slots=True)
class Included:
    """The workflow that a step includes."""

    part: StepList


@dataclass(frozen=True, slots=True)
class TaskCompleted:
    """One item of a batch is done."""

    batch: int
    index: int


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """One item of a batch failed."""

    batch: int
    index: int
    error: Error


Outcome = (
    Passed | Stopped | Answer | Completed | ActionFailed | EnclosingStepFailed | Included | TaskCompleted | TaskFailed
)
