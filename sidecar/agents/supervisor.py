"""Starts every process of an owner, and ends each with all that it started; none outlives its supervisor."""

from __future__ import annotations

import errno
import logging
import math
import os
import resource
import shutil
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import anyio

from sidecar.agents.containment import Containment, choose
from sidecar.agents.ladder import KILL_AFTER_S, Endable, SharedTable, Tree, casualties_of_clean_exit, end_tree
from sidecar.agents.lineage import MARKER_VARIABLE, Identity, Lineage, MarkerOwner, boot_id, pid_namespace, with_marker
from sidecar.agents.output import AgentPipes, Secrets
from sidecar.agents.sentinel_link import SentinelLink
from sidecar.errors import AgentFailed
from sidecar.model import ulid
from sidecar.model.agent import AgentEnded, AgentRecord, EndedProcess, EndReason, Reason, Rung

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from sidecar.agents.containment import Setting

logger = logging.getLogger("sidecar.runs")
_DESCRIPTORS = 65_536
_STATUS_S = 1.0  # how long the exit status of a dead agent may take to reach us


class Supervisor:
    """One per owner: its containment, its sentinel, its process table, all its agents.

    Leaving it, by whatever way, ends every agent and returns when their trees are empty.
    """

    def __init__(
        self,
        project: str,
        *,
        containment: Setting | Containment = "auto",
        on_ended: Callable[[AgentEnded], None] | None = None,
    ) -> None:
        self.project = project
        self.containment = containment if isinstance(containment, Containment) else choose(containment)
        self.shared = SharedTable(self.containment.table())
        self.boot_id = boot_id()
        row = self.shared.table.row(os.getpid())
        self.owner = MarkerOwner(os.getpid(), row.started if row else 0.0, pid_namespace())
        self.agents: dict[str, Agent] = {}
        self._on_ended = on_ended
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # for agents: ours is about to be raised
        self._link = SentinelLink(self.containment, self._descriptors)
        self._replacing = anyio.Lock()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._link.open()
        _allow_descriptors()
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            for agent in list(self.agents.values()):
                agent.request_end("shutdown")
            return await self._stack.__aexit__(kind, error, trace)
        finally:
            await self._link.close()

    @property
    def sentinel_pid(self) -> int:
        """The process that kills the agents if this one dies."""
        return self._link.pid

    async def start(self, launch: Launch) -> Agent:
        """Start a command. Returns when it runs; cancelled meanwhile, it leaves nothing running."""
        if not self._link.answers():
            await self._replace_sentinel()
        agent = Agent(self, self._link, launch)
        agent.request_start()
        self.agents[agent.agent_id] = agent
        self._tasks.start_soon(agent.live)
        try:
            await agent.started()
        except anyio.get_cancelled_exc_class():
            agent.request_end("abort")
            with anyio.CancelScope(shield=True):
                await agent.over()
            raise
        return agent

    async def run(self, launch: Launch) -> AgentEnded:
        """Start a command and wait for its end; cancelled meanwhile, it is ended as an abort."""
        agent = await self.start(launch)
        try:
            return await agent.wait()
        except anyio.get_cancelled_exc_class():
            await agent.end("abort")
            raise

    def agent_is_over(self, agent_id: str, ended: AgentEnded | None) -> None:
        """Each agent calls this once; `ended` is None where it never ran."""
        self.agents.pop(agent_id, None)
        if ended is not None and self._on_ended is not None:
            self._on_ended(ended)

    def adopter(self, link: SentinelLink) -> int | None:
        """The sentinel, while every orphan that it adopted must come from the one agent that there is."""
        alone = len(self.agents) == 1 and self.containment.name != "sweep"
        return link.pid if alone and not link.lost else None

    async def _replace_sentinel(self) -> None:
        """It was killed. Its agents know that and are being ended by their ladders: the new one need not know them."""
        async with self._replacing:
            if self._link.answers():
                return
            await self._link.close()
            gone, self._link = self._link.pid, SentinelLink(self.containment, self._descriptors)
            await self._link.open()
            logger.warning("the sentinel, process %d, was killed; another one is process %d", gone, self._link.pid)


