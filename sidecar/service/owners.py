"""Chooses where a run is executed: in this process, in the project's daemon, or in a detached process of its own.

A run is given away under its lock, by a request in the journal. The daemon takes runs on a socket: a line of JSON says
which one, a line of JSON answers when it is running.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import UNIXSocketStream
from anyio.lowlevel import RunVar
from anyio.streams.buffered import BufferedByteReceiveStream

from sidecar import layout
from sidecar.agents import detach
from sidecar.agents.detach import Starter
from sidecar.catalog import workflows
from sidecar.catalog.workflows import restore
from sidecar.engine.boundary import Ending
from sidecar.engine.ending import end_unexecuted, revert_beginning
from sidecar.engine.execution import REQUEST, locked
from sidecar.engine.owner import Owner
from sidecar.engine.replay import definition_of
from sidecar.engine.server_driven import RunEndpoint, ServerDriven
from sidecar.engine.steps.context import AskablePerson
from sidecar.errors import REPORTED, InputError, SidecarError, StoreError
from sidecar.model import duration, ulid
from sidecar.model import events as kinds
from sidecar.service.status import describe
from sidecar.signals import run_lock
from sidecar.sockets import Listener, connect, serve_each
from sidecar.store.journal import OPEN, Journal

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from anyio.abc import TaskGroup, TaskStatus

    from sidecar.agents.adapters.adapter import McpConfiguration
    from sidecar.catalog.workflows import Definition
    from sidecar.config import Project
    from sidecar.model.events import RunEvent
    from sidecar.store.db import Database
    from sidecar.store.journal import StoredRun

    Begin = Callable[..., Awaitable[None]]

# Of the layers below, for the surfaces, which import nothing of those.
__all__ = ["AskablePerson", "Ending", "Owner", "RunEndpoint", "ServerDriven", "Starter"]

logger = logging.getLogger("sidecar.runs")
P = ParamSpec("P")
T = TypeVar("T")
LOG = "owner.log"  # in the run's directory: what its detached owner prints, which is little
# What is written to a socket is not read yet: between us and an agent's MCP client a pump passes it on.
_RELAY_S = 0.02
_LONGEST = 16 * 1024 * 1024
_REQUEST_S = 60.0  # how long somebody who connects may take to say what is asked
_MAX_THREADS = 4
_SWITCH_S = 0.0005
_MIDDLE_BEFORE_OLDEST = 100  # collections; Python's own 10 had four pauses of up to 0.2 s in the reading of 1 MiB

# --- what takes long and changes nothing


_limiter = RunVar[anyio.CapacityLimiter]("_limiter")
client_lock: ContextVar[anyio.Lock | None] = ContextVar("client_lock", default=None)  # each client has one thread


async def in_thread(function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
    """Call what takes long and changes nothing in a thread, so that the event loop, and with it an abort, goes on.

    It reads files, or evaluates with `owner.trials`; never with what runs use."""
    async with client_lock.get() or nullcontext():
        return await anyio.to_thread.run_sync(lambda: function(*args, **named), limiter=_few())


def _few() -> anyio.CapacityLimiter:
    """Not as many threads as there are callers: they share one interpreter with the loop."""
    try:
        return _limiter.get()
    except LookupError:
        _share_interpreter()
        limiter = anyio.CapacityLimiter(_MAX_THREADS)
        _limiter.set(limiter)
        return limiter


def _share_interpreter() -> None:
    """Let the loop have its turn soon, and seldom wait for a collection of the oldest generation: that takes as long as
    there are objects, and while a large file is read there are a million."""
    sys.setswitchinterval(_SWITCH_S)
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _MIDDLE_BEFORE_OLDEST)


async def definition_in_thread(owner: Owner, run: StoredRun) -> Definition:
    """The definition that a run goes by. As long as the caller holds it, it is not read again."""
    return await in_thread(restore, definition_of(owner.journal, run))


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What a person gives to one start of a run. `with_changes`: the workflow as its file is now."""

    feedback: str | None = None
    approve: bool = False
    answer: Any = None
    with_changes: bool = False


