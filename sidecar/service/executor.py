"""The runs that this process executes, any number of them at once on one owner."""

from __future__ import annotations

import logging
import sys
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.catalog import workflows
from sidecar.engine.server_driven import ServerDriven
from sidecar.errors import REPORTED, InputError, SidecarError, StoreError
from sidecar.model import events as kinds
from sidecar.service.aside import definition_aside
from sidecar.service.status import describe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from anyio.abc import TaskGroup, TaskStatus

    from sidecar.agents.adapters.adapter import McpConfiguration
    from sidecar.catalog.workflows import Definition
    from sidecar.engine.owner import Owner
    from sidecar.engine.server_driven import RunEndpoint
    from sidecar.engine.steps.context import AskablePerson
    from sidecar.model.events import RunEvent

logger = logging.getLogger(__name__)
# What is written to a socket is not read yet: between us and an agent's MCP client a pump passes it on.
_RELAY_S = 0.02


def leading_back(root: str, run_id: str) -> McpConfiguration:
    """How an agent's MCP client is led to the run that the agent belongs to."""
    # -P: the agent's working directory is full of modules that are not ours.
    command = (sys.executable, "-P", "-m", "sidecar", "serve")
    return {"command": command, "env": {"SIDECAR_PROJECT": root, "SIDECAR_RUN_ID": run_id}}


@dataclass(frozen=True, slots=True)
class _Live:
    execution: ServerDriven
    tasks: TaskGroup  # what outlives the call that asked for it, and ends with the run


