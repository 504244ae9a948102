"""The port for work that somebody else may do: tasks of `parallel_foreach`, and detached runs.

Whoever is behind it, a task has an id that its sender chose, is kept when `submit` returns, and has one result, which
can be asked for again after either side was restarted. Nothing here says in which process, or on which machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

State = Literal["queued", "running", "completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Task:
    """Something to be done. `content` is JSON and all that the doer needs to know."""

    id: str
    kind: str
    content: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a task; `error` where it failed."""

    id: str
    state: Literal["completed", "failed", "cancelled"]
    value: Any = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """One thing that happened to a task; `seq` has no gaps and begins with 1."""

    id: str
    seq: int
    at: float
    kind: str
    data: dict[str, Any] = field(default_factory=dict)


class Dispatch(Protocol):
    """Who does tasks."""

    async def submit(self, task: Task) -> State:
        """Have it done. Kept when this returns. The same id again changes nothing, and says how far it is."""

    async def result(self, task_id: str) -> Result:
        """Wait for the end; at once where it has ended, also before a restart. NotFound: nobody submitted it."""

    async def cancel(self, task_id: str) -> bool:
        """End it, queued or running, and return when it is over; False where it already was."""

    def events(self, task_id: str, after: int = 0) -> AsyncIterator[TaskEvent]:
        """In order, those behind a sequence number, until its end."""