def changed_definition(root: str, journal: Journal, run: StoredRun) -> Definition | None:
    """The workflow as its files are now, where that is not what the run goes by. They may be broken, or gone."""
    record = definition_of(journal, run)
    if record["path"].startswith("<"):  # made for this run: it has no file
        return None
    found = workflows.find(root, run.workflow)
    return None if found.record() == record else found


def pending_question(database: Database, root: str, run_id: str) -> dict[str, Any]:
    """The question that a paused run waits for; InputError where it waits for none."""
    found = describe(database, root, run_id)
    needs: dict[str, Any] = found["needs"] or {}
    if found["status"] == "paused" and needs.get("kind") == "answer":
        return needs
    hint = f"; to approve it: sidecar resume {run_id} --approve" if needs else ""
    raise InputError(f"run {run_id} is not waiting for an answer (status: {found['status']}){hint}")


# --- runs that this process executes


def open_owner(project: Project, report: Callable[[str], None]) -> Owner:
    """What a process shares among all runs that it executes, to be entered; `report` gets warnings."""
    return Owner(project.root, project.settings, project.environment, report)


def leading_back(root: str, run_id: str) -> McpConfiguration:
    """How an agent's MCP client is led to the run that the agent belongs to."""
    # -P: the agent's working directory is full of modules that are not ours.
    command = (sys.executable, "-P", "-m", "sidecar", "serve")
    return {"command": command, "env": {"SIDECAR_PROJECT": root, "SIDECAR_RUN_ID": run_id}}


@dataclass(frozen=True, slots=True)
class _Live:
    execution: ServerDriven
    tasks: TaskGroup  # what outlives the call that asked for it, and ends with the run


class LocalRuns:
    """Who is executed here, and what all of them share."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.endpoint: RunEndpoint | None = None  # of each run, for its agents to call
        self.listeners = owner.listeners
        self.replies: set[Callable[[], Coroutine[Any, Any, Any]]] = set()  # each waits until a server's answers are out
        self._live: dict[str, _Live] = {}

    def execution(
        self,
        run_id: str,
        on_event: Callable[[RunEvent], None],
        options: StartOptions | None = None,
        *,
        person: AskablePerson | None = None,
        request: str | None = None,
        attached: bool = False,
    ) -> ServerDriven:
        """One start of a run, as all of this process are made. `person`, `request`, `attached`: as ServerDriven has
        them. InputError where the run does not wait for the answer that comes with it."""
        owner, given = self.owner, options or StartOptions()
        run = owner.journal.run(run_id)
        if given.answer is not None and run.status in OPEN:  # else the start finds that the run has ended
            person = AnswerOnce(pending_question(owner.database, owner.root, run_id)["step"], given.answer, person)

        return ServerDriven(
            owner,
            run_id,
            on_event,
            person=person,
            feedback=given.feedback,
            approve=given.approve,
            definition=changed_definition(owner.root, owner.journal, run) if given.with_changes else None,
            request=request,
            attached=attached,
            mcp=leading_back(owner.root, run_id),
            endpoint=self._around,
            replies_sent=self.replies_out,
        )

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
                async with self.endpoint(execution) if self.endpoint else nullcontext():
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


class Executor(Protocol):
    """Who executes server-driven runs, outliving the call that asks for it."""

    async def begin(self, run_id: str, options: StartOptions | None = None) -> None:
        """Start it, or go on with it; returns when somebody has taken it on."""

    async def submit_stage(self, run_id: str, stage: str, output: str, kind: str) -> dict[str, Any] | None:
        """A stage of a run that is executed here; None where it is executed elsewhere."""

    def live(self, run_id: str) -> ServerDriven | None:
        """A run while it is executed here."""


class LocalExecutor:
    """Executes runs in the tasks of this process, which outlives whoever asks for them."""

    def __init__(self, runs: LocalRuns, tasks: TaskGroup) -> None:
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

    async def begin(self, run_id: str, options: StartOptions | None = None, *, request: str | None = None) -> None:
        """Start it, or go on with it; returns when it is running. SidecarError: it is not, and why."""
        owner = self.runs.owner
        held = await definition_in_thread(owner, owner.journal.run(run_id))  # until the run holds it
        if self._interrupted is not None:
            raise SidecarError("the daemon is ending: it takes no more runs")
        await self._tasks.start(self._execute, run_id, options, request)
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

    async def _execute(
        self, run_id: str, options: StartOptions | None, request: str | None, *, task_status: TaskStatus[None]
    ) -> None:
        # Here and not in `begin`, which waits: nothing comes between this look and the entry below.
        if run_id in self._executions:
            raise SidecarError(f"run {run_id} is already being executed")
        begun = False

        def on_event(event: RunEvent) -> None:
            nonlocal begun
            if not begun and event.kind in (kinds.RUN_STARTED, kinds.RUN_RESUMED):
                begun = True
                task_status.started()

        execution = self.runs.execution(run_id, on_event, options, request=request)
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


class AnswerOnce:
    """Gives one answer, once, to the step that it is for; any other question goes to the person, where there is one."""

    def __init__(self, step: str, answer: Any, person: AskablePerson | None = None) -> None:
        self._step: str | None = step
        self._answer = answer
        self._person = person

    async def ask(self, question: dict[str, Any], problem: str | None) -> Any:
        """The answer, or what the person says; None: the run pauses again."""
        if problem is None and question.get("step") == self._step:
            self._step = None
            return self._answer
        return await self._person.ask(question, problem) if self._person is not None else None

    async def lend_terminal(self, run: Callable[[int], Awaitable[int]]) -> int | None:
        """The person's, where there is one."""
        return await self._person.lend_terminal(run) if self._person is not None else None


