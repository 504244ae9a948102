"""Runs that are given away: to the project's daemon, or to a process of their own. Never inside a client's child."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.service import handing_over

if TYPE_CHECKING:
    from sidecar.config import Project
    from sidecar.engine.server_driven import ServerDriven
    from sidecar.service.executor import Runs
    from sidecar.store.journal import Journal


class DetachedExecutor:
    """Has runs executed by somebody who outlives this process. `runs`: those few that it executes itself."""

    def __init__(self, project: Project, journal: Journal, runs: Runs | None = None) -> None:
        self._project = project
        self._journal = journal
        self._runs = runs

    async def begin(
        self, run_id: str, *, feedback: str | None = None, approve: bool = False, answer: Any = None
    ) -> None:
        """Start it, or go on with it; returns when somebody has taken it on."""
        said = {"feedback": feedback, "approve": approve, "answer": answer}
        await handing_over.hand_over(self._project, self._journal, run_id, **said)

    async def submit_stage(self, run_id: str, stage: str, output: str, kind: str) -> dict[str, Any] | None:
        """A stage of a run that is executed here; None where it is executed elsewhere."""
        return await self._runs.submit_stage(run_id, stage, output, kind) if self._runs else None

    def live(self, run_id: str) -> ServerDriven | None:
        """The run while it is executed here."""
        return self._runs.live(run_id) if self._runs else None
