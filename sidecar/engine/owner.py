"""What a process shares among its runs: journal, evaluator, supervisor, watcher. Which process may execute a run is
decided by the run's lock (signals/run_lock)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Self

import anyio

from sidecar.agents import cgroup
from sidecar.agents.ladder import reap
from sidecar.agents.output import Secrets
from sidecar.agents.supervisor import Supervisor
from sidecar.config import Settings
from sidecar.errors import StoreError
from sidecar.model.agent import AgentEnded
from sidecar.model.events import RunEvent
from sidecar.signals import run_lock
from sidecar.signals.watch import Watcher, source_for
from sidecar.state.script import Script
from sidecar.store.db import open_database, when_free
from sidecar.store.journal import Agents, Checkpoints, Handouts, Journal, StoredRun, Transformations


class Owner:
    """The journal, the evaluator, the supervisor and the watcher of one process."""

    def __init__(
        self, root: str, settings: Settings, environment: Mapping[str, str], report: Callable[[str], None]
    ) -> None:
        self.root = root
        self.settings = settings
        self.environment = environment
        self.report = report
        self.database = open_database(root)
        self.masks: dict[str, Secrets] = {}  # of the runs that are open here
        self.journal = Journal(self.database, self.mask_of)
        self.transformations = Transformations(self.database, self.mask_of)
        self.checkpoints = Checkpoints(self.database)
        self.agents = Agents(self.database)
        self.handouts = Handouts(self.database)
        self.script = Script()
        self.trials = Script()  # for callers that try an expression, in threads: no run waits for it
        self.supervisor = Supervisor(root, containment=settings.containment, on_ended=self._agent_ended)
        self.watcher = Watcher(source_for(settings.watcher, report), report)
        self.on_agent_ended: dict[str, Callable[[AgentEnded], None]] = {}  # by run
        self.listeners: set[Callable[[RunEvent], None]] = set()  # of every run that is executed or ended here
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.callback(self.database.close)
            stack.callback(self.script.close)
            stack.callback(self.trials.close)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)  # the watcher, once the last run is over
            await stack.enter_async_context(self.supervisor)
            await tasks.start(self.watcher.run)
            await self._reap()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        # Only a cancellation is passed on: the task groups need it, and would wrap any other error.
        cancelled = isinstance(error, anyio.get_cancelled_exc_class())
        passed_on = (kind, error, trace) if cancelled else (None, None, None)
        return bool(await self._stack.__aexit__(*passed_on)) and cancelled

    @property
    def mask(self) -> Secrets:
        """Masks the secrets of this process's environment, in texts that are not about one run."""
        return Secrets(self.settings.secret_values(self.environment))

    def secrets_of(self, run: StoredRun) -> tuple[str, ...]:
        """The values that are masked in everything about a run: those of its environment, and of ours."""
        environments = (self.environment, run.details.get("environment") or {})
        return tuple({value for one in environments for value in self.settings.secret_values(one)})

    def mask_of(self, run_id: str) -> Secrets:
        """Masks the secrets of a run."""
        found = self.masks.get(run_id)
        if found is None:
            run = self.journal.find(run_id)
            found = Secrets(self.secrets_of(run) if run is not None else ())
        return found

    def emit(self, *events: RunEvent) -> None:
        """Pass events of any run to the listeners of all runs."""
        for listener in list(self.listeners):
            for event in events:
                listener(event)

    async def _reap(self) -> None:
        """End the processes that owners left running when they died."""
        noted = self.agents.not_ended()
        if (base := cgroup.own()) is not None:
            cgroup.sweep(base)
        processes, survivors = await reap(noted, self.root, self.supervisor.containment)
        for process in processes:
            self.report(f"ended process {process.pid}, left by a run whose owner died: {process.program}")
        if survivors:
            self.report(f"{survivors} processes of runs whose owner died cannot be ended")
            return
        for record in noted:
            if record.run_id is None or not run_lock.is_live(self.root, record.run_id):
                with contextlib.suppress(StoreError):  # another process has done it, or will
                    await when_free(self.database, partial(self.agents.ended, record.agent_id), at_most_s=0.0)

    def _agent_ended(self, ended: AgentEnded) -> None:
        if (on_ended := self.on_agent_ended.get(ended.run_id or "")) is not None:
            on_ended(ended)