# --- runs that are given away


class DetachedExecutor:
    """Has runs executed by somebody who outlives this process. `runs`: those few that it executes itself."""

    def __init__(self, project: Project, journal: Journal, runs: LocalRuns | None = None) -> None:
        self._project = project
        self._journal = journal
        self._runs = runs

    async def begin(self, run_id: str, options: StartOptions | None = None) -> None:
        """Start it, or go on with it; returns when somebody has taken it on."""
        await delegate(self._project, self._journal, run_id, options)

    async def submit_stage(self, run_id: str, stage: str, output: str, kind: str) -> dict[str, Any] | None:
        """A stage of a run that is executed here; None where it is executed elsewhere."""
        return await self._runs.submit_stage(run_id, stage, output, kind) if self._runs else None

    def live(self, run_id: str) -> ServerDriven | None:
        """The run while it is executed here."""
        return self._runs.live(run_id) if self._runs else None


async def start(executor: Executor, journal: Journal, run_id: str, options: StartOptions | None = None) -> bool:
    """Have a run executed; False: nothing was, because it has ended meanwhile."""
    before = journal.last_seq(run_id)
    await executor.begin(run_id, options)
    begun = (kinds.RUN_STARTED, kinds.RUN_RESUMED)
    return journal.run(run_id).status in OPEN or any(one.kind in begun for one in journal.events(run_id, before))


async def give_away(project: Project, database: Database, run_id: str, options: StartOptions | None = None) -> bool:
    """Have a run executed by the daemon, or by a process of its own; False: it has ended meanwhile."""
    journal = Journal(database)
    try:
        return await start(DetachedExecutor(project, journal), journal, run_id, options)
    except REPORTED as error:
        raise SidecarError(f"run {run_id} is not executed: {error}") from None


async def delegate(project: Project, journal: Journal, run_id: str, options: StartOptions | None = None) -> None:
    """Have it executed elsewhere; returns when somebody holds its lock. SidecarError: nobody does, nor will, and why.

    The request stands in the journal, and whoever executes the run looks for it there under the run's lock: one that is
    taken back is executed by nobody, however late a daemon reads it.
    """
    request = {"id": ulid.new(), "environment": dict(project.environment)}
    async with locked(project.root, run_id):
        details = {**journal.run(run_id).details, REQUEST: request}
        journal.change(run_id, details=details)
    asked = {"run_id": run_id, "request": request["id"], **asdict(options or StartOptions())}
    try:
        await _delegate(project, asked)
    except REPORTED as error:
        if await _taken_back(project.root, journal, asked, str(error)):
            raise


