"""Every process that an owner starts is started here, and none outlives the supervisor that started it."""

from __future__ import annotations

import logging
import os
import resource
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import anyio

from sidecar.agents import lineage
from sidecar.agents.agent import Agent, Surroundings
from sidecar.agents.containment import Containment, choose
from sidecar.agents.launch import Launch
from sidecar.agents.link import Link
from sidecar.agents.tree import SharedLook

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from sidecar.agents.containment import Setting
    from sidecar.model.agent import AgentEnded

__all__ = ["Agent", "Launch", "Supervisor"]

logger = logging.getLogger(__name__)
_DESCRIPTORS = 65_536


class Supervisor:
    """One per owner: its containment, its sentinel, its look at the process table, all its agents.

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
        self.shared = SharedLook(self.containment.table())
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # for agents: ours is about to be raised
        self._link = Link(self.containment, self._descriptors)
        self._replacing = anyio.Lock()
        self._on_ended = on_ended
        self.agents: dict[str, Agent] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._link.open()
        _allow_descriptors()
        self._around = self._under(self._link)
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
        """The process that stands by to kill the agents if this one dies."""
        return self._link.pid

    async def start(self, launch: Launch) -> Agent:
        """Start a command. Returns when it runs; cancelled meanwhile, it leaves nothing running."""
        if not self._link.answers():
            await self._replace_sentinel()
        agent = Agent(self._around, launch)
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

    async def _replace_sentinel(self) -> None:
        """Somebody killed it. Its agents heard of that at once and are being ended by their ladders, from here: the new
        one need not know them."""
        async with self._replacing:
            if self._link.answers():
                return
            await self._link.close()
            gone, self._link = self._link.pid, Link(self.containment, self._descriptors)
            await self._link.open()
            self._around = self._under(self._link)
            logger.warning("the sentinel, process %d, was killed; another one is process %d", gone, self._link.pid)

    def _under(self, link: Link) -> Surroundings:
        row = self.shared.table.row(os.getpid())
        return Surroundings(
            project=self.project,
            containment=self.containment,
            shared=self.shared,
            link=link,
            owner=lineage.MarkerOwner(os.getpid(), row.started if row else 0.0, lineage.pid_namespace()),
            boot_id=lineage.boot_id(),
            excluded_pids=frozenset({1, os.getpid(), link.pid}),
            excluded_sessions=frozenset({os.getsid(0), link.session}),
            adopter=lambda: self._adopter(link),
            left=self._left,
        )

    def _adopter(self, link: Link) -> int | None:
        alone = len(self.agents) == 1 and self.containment.name != "sweep"
        return link.pid if alone and not link.lost else None

    def _left(self, agent_id: str, ended: AgentEnded | None) -> None:
        self.agents.pop(agent_id, None)
        if ended is not None and self._on_ended is not None:
            self._on_ended(ended)


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