def _allow_descriptors() -> None:
    """An agent costs us up to four descriptors: take enough for thousands. The sentinel keeps the limit that was,
    and agents inherit that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # macOS names a hard limit that it does not grant
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command to start, with its surroundings."""

    argv: Sequence[str]
    cwd: str
    starter_env: Mapping[str, str] | None = None  # None: the owner's own
    env: Mapping[str, str] = field(default_factory=dict)  # what the step adds
    stdin: bytes | None = None
    keep_stdin_open: bool = False
    log_path: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    secrets: Sequence[str] = ()
    kill_after_s: float = KILL_AFTER_S
    interrupt: Callable[[Agent], Awaitable[None]] | None = None  # the first rung of the ladder, where there is one

    def __post_init__(self) -> None:
        """AgentFailed for what no operating system starts. Values are not shown: they may be secrets."""
        if not self.argv:
            raise AgentFailed("there is no command to run")
        given = [("the working directory", self.cwd), ("the program's name", self.argv[0])]
        given += [(f"argument {number}", word) for number, word in enumerate(self.argv[1:], 1)]
        given += [(f"the variable {name!r}", value) for name, value in self.env.items()]
        given += [(f"the name of the variable {name!r}", name) for name in self.env]
        for what, text in given:
            if (why := unfit(text)) is not None:
                raise AgentFailed(f"{what} {why}, which cannot be passed to a program")
        for name in self.env:
            if not name or "=" in name:
                raise AgentFailed(f"{name!r} cannot be the name of a variable")

    def environment(self, project: str, marker: str) -> dict[str, str]:
        """The starter's, what the step adds, ours, and the marker."""
        environment = dict(os.environ if self.starter_env is None else self.starter_env)
        environment.update(self.env)
        environment["SIDECAR_PROJECT"] = project
        for name, value in (("SIDECAR_RUN_ID", self.run_id), ("SIDECAR_TASK_ID", self.task_id)):
            if value is None:
                environment.pop(name, None)  # the outer agent's must not pass for this one's
            else:
                environment[name] = value
        environment[MARKER_VARIABLE] = with_marker(environment, marker)
        return environment


def unfit(text: str) -> str | None:
    """What keeps a text from being an argument, a variable or a path; None where nothing does."""
    if "\0" in text:
        return "holds a NUL byte"
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return "holds half a surrogate pair"
    return None


