"""The use cases, composed from the packages below: what the command line and MCP call."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, cast

import anyio

from sidecar import layout
from sidecar.agents import records
from sidecar.agents.process import Supervisor
from sidecar.agents.reap import reap
from sidecar.agents.turn import Outcome, Setting, Turn
from sidecar.errors import AgentFailed, SidecarError
from sidecar.model import ulid
from sidecar.signals import files, trailers
from sidecar.signals.board import Board, Subject
from sidecar.signals.consume import clear_leftovers, consume
from sidecar.signals.liveness import RunLock
from sidecar.signals.sources import source_for
from sidecar.signals.watch import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sidecar.agents.turn import Told
    from sidecar.config import Settings
    from sidecar.model.agent_definition import Assignment
    from sidecar.signals.board import Request
    from sidecar.signals.receipts import EndedProcess

Status = Literal["completed", "failed", "aborted", "stopped", "interrupted"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended, and why."""

    run_id: str
    status: Status
    reason: str
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Project:
    """Where runs belong, with the settings that hold there."""

    root: str
    settings: Settings
    environment: Mapping[str, str]
    workspace: str | None = None


class AgentRun:
    """A run of a single agent: it has an id, a lock and a directory, obeys signal files, and leaves nothing behind."""

    def __init__(
        self, project: Project, assignment: Assignment, tell: Callable[[Told], None], warn: Callable[[str], None]
    ) -> None:
        self.run_id = ulid.new()
        self.project = project
        self._warn = warn
        self._directory = layout.run_directory(project.root, self.run_id)
        self.board: Board
        self._turn = Turn(assignment, self._setting(), tell)
        self._interrupted = False

    def interrupt(self, *, at_once: bool = False) -> None:
        """End the agent by the ladder, and with it the run; `at_once`: without grace."""
        self._interrupted = True
        self._turn.end("shutdown", 0.0 if at_once else None)

    async def execute(self) -> Ended:
        """From the lock to the last receipt."""
        project = self.project
        where = [layout.state_directory(project.root), project.workspace, self._directory]
        directories = tuple(directory for directory in where if directory)
        for directory in directories:
            files.recover(directory)  # before the start: what is put back looks as if it had just come
        with RunLock(project.root, self.run_id, project.workspace) as lock:
            self.board = Board(Subject(self.run_id, lock.started_at, directories), report=self._warn)
            os.makedirs(os.path.dirname(self._turn.setting.log_path), exist_ok=True)
            for warning in clear_leftovers(self.project.root, self.board):
                self._warn(warning)
            self.board.look()
            if self.board.abort or self.board.stop:
                return self._prevented()
            watcher = Watcher(source_for(self.project.settings.watcher, self._warn), self._warn)
            async with anyio.create_task_group() as tasks:
                await tasks.start(watcher.run)
                await tasks.start(self.board.follow, watcher)
                tasks.start_soon(self._obey_abort)
                try:
                    ended = await self._supervised()
                finally:
                    tasks.cancel_scope.cancel()
            if ended.status != "aborted":
                self._take_stop(ended.status)
            return ended

    async def _supervised(self) -> Ended:
        settings = self.project.settings
        async with Supervisor(self.project.root, containment=settings.containment) as supervisor:
            await self._reap(supervisor)
            self.board.look()
            if self.board.abort:
                return self._prevented()
            try:
                outcome = await self._turn.take(supervisor)
            except AgentFailed as error:
                return Ended(self.run_id, "failed", str(error))
        return self._ended(outcome)

    async def _reap(self, supervisor: Supervisor) -> None:
        left = list(records.found(self.project.root))
        processes, survivors = await reap((record for _, record in left), self.project.root, supervisor.containment)
        for process in processes:
            self._warn(f"ended process {process.pid}, left by a run whose owner died: {process.command}")
        if survivors:
            self._warn(f"{survivors} processes of runs whose owner died cannot be ended")

    async def _obey_abort(self) -> None:
        while self.board.abort is None:
            await self.board.wait_changed()
        self._turn.end("abort")

    def _prevented(self) -> Ended:
        """A signal stood there before anything had begun."""
        request = self.board.abort or self.board.stop
        assert request is not None
        status: Status = "aborted" if self.board.abort else "stopped"
        self._consume(request, status)
        return Ended(self.run_id, status, _why_prevented(request))

    def _ended(self, outcome: Outcome) -> Ended:
        reason = outcome.ended.reason
        if reason == "abort" and self.board.abort is not None:
            self._consume(self.board.abort, "aborted", outcome)
            return Ended(self.run_id, "aborted", self.board.abort.reason, outcome)
        if self._interrupted:
            return Ended(self.run_id, "interrupted", "interrupted", outcome)
        if outcome.limit is not None:
            return Ended(self.run_id, "failed", outcome.limit.message, outcome)
        failure = outcome.failure if reason == "exited" else f"the agent was ended: {reason}"
        return Ended(self.run_id, "failed" if failure else "completed", failure or "", outcome)

    def _take_stop(self, status: Status) -> None:
        """The turn was the iteration that a stop waits for: it is over, so the stop must not meet the next run."""
        self.board.look()
        if self.board.stop is not None:
            self._consume(self.board.stop, status)
        self.board.cleanup()

    def _consume(self, request: Request, status: Status, outcome: Outcome | None = None) -> None:
        if request.signal is None:
            return
        ended = outcome.ended if outcome else None
        processes = [cast("EndedProcess", asdict(process)) for process in ended.processes] if ended else []
        try:
            consume(
                self.project.root,
                request.signal,
                self.run_id,
                status,
                processes=processes,
                survivors=ended.survivors if ended else 0,
            )
        except SidecarError as error:
            self._warn(str(error))

    def _setting(self) -> Setting:
        return Setting(
            cwd=self.project.workspace or self.project.root,
            environment=self.project.environment,
            run_id=self.run_id,
            log_path=os.path.join(self._directory, "agents", "1.log"),
            secrets=self.project.settings.secret_values(self.project.environment),
            kill_after_s=self.project.settings.kill_after_s,
        )


def _why_prevented(request: Request) -> str:
    if request.signal is None:
        return request.reason
    since = trailers.timestamp(request.since)
    return f"{request.signal.path} was there before the start, since {since} ({request.reason}); it is gone now"
