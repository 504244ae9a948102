"""How a start of a run ends, and the way there from any depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sidecar.engine.program.actions import Error
    from sidecar.signals.board import Request
    from sidecar.store.journal import Ending as Status


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ends. `limit`: which one was reached; `request`: the signal that is consumed with it; `executed`: False
    where nothing was done, because the run had ended before, or a signal was written while nobody executed it."""

    status: Status
    reason: str = ""
    limit: str | None = None
    request: Request | None = None
    error: Error | None = None  # what the steps for a failure see
    waits: dict[str, Any] | None = None  # for a person: a question, or a stage that was submitted
    executed: bool = True


class RunEnds(Exception):  # noqa: N818 - not an error
    """The run ends here. No handler sees it: only the interpreter raises it, between steps."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.reason)
        self.ending = ending