class Agent(Endable):
    """One supervised process tree, from the request to start it until its one `AgentEnded`."""

    def __init__(self, supervisor: Supervisor, link: SentinelLink, launch: Launch) -> None:
        """AgentFailed: there is nothing to start it with."""
        self.agent_id = ulid.new()
        self.launch = launch
        self._supervisor = supervisor
        self._link = link
        self._begun = time.monotonic()
        secrets = Secrets(launch.secrets)
        self.command = secrets.masked_text(" ".join(launch.argv))
        try:
            self.pipes = AgentPipes(launch.log_path, secrets, launch.stdin, keep_stdin_open=launch.keep_stdin_open)
        except OSError as error:
            raise AgentFailed(f"{self._name}: {error.strerror}: {error.filename or 'no more pipes'}") from None
        self._lineage = Lineage.of_new_agent(
            self.agent_id,
            supervisor.owner,
            excluded_pids=frozenset({1, supervisor.owner.pid, link.pid}),
            excluded_sessions=frozenset({os.getsid(0), link.session}),
        )
        try:
            self._group = supervisor.containment.new_group(self.agent_id)
        except AgentFailed:
            self.pipes.discard()
            raise
        tree = Tree(supervisor.shared, self._lineage, self._group, lambda: supervisor.adopter(link))
        super().__init__(tree, kill_at=math.inf)
        self.program = os.path.basename(launch.argv[0])
        self._number = 0  # by which the sentinel knows it
        self._reason: EndReason | None = None  # why it was asked to end, if it was
        self._failure: AgentFailed | None = None  # why it never ran
        self._exit: dict[str, Any] | None = None  # the sentinel's message
        self._sentinel_lost = False
        self._news = anyio.Event()
        self._ended: AgentEnded | None = None
        self._over = anyio.Event()

    @property
    def pid(self) -> int:
        """The pid of the command itself."""
        return self.root.pid

    @property
    def record(self) -> AgentRecord:
        """What the journal keeps, so that the agent is found if the owner dies."""
        return AgentRecord(
            self.agent_id,
            self.launch.run_id,
            self.pid,
            self.root.started,
            self._supervisor.boot_id,
            self._lineage.marker,
            self._lineage.tag,
            self._group,
        )

    def request_end(self, reason: EndReason, kill_after_s: float | None = None) -> None:
        """Ask for the end without waiting. The first reason stays; a later request can only be more urgent."""
        grace_s = self.launch.kill_after_s if kill_after_s is None else kill_after_s
        self.kill_at = min(self.kill_at, time.monotonic() + grace_s)
        self._reason = self._reason or reason
        self._news.set()

    async def end(self, reason: EndReason, kill_after_s: float | None = None) -> AgentEnded:
        """End it by the ladder. Returns the same end to all callers, also to one that is cancelled."""
        self.request_end(reason, kill_after_s)
        with anyio.CancelScope(shield=True):
            await self._over.wait()
        return await self.wait()

    async def wait(self) -> AgentEnded:
        """Its end, whatever brings it about. Does not yield to the event loop where that has come already."""
        if not self._over.is_set():
            await self._over.wait()
        if self._ended is not None:
            return self._ended
        raise self._failure or AgentFailed(f"{self._name} never started")

    async def over(self) -> None:
        """Wait until nothing of it is left, whether it ever ran or not."""
        await self._over.wait()

    # Its life: requested, started, exited or asked to end, over.

    def request_start(self) -> None:
        """Ask the sentinel for the process. AgentFailed: nothing was started."""
        request = {
            "argv": list(self.launch.argv),
            "cwd": self.launch.cwd,
            "env": self.launch.environment(self._supervisor.project, self._lineage.marker),
            "marker": self._lineage.marker,
            "tag": self._lineage.tag,
            "group": self._group,
        }
        try:
            self._number = self._link.start(request, self.pipes.child_ends, self._on_message)
        except AgentFailed:
            self._release()
            raise
        self.pipes.start()

    async def started(self) -> None:
        """Wait until it runs; raises where it cannot."""
        while not self.root.pid and not self._over.is_set():
            await self._next_news()
        if self._failure is not None:
            raise self._failure

    async def live(self) -> None:
        """From the request to the one end. Cancellation does not reach it: `request_end` does."""
        with anyio.CancelScope(shield=True):
            try:
                while not (self.root.pid or self._failure or self._sentinel_lost):
                    await self._next_news()
                if self.root.pid:
                    while not (self._exit or self._reason or self._sentinel_lost):
                        await self._next_news()
                    self._ended = await self._end()
                elif self._failure is None:
                    # The sentinel may have started it before it was gone: its marks find it.
                    self._failure = AgentFailed(f"{self._name}: the sentinel was gone before it could start it")
                    await end_tree(self, polite=False)
            except Exception as error:  # whatever broke in here, the agent has its one end and nothing is left
                survivors = self._kill_now()
                rung: Rung = "kill" if survivors else "exited"
                self._ended = self._event("internal_error", (), rung, survivors, f"{type(error).__name__}: {error}")
            finally:
                self._release()

    async def _end(self) -> AgentEnded:
        reason: Reason = self._reason or ("internal_error" if self._sentinel_lost else "exited")
        casualties = None
        if self._exit is not None and self._reason is None:
            casualties = casualties_of_clean_exit(self, orphans=self._exit["orphans"])
        if casualties is None:
            if self._reason is None:
                self.kill_at = time.monotonic() + self.launch.kill_after_s
            casualties = await end_tree(self, polite=self._exit is None)
        survivors = len(casualties.living)
        deadline = time.monotonic() + _STATUS_S
        while self._exit is None and not self._sentinel_lost and not survivors and time.monotonic() < deadline:
            await self.wait_news(deadline - time.monotonic())
        was_lost = reason == "internal_error" and self._sentinel_lost
        problem = "the sentinel that started it was killed" if was_lost else None
        rung, processes = casualties.highest_rung(), casualties.processes(self.launch.run_id)
        return self._event(reason, processes, rung, survivors, problem)

    def _kill_now(self) -> int:
        try:
            return self.tree.kill_now()
        except OSError:  # the process table itself cannot be read: it is not proved that all are gone
            return 1

    def _event(
        self, reason: Reason, processes: tuple[EndedProcess, ...], rung: Rung, survivors: int, problem: str | None
    ) -> AgentEnded:
        tail, log_problem = self.pipes.close()
        return AgentEnded(
            agent_id=self.agent_id,
            run_id=self.launch.run_id,
            task_id=self.launch.task_id,
            pid=self.root.pid,
            reason=reason,
            exit_code=None if self._exit is None else self._exit["status"],
            rung=rung,
            duration_s=time.monotonic() - self._begun,
            tail=tail,
            processes=processes,
            survivors=survivors,
            problem=problem or log_problem,
        )

    def _release(self) -> None:
        """Give back everything that was taken. It is over."""
        if self._ended is None:
            self.pipes.close()
        if self._number:
            self._link.release(self._number)
        self.tree.forget()
        self._over.set()
        self._news.set()
        self._supervisor.agent_is_over(self.agent_id, self._ended)

    # What the ladder asks of it.

    def close_stdin(self) -> bool:
        """Close its stdin; whether it was open."""
        return self.pipes.close_stdin()

    async def interrupt(self) -> bool:
        """The agent's own way to be interrupted; whether its adapter knows one."""
        if self.launch.interrupt is None:
            return False
        await self.launch.interrupt(self)
        return True

    async def wait_news(self, within_s: float) -> None:
        """Wait for news of this agent, for so long at most."""
        with anyio.move_on_after(within_s):
            await self._next_news()

    async def _next_news(self) -> None:
        if self._news.is_set():
            self._news = anyio.Event()
        await self._news.wait()

    # What the sentinel says of it.

    def _on_message(self, message: dict[str, Any] | None) -> None:
        if message is None:
            self._sentinel_lost = True
        elif message["type"] == "started":
            self.root = self._lineage.root = Identity(message["pid"], message["started"])
        elif message["type"] == "failed":
            self._failure = AgentFailed(self._why_not(message["errno"], message["what"]))
        else:
            self._exit = message
        self._news.set()

    def _why_not(self, number: int | None, what: object) -> str:
        program = self.launch.argv[0]
        if number is None:
            return f"{self._name}: cannot run {program!r}: {what}"
        path = self.launch.environment(self._supervisor.project, self._lineage.marker).get("PATH")
        if number == errno.EACCES and "/" not in program and shutil.which(program, path=path) is None:
            # One directory of PATH that may not be searched makes the kernel's answer misleading.
            number = errno.ENOENT
        if what == self.launch.cwd:
            return f"{self._name}: the working directory {self.launch.cwd} cannot be entered: {os.strerror(number)}"
        if what == program or what is None:
            return f"{self._name}: cannot run {program!r}: {os.strerror(number)}"
        return f"{self._name}: cannot run {program!r}: {os.strerror(number)}: {what}"

    @property
    def _name(self) -> str:
        return f"agent {self.agent_id}"
