"""One supervised process tree, from the request to start it until its one end."""

from __future__ import annotations

import errno
import math
import os
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.agents import kill, lineage
from sidecar.agents.launch import Pipes
from sidecar.agents.lineage import Identity, Lineage
from sidecar.agents.mask import Secrets
from sidecar.agents.stream import SUBSCRIPTION_BYTES, Feed, Pump, Sink, Subscription
from sidecar.agents.tree import SharedLook, Tree
from sidecar.errors import AgentFailed
from sidecar.model import ulid
from sidecar.model.agent import AgentEnded, AgentRecord, EndedProcess, EndReason, Reason, Rung, worst

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.agents.containment import Containment
    from sidecar.agents.launch import Launch
    from sidecar.agents.link import Link

_STATUS_S = 1.0  # how long the exit status of a dead agent may take to reach us


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all agents of one owner share."""

    project: str
    containment: Containment
    shared: SharedLook
    link: Link
    owner: lineage.MarkerOwner
    boot_id: str
    excluded_pids: frozenset[int]  # never members of an agent's tree: the owner, the sentinel
    excluded_sessions: frozenset[int]  # theirs
    adopter: Callable[[], int | None]  # the sentinel, while all that it adopted must come from one agent
    left: Callable[[str, AgentEnded | None], None]  # told once by each agent, when it is over


class Agent:
    """One supervised process tree, from the request to start it until its one `AgentEnded`."""

    def __init__(self, around: Surroundings, launch: Launch) -> None:
        self.agent_id = ulid.new()
        self.launch = launch
        self._around = around
        self._secrets = Secrets(launch.secrets)
        self._number = 0
        self.root = Identity(0, 0.0)
        self.command = self._secrets.masked_text(" ".join(launch.argv))
        self.program = os.path.basename(launch.argv[0])
        self._marker = lineage.new_marker(self.agent_id, around.owner)
        self._lineage = Lineage(
            self._marker,
            lineage.new_tag(),
            excluded_pids=around.excluded_pids,
            excluded_sessions=around.excluded_sessions,
        )
        self._group = around.containment.new_group(self.agent_id)
        self.tree = Tree(around.shared, self._lineage, self._group, around.adopter)
        self._begun = time.monotonic()
        self._reason: EndReason | None = None
        self._kill_at = math.inf
        self._failure: AgentFailed | None = None
        self._exit: dict[str, Any] | None = None
        self._lost = False
        self._news = anyio.Event()
        self._ended: AgentEnded | None = None
        self._over = anyio.Event()
        self._feed: Feed | None = None
        self._sink: Sink | None = None
        self._pumps: list[Pump] = []

    @property
    def pid(self) -> int:
        """The pid of the command itself."""
        return self.root.pid

    @property
    def started_at(self) -> float:
        """When it began, on the clock that people use."""
        return self._around.shared.table.epoch_s(self.root.started)

    @property
    def last_output_at(self) -> float:
        """When (monotonic) something came from it last: evidence of life for whoever watches for stalls."""
        return max((pump.last_at for pump in self._pumps), default=self._begun)

    @property
    def record(self) -> AgentRecord:
        """What the journal keeps, so that the agent is found if the owner dies."""
        return AgentRecord(
            self.agent_id,
            self.launch.run_id,
            self.pid,
            self.root.started,
            self._around.boot_id,
            self._marker,
            self._lineage.tag,
            self._group,
        )

    def subscribe(self, capacity_bytes: int = SUBSCRIPTION_BYTES) -> Subscription:
        """The output's lines. The first subscriber also gets what came before it subscribed."""
        assert self._sink is not None
        return self._sink.subscribe(capacity_bytes)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop listening."""
        assert self._sink is not None
        self._sink.unsubscribe(subscription)

    def write_stdin(self, data: bytes) -> bool:
        """More input, where stdin was kept open; False where it is closed."""
        return self._feed is not None and self._feed.add(data)

    def close_stdin(self) -> bool:
        """End of input; whether it was open until now."""
        was_open = self._feed is not None and self._feed.is_open
        if self._feed is not None:
            self._feed.close()
        return was_open

    def request_end(self, reason: EndReason, kill_after_s: float | None = None) -> None:
        """Ask for the end without waiting. The first reason stays; a later request can only be more urgent."""
        grace_s = self.launch.kill_after_s if kill_after_s is None else kill_after_s
        self._kill_at = min(self._kill_at, time.monotonic() + grace_s)
        self._reason = self._reason or reason
        self._stir()

    async def end(self, reason: EndReason, kill_after_s: float | None = None) -> AgentEnded:
        """End it by the ladder. Returns the same end to everybody who asks, also when the caller is cancelled."""
        self.request_end(reason, kill_after_s)
        with anyio.CancelScope(shield=True):
            await self._over.wait()
        return await self.wait()

    async def wait(self) -> AgentEnded:
        """Its end, whoever or whatever brings it about."""
        await self._over.wait()
        if self._ended is not None:
            return self._ended
        raise self._failure or AgentFailed(f"{self._name} never started")

    async def over(self) -> None:
        """Wait until nothing of it is left, whether it ever ran or not."""
        await self._over.wait()

    # What the ladder asks for.

    async def interrupt(self) -> bool:
        """The agent's own way to be interrupted; whether its adapter knows one."""
        if self.launch.interrupt is None:
            return False
        await self.launch.interrupt(self)
        return True

    def kill_at(self) -> float:
        """When the last rung is due."""
        return self._kill_at

    async def news(self, within_s: float) -> None:
        """Wait for word of this agent, for so long at most."""
        if self._news.is_set():
            self._news = anyio.Event()
        with anyio.move_on_after(within_s):
            await self._news.wait()

    # Its life.

    def request_start(self) -> None:
        """Open the pipes and ask the sentinel for the process."""
        launch = self.launch
        try:
            self._sink = Sink(launch.log_path)
            pipes = Pipes(feeds_stdin=launch.feeds_stdin)
        except OSError as error:
            self._leave()
            raise AgentFailed(f"{self._name}: {error.strerror}: {error.filename or 'no more pipes'}") from None
        self._pumps = [
            Pump("stdout", pipes.mine["stdout"], self._sink, self._secrets),
            Pump("stderr", pipes.mine["stderr"], self._sink, self._secrets),
        ]
        if launch.feeds_stdin:
            self._feed = Feed(pipes.mine["stdin"], launch.stdin or b"", keep_open=launch.keep_stdin_open)
        request = {
            "argv": list(launch.argv),
            "cwd": launch.cwd,
            "env": launch.environment(self._around.project, self._marker),
            "marker": self._marker,
            "tag": self._lineage.tag,
            "group": self._group,
        }
        try:
            self._number = self._around.link.start(request, pipes.theirs, self._hear)
        except AgentFailed:
            self._leave()
            raise
        for pump in self._pumps:
            pump.start()
        if self._feed is not None:
            self._feed.start()

    async def live(self) -> None:
        """From the request to the one end. Nothing cancels it: whoever wants it over asks for the end."""
        with anyio.CancelScope(shield=True):
            try:
                await self._until(lambda: bool(self.root.pid) or self._failure is not None or self._lost)
                if self.root.pid:
                    await self._until(lambda: self._exit is not None or self._reason is not None or self._lost)
                    self._ended = await self._end_tree()
                elif self._failure is None:
                    # The sentinel may have started it without living to tell: its marks find it.
                    self._failure = AgentFailed(f"{self._name}: the sentinel was gone before it could start it")
                    await kill.climb(self, polite=False)
            except Exception as error:  # whatever broke in here, the agent has its one end and nothing is left
                self._ended = self._event("internal_error", (), self._kill_now(), f"{type(error).__name__}: {error}")
            finally:
                self._leave()

    async def started(self) -> None:
        """Wait until it runs; raises where it cannot."""
        await self._until(lambda: bool(self.root.pid) or self._over.is_set())
        if self._failure is not None:
            raise self._failure

    async def _end_tree(self) -> AgentEnded:
        asked = self._reason
        reason: Reason = asked or ("internal_error" if self._lost else "exited")
        survivors = 0
        exit_ = self._exit
        if asked is None and exit_ is not None and self.tree.is_surely_empty(orphans=exit_["orphans"]):
            ledger = kill.Ledger(self.tree)
            ledger.add(self.root, self.program)
            ledger.note([])
        else:
            if asked is None:
                self._kill_at = time.monotonic() + self.launch.kill_after_s
            ledger = await kill.climb(self, polite=exit_ is None)
            survivors = len(ledger.living)
        processes = ledger.processes(self.launch.run_id)
        deadline = time.monotonic() + _STATUS_S
        while self._exit is None and not self._lost and not survivors and time.monotonic() < deadline:
            await self.news(deadline - time.monotonic())
        problem = "the sentinel that started it was killed" if reason == "internal_error" and self._lost else None
        return self._event(reason, processes, survivors, problem)

    def _kill_now(self) -> int:
        try:
            return self.tree.kill_now()
        except OSError:  # the process table itself cannot be read: nobody proved that it is gone
            return 1

    def _event(
        self, reason: Reason, processes: tuple[EndedProcess, ...], survivors: int, problem: str | None = None
    ) -> AgentEnded:
        assert self._sink is not None
        for pump in self._pumps:
            pump.finish()
        rungs: list[Rung] = [process.rung for process in processes]
        return AgentEnded(
            agent_id=self.agent_id,
            run_id=self.launch.run_id,
            task_id=self.launch.task_id,
            pid=self.root.pid,
            reason=reason,
            exit_code=None if self._exit is None else self._exit["status"],
            rung=worst(rungs) if not survivors else "kill",
            duration_s=time.monotonic() - self._begun,
            tail=self._sink.tail(),
            processes=processes,
            survivors=survivors,
            problem=problem or self._sink.problem,
        )

    def _leave(self) -> None:
        """Give back everything that was taken, and tell everybody."""
        for pump in self._pumps:
            pump.finish()
        self.close_stdin()
        if self._sink is not None:
            self._sink.close()
        if self._number:
            self._around.link.release(self._number)
        self.tree.forget()
        self._over.set()
        self._stir()
        self._around.left(self.agent_id, self._ended)

    def _hear(self, message: dict[str, Any] | None) -> None:
        if message is None:
            self._lost = True
        elif message["told"] == "started":
            self.root = self._lineage.root = Identity(message["pid"], message["started"])
        elif message["told"] == "failed":
            self._failure = AgentFailed(self._why_not(message["errno"], message["what"]))
        else:
            self._exit = message
        self._stir()

    def _why_not(self, number: int | None, what: object) -> str:
        program = self.launch.argv[0]
        if number is None:
            return f"{self._name}: cannot run {program!r}: {what}"
        path = self.launch.environment(self._around.project, self._marker).get("PATH")
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

    def _stir(self) -> None:
        self._news.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._news.is_set():
                self._news = anyio.Event()
            await self._news.wait()
