"""The processes of one run: each is journalled when it starts and when its tree is empty, and any can be ended."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from sidecar import layout
from sidecar.errors import StoreError
from sidecar.model import events as kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.agents.agent import Agent
    from sidecar.agents.launch import Launch
    from sidecar.agents.process import Supervisor
    from sidecar.engine.ledger import Ledger
    from sidecar.engine.run import Counters
    from sidecar.model.agent import AgentEnded, EndedProcess, EndReason
    from sidecar.store.journal import Agents


class Processes:
    """What a run has running now, by whom it was asked for."""

    def __init__(
        self,
        supervisor: Supervisor,
        agents: Agents,
        ledger: Ledger,
        counters: Counters,
        directory: str,
        *,
        on_lost: Callable[[StoreError], None],
    ) -> None:
        self._supervisor = supervisor
        self._agents = agents
        self._ledger = ledger
        self._counters = counters
        self._directory = directory
        self._on_lost = on_lost
        # By agent id: with its name, its step's key and its task's id.
        self._running: dict[str, tuple[Agent, str, str, str | None]] = {}
        self._early: dict[str, AgentEnded] = {}  # ends that were told before we heard of the start
        self.ended: list[EndedProcess] = []  # since the last time that somebody asked to end them
        self.survivors = 0
        self._fewer = anyio.Event()

    async def start(self, launch: Launch, name: str, key: str, task_id: str | None) -> Agent:
        """Start one for a step. It dies with its owner, so it is enough to journal it when it runs."""
        agent = await self._supervisor.start(launch)
        self._running[agent.agent_id] = (agent, name, key, task_id)
        log = (launch.log_path or "").removeprefix(self._directory + "/") or None
        told = {"agent_id": agent.agent_id, "pid": agent.pid, "name": name, "command": agent.command}
        try:
            self._ledger.defer(partial(self._agents.started, agent.record))
            self._ledger.record(kinds.AGENT_STARTED, **told, log=log, step=key, task=task_id)
            self._ledger.commit()
        except StoreError:
            await agent.end("internal_error")  # whoever started it never heard of it, and our owner may live on
            raise
        if (ended := self._early.pop(agent.agent_id, None)) is not None:
            self.agent_ended(ended)
        return agent

    def log_path(self) -> str:
        """A file for the next one's output."""
        self._counters.processes += 1
        path = os.path.join(self._directory, "agents", f"{self._counters.processes}.log")
        try:
            layout.make_directory(os.path.dirname(path))
        except OSError as error:  # the disk is full, or somebody put a file there: no reason to fall with a traceback
            raise StoreError(f"cannot make {os.path.dirname(path)}: {error.strerror}", kind="forbidden") from None
        return path

    def request_end(self, reason: EndReason, key: str = "", *, within_s: float | None = None) -> int:
        """Ask all of them to end, or those of one step or thread; how many there are. `within_s`: another grace."""
        found = [agent for agent, _, owner, _ in self._running.values() if not key or _belongs(owner, key)]
        for agent in found:
            agent.request_end(reason, within_s)
        return len(found)

    def steps(self) -> set[str]:
        """The steps that have a process now."""
        return {key for _, _, key, _ in self._running.values() if key}

    async def idle(self) -> None:
        """Wait until no step has a process."""
        while self.steps():
            await self._fewer.wait()

    def spend(self, key: str, cost_usd: float | None, tokens: int) -> None:
        """What a step's agent cost, as far as it says so."""
        self._counters.cost_usd += cost_usd or 0.0
        self._counters.tokens += tokens
        self._ledger.record(kinds.USAGE, step=key, cost_usd=cost_usd, tokens=tokens)

    def lost(self, error: StoreError) -> None:
        """The journal cannot be kept: this ends the run."""
        self._ledger.lost = self._ledger.lost or error
        self._on_lost(error)

    def agent_ended(self, ended: AgentEnded) -> None:
        """The supervisor says that a tree is empty. Never raises: it is called from the depths of the supervisor."""
        known = self._running.pop(ended.agent_id, None)
        if known is None:
            self._early[ended.agent_id] = ended
            return
        self._fewer.set()
        self._fewer = anyio.Event()
        if ended.reason != "exited":
            self.ended += ended.processes
        self.survivors += ended.survivors
        _, name, key, task_id = known
        told: dict[str, Any] = {
            **{field: value for field, value in asdict(ended).items() if field in _TOLD},
            "name": name,
            "step": key,
            "task": task_id,
        }
        if self._ledger.lost:
            return
        try:
            self._ledger.defer(partial(self._agents.ended, ended.agent_id, ended))
            self._ledger.record(kinds.AGENT_ENDED, **told)
            self._ledger.commit()
        except StoreError as error:
            self.lost(error)


_TOLD = frozenset({"agent_id", "pid", "reason", "exit_code", "rung", "duration_s", "survivors", "problem"})


def _belongs(owner: str, key: str) -> bool:
    return owner == key or owner.startswith(f"{key}/")