async def _delegate(project: Project, asked: dict[str, Any]) -> None:
    within_s = duration.seconds(project.settings.hand_over_within)
    if await _to_the_daemon(project.root, asked, within_s):
        return
    run_id = asked["run_id"]
    # -P: the project is the working directory, and its modules must not be taken for ours.
    argv = [sys.executable, "-P", "-m", "sidecar", "--project", project.root, "own", json.dumps(asked)]
    log_path = os.path.join(layout.run_directory(project.root, run_id), LOG)
    await detach.start(argv, cwd=project.root, environment=project.environment, log_path=log_path, within_s=within_s)


async def _taken_back(root: str, journal: Journal, asked: dict[str, Any], why: str) -> bool:
    """Take the request back, under the run's lock; False where somebody executes it, or has, after all."""
    run_id = asked["run_id"]
    try:
        async with locked(root, run_id):
            run = journal.run(run_id)
            if (run.details.get(REQUEST) or {}).get("id") != asked["request"]:
                return False
            details = {name: value for name, value in run.details.items() if name != REQUEST}
            run = journal.change(run_id, details=details)
            if run.status == "pending" and not run.start:
                end_unexecuted(root, journal, run_id, why)
            revert_beginning(root, journal, run)
    except run_lock.RunBusy:
        return False
    return True


def options_in(asked: dict[str, Any]) -> StartOptions:
    """The options of a run that was given away."""
    return StartOptions(**{one.name: asked[one.name] for one in fields(StartOptions) if one.name in asked})


async def accept_delegated(
    root: str, begin: Begin, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """The daemon's side, until cancelled: `begin` starts what is asked for. The caller is the project's daemon."""
    with Listener(layout.handover_socket(root)) as listening:
        task_status.started()
        await serve_each(listening, lambda connected: _answered(connected, begin), "hand-over")


async def _answered(connected: socket.socket, begin: Begin) -> None:
    async with await UNIXSocketStream.from_socket(connected) as stream:
        try:
            with anyio.fail_after(_REQUEST_S):
                line = await BufferedByteReceiveStream(stream).receive_until(b"\n", _LONGEST)
            told = await _begun(json.loads(line), begin)
            await stream.send(json.dumps(told).encode() + b"\n")
        except Exception as error:  # whoever it was is gone, or was none of ours: no reason for the daemon to end
            logger.info("a hand-over connection ended: %r", error)


async def _begun(asked: dict[str, Any], begin: Begin) -> dict[str, Any]:
    try:
        await begin(asked["run_id"], options_in(asked), request=asked.get("request"))
    except REPORTED as error:
        return {"error": str(error)}
    except OSError as error:  # out of descriptors, for one
        return {"error": f"the daemon cannot execute it: {error.strerror or error}"}
    except Exception as error:
        logger.exception("a run could not be taken over")
        return {"error": f"the daemon cannot execute it ({type(error).__name__}); see its log"}
    return {"begun": True}


async def _to_the_daemon(root: str, asked: dict[str, Any], within_s: float) -> bool:
    """False where there is no daemon, or it went away before it had the run."""
    try:
        connected = connect(layout.handover_socket(root))
    except OSError:
        return False
    with connected:
        connected.setblocking(False)
        with anyio.move_on_after(within_s):
            try:
                answer = await _exchange(connected, json.dumps(asked).encode() + b"\n")
            except OSError:
                return False
            if not answer:
                return False
            told = json.loads(answer)
            if "error" in told:
                raise SidecarError(told["error"])
            return True
    raise SidecarError(f"the daemon of {root} has not started run {asked['run_id']} within {within_s:g} s")


async def _exchange(connected: socket.socket, line: bytes) -> bytes:
    while line:
        await anyio.wait_writable(connected)
        line = line[connected.send(line) :]
    answer = b""
    while not answer.endswith(b"\n"):
        await anyio.wait_readable(connected)
        more = connected.recv(65536)
        if not more:
            return b""
        answer += more
    return answer
