"""One execution of a run: the run in memory, and everything that its interpreter needs, from its start to its end.

The process that executes a run holds its run lock. While it does, watchers end the run at an abort, at the limit of its
time, and when its directory is moved away.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import anyio

from sidecar.agents.output import Secrets
from sidecar.engine.boundary import BoundaryGuard, Ending, RunEnds, board_of
from sidecar.engine.interpreter import Interpreter
from sidecar.engine.ledger import Ledger
from sidecar.engine.owner import Owner
from sidecar.engine.processes import Processes
from sidecar.engine.run import Run
from sidecar.engine.step import StepRunner
from sidecar.engine.steps.context import AskablePerson, RunServices
from sidecar.errors import InputError, StoreError, UnwrappedErrors
from sidecar.mcp_client.client import McpClients
from sidecar.model import events as kinds
from sidecar.model.agent import EndReason
from sidecar.model.events import RunEvent
from sidecar.model.workflow import RunLimits
from sidecar.signals import run_lock
from sidecar.signals.board import Request
from sidecar.store.journal import Journal, StoredRun

BUSY_S = 5.0  # how long a call on a run waits for another one
REQUEST = "request"  # in a run's details: under which id, and with which environment, it was given to another process
_LOCK_EVERY_S = 0.01
_IN_PLACE_EVERY_S = 1.0

Result = TypeVar("Result")


class Execution:
    """One run in memory, while this process holds its run lock. `on_events` gets every event of it."""

    def __init__(
        self,
        owner: Owner,
        stored: StoredRun,
        run: Run,
        on_events: Callable[[Sequence[RunEvent]], None],
        *,
        person: AskablePerson | None = None,
        mcp: Any = None,
        replies_sent: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """`mcp`: leads the MCP clients of its agents to it. `replies_sent` waits until agents that called have their
        replies: an abort that an agent requests comes after the reply."""
        self.owner = owner
        self.stored = stored
        self.run = run
        self.replies_sent = replies_sent
        self.lost: StoreError | None = None  # why the journal cannot be written
        self.ending: Ending | None = None  # how it is to end, as soon as that is known
        self.scope = anyio.CancelScope()  # around the interpreter: an abort cancels it
        self._on_events = on_events
        secrets = owner.secrets_of(stored)
        self.mask = owner.masks[stored.run_id] = Secrets(secrets)
        self.ledger = Ledger(owner, stored.run_id, run, self.mask, on_events)
        self.board = board_of(owner, stored, self.warn)
        directory = self.board.scope.own_directory
        self.processes = Processes(owner, self.ledger, run.counters, directory, self.lose_journal)
        owner.on_agent_ended[stored.run_id] = self.processes.agent_ended
        self._services = RunServices(
            root=owner.root,
            run_id=stored.run_id,
            workspace=stored.workspace,
            environment=stored.details.get("environment") or owner.environment,
            settings=owner.settings,
            secrets=secrets,
            mask=self.mask,
            person=person,
            mcp=mcp,
        )
        self.guard = BoundaryGuard(self.board, run, _limits(run))
        steps = StepRunner(
            run, self._services, ledger=self.ledger, guard=self.guard, processes=self.processes, emit=self.emit
        )
        self.interpreter = Interpreter(steps, self.end_now)
        self.batches = self.interpreter.batches

    def close(self) -> None:
        """Release the memory: the journal has the run."""
        self.owner.on_agent_ended.pop(self.stored.run_id, None)
        self.owner.masks.pop(self.stored.run_id, None)
        self.run.states.close()

    @asynccontextmanager
    async def services(self) -> AsyncIterator[None]:
        """What the interpreter needs while it runs: the MCP servers for `mcp_call`, and a task group for batches."""
        services, processes = self._services, self.processes
        clients = McpClients(
            start=lambda launch, name: processes.start(launch, name, "", None),
            root=services.root,
            settings=services.settings,
            environment=services.environment,
            secrets=services.secrets,
            log_path=processes.log_path,
            run_id=services.run_id,
        )
        self.interpreter.steps.services = replace(services, clients=clients)
        async with clients, self.batches.running():
            yield

    async def call(self, do: Callable[[], Awaitable[Result]]) -> Result | None:
        """Do something for a caller in the task group of the run: it ends with the run, and not with the caller. None
        where the run ended first."""
        if self.batches.group is None:  # the interpreter does not run yet, or no longer
            return None
        done, results, errors = anyio.Event(), list[Result](), list[Exception]()

        async def perform() -> None:
            try:
                results.append(await do())
            except RunEnds as ends:
                self.end_now(ends.ending)
            except Exception as error:  # the caller's, not the run's
                if isinstance(error, StoreError):
                    self.lose_journal(error)
                errors.append(error)
            finally:
                done.set()

        self.batches.group.start_soon(perform)
        await done.wait()
        if errors:
            raise errors[0]
        return results[0] if results else None

    # --- how it ends

    def set_ending(self, ending: Ending) -> None:
        """How it ends; the first one counts."""
        self.ending = self.ending or ending

    def end_now(self, ending: Ending, reason: EndReason | None = None, *, within_s: float | None = None) -> None:
        """End its processes and cancel its interpreter. `within_s`: another grace than the usual one."""
        self.set_ending(ending)
        self.processes.request_end(reason or ending.end_reason, within_s=within_s)
        self.scope.cancel()

    def lose_journal(self, error: StoreError) -> None:
        """The journal cannot be written: nothing more is executed."""
        self.lost = self.lost or error
        self.processes.request_end("internal_error")
        self.scope.cancel()

    # --- events

    def emit(self, kind: str, data: dict[str, Any]) -> None:
        """An event of a step. The output and the activity of agents are not journalled; they are masked already."""
        if kind in (kinds.AGENT_OUTPUT, kinds.ACTIVITY):
            self._emit_now(kind, data)
        else:
            self.ledger.record(kind, **data)

    def emit_unjournalled(self, kind: str, data: dict[str, Any]) -> None:
        """An event for listeners in this process."""
        self._emit_now(kind, self.mask.masked_event(data))

    def warn(self, text: str) -> None:
        """Something that a person should know."""
        self.emit_unjournalled(kinds.WARNING, {"text": text})

    def _emit_now(self, kind: str, data: dict[str, Any]) -> None:
        self._on_events([RunEvent(self.stored.run_id, kind, self.owner.database.clock(), data)])


def _limits(run: Run) -> RunLimits:
    """The limits of the workflow, their templates evaluated."""
    limits = run.definition.workflow.limits
    view = run.states[()].view({})
    found = {name: view.value(getattr(limits, name)) for name in ("max_iterations", "max_transitions")}
    for name, value in found.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InputError(f"limits: {name} has to be a number, not {value!r}")
    try:
        return limits.model_copy(update={**found, "max_duration_s": view.seconds(limits.max_duration_s)})
    except ValueError as error:
        raise InputError(f"limits: max_duration: {error}") from None


# --- before an execution: the run lock, the workspace


@asynccontextmanager
async def locked(root: str, run_id: str, within_s: float = BUSY_S) -> AsyncIterator[run_lock.RunLock]:
    """The run lock, waited for without blocking the event loop. RunBusy where another process keeps it."""
    lock, since = run_lock.RunLock(root, run_id), anyio.current_time()
    with run_lock.LockTurn(root, run_id) as turn:
        while True:
            waited_s = anyio.current_time() - since
            try:
                # The process whose turn it is may be suspended: after half of the time its turn no longer counts.
                if waited_s > within_s / 2 or turn.acquire():
                    lock.acquire(0.0)
                    break
            except run_lock.RunBusy as busy:
                if waited_s > within_s:
                    raise run_lock.RunBusy(f"{busy}; it is still busy after {within_s:g} s: ask again") from None
            # The longer it has waited, the more often it tries: among several, the first is likely to be the next.
            await anyio.sleep(_LOCK_EVERY_S / (1 + 10 * waited_s))
    try:
        yield lock
    finally:
        lock.release()


# Workflows of which a workspace has one run at a time.
_EXCLUSIVE_WORKFLOWS = frozenset({"iterate"})
_BEGIN_S = 120.0  # a run that is pending for longer has lost the process that was to execute it


def refuse_second(journal: Journal, root: str, workflow: str, workspace: str | None, run_id: str | None = None) -> None:
    """InputError where another run of the workflow has the workspace. `run_id`: the run that asks, if it exists."""
    if workflow not in _EXCLUSIVE_WORKFLOWS or workspace is None:
        return
    for other in journal.runs(workspace=workspace):
        if other.run_id != run_id and other.workflow == workflow and _uses_workspace(root, other):
            raise InputError(
                f"run {other.run_id} of {workflow} has the workspace {os.path.basename(workspace)} already, it is "
                f"{other.status}: let it end, or end it (sidecar stop --run {other.run_id})"
            )


def _uses_workspace(root: str, stored: StoredRun) -> bool:
    if run_lock.is_live(root, stored.run_id) or stored.status == "paused":
        return True
    if stored.status == "pending":
        return time.time() - stored.created_at < _BEGIN_S
    if stored.status == "running" and stored.driver == "agent":
        return True
    # Its owner is gone. A run that began in a terminal may begin anew there; a detached one is resumed by itself.
    return stored.status in ("running", "interrupted") and bool(stored.details.get("detached"))


# --- during an execution: what may end it in the middle of a step


@asynccontextmanager
async def watching(execution: Execution, lock: run_lock.RunLock) -> AsyncIterator[None]:
    """Watch signals, time, journal and directory of a run, around its cancel scope."""
    with UnwrappedErrors():
        async with anyio.create_task_group() as watchers:
            await watchers.start(execution.board.follow, execution.owner.watcher)
            watchers.start_soon(_watch_signals, execution)
            watchers.start_soon(_watch_time, execution)
            watchers.start_soon(_write_pending_entries, execution)
            watchers.start_soon(_watch_directory, execution, lock)
            try:
                yield
            finally:
                watchers.cancel_scope.cancel()


async def _watch_signals(execution: Execution) -> None:
    """End the run at an abort; emit what is requested; let batches go on when a stop is cancelled."""
    board, emitted = execution.board, None
    while True:
        request = board.request
        if request is not None and request.kind == "abort":
            if execution.replies_sent is not None:  # an agent that requested it through us gets its reply first
                await execution.replies_sent()
            execution.end_now(execution.guard.aborted())
        if request is not emitted:
            _emit_request(execution, request, emitted)
            emitted = request
        execution.batches.wake()
        await board.wait_changed()


def _emit_request(execution: Execution, request: Request | None, before: Request | None) -> None:
    data: dict[str, Any] = {"signal": before.kind if before else "stop", "cancelled": True}
    if request is not None:
        path = request.signal.path if request.signal else None
        data = {"signal": request.kind, "reason": request.reason, "source": request.source, "path": path}
    execution.emit_unjournalled(kinds.SIGNAL, data)


async def _watch_time(execution: Execution) -> None:
    """End the run at the limit of its time; boundaries check it too, this is for a step that takes too long."""
    while True:
        execution.guard.tick()
        left_s = execution.guard.time_remaining_s()
        if left_s is None:
            return
        if left_s <= 0:
            execution.end_now(execution.guard.out_of_time())
            return
        await anyio.sleep(left_s)


async def _write_pending_entries(execution: Execution) -> None:
    """Write what a locked journal could not take, as soon as it can."""
    try:
        await execution.ledger.keep_up()
    except StoreError as error:
        execution.lose_journal(error)


async def _watch_directory(execution: Execution, lock: run_lock.RunLock) -> None:
    """End the run when its directory is moved: no signal reaches it there, and nothing that it does is kept."""
    await wait_until_moved(lock.is_in_place)
    where = execution.board.scope.own_directory
    execution.end_now(Ending("interrupted", f"{where} was moved, removed or replaced while the run was executed"))


async def wait_until_moved(is_in_place: Callable[[], bool]) -> None:
    """Wait until a file that this process holds was moved, removed or replaced, so that nobody can find us by it."""
    while is_in_place():  # noqa: ASYNC110 - there is no event for it
        await anyio.sleep(_IN_PLACE_EVERY_S)
