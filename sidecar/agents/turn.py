"""One turn of an agent: a prompt goes in, what it says is understood as it comes, limits are kept."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from sidecar.agents import evidence
from sidecar.agents.adapters import ADAPTERS
from sidecar.agents.adapters.events import Event, Summary
from sidecar.agents.limits import LimitWatch, Reached
from sidecar.agents.output import OutputLines
from sidecar.agents.supervisor import Launch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from sidecar.agents.adapters.adapter import McpConfiguration
    from sidecar.agents.supervisor import Agent
    from sidecar.model.agent import AgentEnded, Assignment

_LOOKS_PER_LIMIT = 8
_LEAST_LOOKS = 2  # also where a look takes long
_LOOKING_SHARE = 0.1  # of the time that may go into looking


@dataclass(frozen=True, slots=True)
class Started:
    """The agent runs."""

    agent_id: str
    pid: int
    command: str


Told = Started | OutputLines | Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where a turn takes place, and for whom."""

    cwd: str
    environment: Mapping[str, str]
    run_id: str
    log_path: str
    task_id: str | None = None
    secrets: Sequence[str] = ()
    kill_after_s: float
    mcp: McpConfiguration | None = None
    files: evidence.Files | None = None  # a change in these is a sign of life; None: those in `cwd`


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended: the process's side of it, the agent's own words, and the limit if one was reached."""

    ended: AgentEnded
    summary: Summary
    limit: Reached | None = None

    @property
    def failure(self) -> str | None:
        """What went wrong in an agent that ended by itself; None where all is well.

        Only asked of one that nobody ended: what an ended agent exits with says nothing (claude: 0 after SIGINT).
        """
        if self.summary.error:
            return self.summary.error
        code = self.ended.exit_code
        if code == 0:
            return None
        return f"it ended with exit code {code}" if code is not None and code > 0 else f"it was ended by signal {code}"


@dataclass
class Turn:
    """A turn. Cancelled while it is taken, it ends the agent first."""

    assignment: Assignment
    setting: Setting
    tell: Callable[[Told], None]
    limit: Reached | None = None
    _clock: Callable[[], float] = field(default=time.monotonic)

    async def take(self, start: Callable[[Launch], Awaitable[Agent]]) -> Outcome:
        """Take it. AgentFailed: it could not even begin.

        `start` starts the process and notes that it runs, so that somebody finds it if its owner dies.
        """
        adapter = ADAPTERS[self.assignment.definition.adapter]
        parser = adapter.parser(time.time)
        watch = LimitWatch(self.assignment.definition.limits, self._clock)
        agent = await start(self._launch())
        try:
            self.tell(Started(agent.agent_id, agent.pid, agent.command))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep_limits, agent, watch)
                async for output in agent.subscribe():
                    watch.output(sum(map(len, output.lines)) + 1)
                    self.tell(output)
                    for line in output.lines:
                        for event in parser.feed(line, output.stream):
                            watch.hear(event, time.time())
                            self.tell(event)
                    self._keep(agent, watch)  # a budget that is spent is not spent on until somebody looks at the clock
                ended = await agent.wait()
                tasks.cancel_scope.cancel()
        except BaseException:
            await agent.end("abort")
            raise
        return Outcome(ended, parser.summary(), self.limit)

    def _launch(self) -> Launch:
        setting = self.setting
        invocation = ADAPTERS[self.assignment.definition.adapter].invocation(
            self.assignment, cwd=setting.cwd, environment=setting.environment, mcp=setting.mcp
        )
        return Launch(
            argv=invocation.argv,
            cwd=setting.cwd,
            starter_env=setting.environment,
            env=invocation.environment,
            stdin=invocation.stdin,
            log_path=setting.log_path,
            run_id=setting.run_id,
            task_id=setting.task_id,
            secrets=setting.secrets,
            kill_after_s=setting.kill_after_s,
        )

    async def _keep_limits(self, agent: Agent, watch: LimitWatch) -> None:
        """Look often enough to tell busy from stalled, and not at all where nothing is limited."""
        limits = self.assignment.definition.limits
        took_s = 0.0
        if limits.idle_timeout_s is not None:
            took_s = await self._look_at_files(watch)
        while not self._keep(agent, watch):
            await anyio.sleep(self._pause_s(watch, took_s))
            if limits.idle_timeout_s is not None:
                watch.cpu(evidence.cpu_s([row.pid for row in await agent.tree.living()]))
                took_s = await self._look_at_files(watch)

    async def _look_at_files(self, watch: LimitWatch) -> float:
        """How long it took, which is long in a large tree. The end of the turn does not wait for it."""
        began = self._clock()
        files = self.setting.files or evidence.Files((self.setting.cwd,))
        watch.files(await anyio.to_thread.run_sync(files.token, abandon_on_cancel=True))
        return self._clock() - began

    def _keep(self, agent: Agent, watch: LimitWatch) -> bool:
        """End the agent if a limit is reached; whether one was."""
        if self.limit is None and (reached := watch.reached()) is not None:
            self.limit = reached
            agent.request_end(reached.reason)
        return self.limit is not None

    def _pause_s(self, watch: LimitWatch, took_s: float) -> float:
        limits = self.assignment.definition.limits
        pauses = [float("inf")]
        if (until_s := watch.next_look_s()) is not None:
            pauses.append(until_s)
        if limits.idle_timeout_s is not None:
            often = max(limits.idle_timeout_s / _LOOKS_PER_LIMIT, took_s / _LOOKING_SHARE)
            pauses.append(min(often, limits.idle_timeout_s / _LEAST_LOOKS))
        return max(0.005, min(pauses))