class Runs:
    """Who is executed here, and what all of them share."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.door: RunEndpoint | None = None  # of each run, for its agents
        self.listeners = owner.listeners
        self.replies: set[Callable[[], Coroutine[Any, Any, Any]]] = set()  # each waits until a server's answers are out
        self._live: dict[str, _Live] = {}

    def execution(self, run_id: str, hear: Callable[[RunEvent], None], **given: Any) -> ServerDriven:
        """A start of a run, as all of ours are made; `given` as Execution has it."""

        def hear_all(event: RunEvent) -> None:
            hear(event)
            self.owner.emit(event)

        mcp = leading_back(self.owner.root, run_id)
        around, out = self._around, self.replies_out
        return ServerDriven(self.owner, run_id, hear_all, mcp=mcp, endpoint=around, replies_sent=out, **given)

    def live(self, run_id: str) -> ServerDriven | None:
        """A run whose lock this process holds, to execute it."""
        found = self._live.get(run_id)
        return found.execution if found else None

    async def submit_stage(self, run_id: str, stage: str, output: str, kind: str) -> dict[str, Any] | None:
        """A stage of a run that is executed here: the run pauses once the answer is out. None: it is not here."""
        live = self._live.get(run_id)
        if live is None:
            return None
        live.tasks.start_soon(self._pause, live.execution, stage, output, kind)
        return {}

    async def replies_out(self) -> None:
        """Wait until every agent that called has its answer; each server says how long that may take at most."""
        if not self.replies:
            return
        async with anyio.create_task_group() as tasks:
            for out in self.replies:
                tasks.start_soon(out)
        await anyio.sleep(_RELAY_S)

    @asynccontextmanager
    async def _around(self, execution: ServerDriven) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            self._live[execution.run_id] = _Live(execution, tasks)
            try:
                async with self.door(execution) if self.door else nullcontext():
                    yield
            finally:
                del self._live[execution.run_id]
                tasks.cancel_scope.cancel()

    async def _pause(self, execution: ServerDriven, stage: str, output: str, kind: str) -> None:
        delivered = anyio.Event()

        async def wait_for_answers() -> None:
            await self.replies_out()
            delivered.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_answers)
            try:
                await execution.submit_stage(stage, output, kind, delivered)
            except StoreError as error:
                if execution.execution is not None:
                    execution.execution.lose_journal(error)
            tasks.cancel_scope.cancel()


class LocalExecutor:
    """Executes runs in the tasks of this process, which outlives whoever asks for them."""

    def __init__(self, runs: Runs, tasks: TaskGroup) -> None:
        self.runs = runs
        self._tasks = tasks
        self._executions: dict[str, ServerDriven] = {}  # from before their lock is taken
        self._none = anyio.Event()
        self._none.set()
        self._interrupted: bool | None = None  # and whether without grace

    @property
    def at_work(self) -> int:
        """How many runs are executed here."""
        return len(self._executions)

    async def begin(
        self,
        run_id: str,
        *,
        request: str | None = None,
        feedback: str | None = None,
        approve: bool = False,
        answer: Any = None,
        with_changes: bool = False,
    ) -> None:
        """Start it, or go on with it; returns when it is running. SidecarError: it is not, and why."""
        held = await definition_aside(self.runs.owner, self.runs.owner.journal.run(run_id))  # until the run holds it
        if self._interrupted is not None:
            raise SidecarError("the daemon is ending: it takes no more runs")
        owner = self.runs.owner
        run = owner.journal.run(run_id)
        person: AskablePerson | None = None
        if answer is not None:
            needs = describe(owner.database, owner.root, run_id)["needs"]
            if not needs or needs["kind"] != "answer":
                raise InputError(f"run {run_id} waits for no answer: it is {run.status}")
            person = Answering(needs["step"], answer)
        definition: Definition | None = workflows.find(owner.root, run.workflow) if with_changes else None
        given = {
            "request": request,
            "person": person,
            "feedback": feedback,
            "approve": approve,
            "definition": definition,
        }
        await self._tasks.start(self._execute, run_id, given)
        del held

    async def submit_stage(self, run_id: str, stage: str, output: str, kind: str) -> dict[str, Any] | None:
        """A stage of a run that is executed here; None where it is executed elsewhere."""
        return await self.runs.submit_stage(run_id, stage, output, kind)

    def live(self, run_id: str) -> ServerDriven | None:
        """The run while it is executed here."""
        return self.runs.live(run_id)

    async def interrupt(self) -> None:
        """End all of them by the ladder, checkpointed, to be resumed another day; returns when that is done."""
        self._interrupted = False
        await self.runs.replies_out()
        for execution in list(self._executions.values()):
            execution.interrupt(at_once=self._interrupted)
        while self._executions:
            await self._none.wait()

    def hurry(self) -> None:
        """Without grace."""
        self._interrupted = True
        for execution in list(self._executions.values()):
            execution.interrupt(at_once=True)

    async def _execute(self, run_id: str, given: dict[str, Any], *, task_status: TaskStatus[None]) -> None:
        # Here and not in `begin`, which waits: nothing comes between this look and the entry below.
        if run_id in self._executions:
            raise SidecarError(f"run {run_id} is already being executed")
        begun = False

        def hear(event: RunEvent) -> None:
            nonlocal begun
            if not begun and event.kind in (kinds.RUN_STARTED, kinds.RUN_RESUMED):
                begun = True
                task_status.started()

        execution = self.runs.execution(run_id, hear, **given)
        if not self._executions:
            self._none = anyio.Event()
        self._executions[run_id] = execution
        if self._interrupted is not None:  # since it was asked for
            execution.interrupt(at_once=self._interrupted)
        try:
            await execution.execute()
        except Exception as error:
            if not begun:
                raise  # to whoever asked
            # Its journal says how far it came: it is interrupted, and nobody else here is concerned.
            logger.error("run %s: %s", run_id, error, exc_info=not isinstance(error, REPORTED))
        finally:
            del self._executions[run_id]
            if not self._executions:
                self._none.set()
        if not begun:
            task_status.started()  # there was nothing to do


class Answering:
    """A person who is not there, but has left one answer for one step."""

    def __init__(self, step: str, answer: Any) -> None:
        self._step: str | None = step
        self._answer = answer

    async def ask(self, question: dict[str, Any], problem: str | None) -> Any:
        """The answer, once; None for any other question, and the run pauses again."""
        if problem is not None or question.get("step") != self._step:
            return None
        self._step = None
        return self._answer

    async def lend_terminal(self, run: object) -> int | None:
        """There is none."""
        return None
