"""Starts, journals and ends the processes of one run. A process has ended when its process tree is empty."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import anyio

from sidecar import layout
from sidecar.agents.supervisor import Agent, Launch
from sidecar.engine.ledger import Ledger
from sidecar.engine.owner import Owner
from sidecar.engine.run import Counters
from sidecar.errors import StoreError
from sidecar.model import events as kinds
from sidecar.model.agent import AgentEnded, EndedProcess, EndReason

_EMITTED = frozenset({"agent_id", "pid", "reason", "exit_code", "rung", "duration_s", "survivors", "problem"})


class Processes:
    """The processes that a run has now, and the step that each belongs to."""

    def __init__(
        self, owner: Owner, ledger: Ledger, counters: Counters, directory: str, on_lost: Callable[[StoreError], None]
    ) -> None:
        self._supervisor = owner.supervisor
        self._agents = owner.agents
        self._ledger = ledger
        self._counters = counters
        self._directory = directory
        self._on_lost = on_lost
        # By agent id: with its name, its step's key and its task's id.
        self._running: dict[str, tuple[Agent, str, str, str | None]] = {}
        self._early: dict[str, AgentEnded] = {}  # ends that were reported before `start` returned
        self.ended: list[EndedProcess] = []  # those that did not exit by themselves: for the receipt
        self.survivors = 0
        self._fewer = anyio.Event()

    async def start(self, launch: Launch, name: str, key: str, task_id: str | None) -> Agent:
        """Start one for a step. It dies with its owner, so it is enough to journal it when it runs."""
        agent = await self._supervisor.start(launch)
        self._running[agent.agent_id] = (agent, name, key, task_id)
        log = (launch.log_path or "").removeprefix(self._directory + "/") or None
        data = {"agent_id": agent.agent_id, "pid": agent.pid, "name": name, "command": agent.command}
        try:
            self._ledger.defer(partial(self._agents.started, agent.record))
            self._ledger.record(kinds.AGENT_STARTED, **data, log=log, step=key, task=task_id)
            self._ledger.commit()
        except StoreError:
            await agent.end("internal_error")  # the caller does not get it, and this process may live on
            raise
        if (ended := self._early.pop(agent.agent_id, None)) is not None:
            self.agent_ended(ended)
        return agent

    def log_path(self) -> str:
        """A file for the output of the next process."""
        self._counters.processes += 1
        directory = os.path.join(self._directory, "agents")
        try:
            if self._counters.processes == 1 or not os.path.isdir(directory):
                layout.make_directory(directory)
        except OSError as error:  # the disk is full, or there is a file
            raise StoreError(f"cannot make {directory}: {error.strerror}", kind="forbidden") from None
        return os.path.join(directory, f"{self._counters.processes}.log")

    def request_end(self, reason: EndReason, key: str = "", *, within_s: float | None = None) -> None:
        """Ask all of them to end, or those of one step or thread. `within_s`: another grace."""
        for agent, _, of, _ in list(self._running.values()):
            if not key or of == key or of.startswith(f"{key}/"):
                agent.request_end(reason, within_s)

    def steps(self) -> set[str]:
        """The steps that have a process now."""
        return {key for _, _, key, _ in self._running.values() if key}

    async def idle(self) -> None:
        """Wait until no step has a process."""
        while self.steps():
            await self._fewer.wait()

    def spend(self, key: str, cost_usd: float | None, tokens: int) -> None:
        """Count what the agent of a step cost; None where it is not known."""
        self._counters.cost_usd += cost_usd or 0.0
        self._counters.tokens += tokens
        self._ledger.record(kinds.USAGE, step=key, cost_usd=cost_usd, tokens=tokens)

    def lost(self, error: StoreError) -> None:
        """The journal cannot be written: this ends the run."""
        self._ledger.lost = self._ledger.lost or error
        self._on_lost(error)

    def agent_ended(self, ended: AgentEnded) -> None:
        """A process tree is empty. Never raises: the supervisor calls it."""
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
        data: dict[str, Any] = {field: value for field, value in asdict(ended).items() if field in _EMITTED}
        if self._ledger.lost:
            return
        try:
            self._ledger.defer(partial(self._agents.ended, ended.agent_id, ended))
            self._ledger.record(kinds.AGENT_ENDED, **data, name=name, step=key, task=task_id)
            self._ledger.commit()
        except StoreError as error:
            self.lost(error)
