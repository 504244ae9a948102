"""The agents of a run: who lives, what each of them does and says, and what all of them cost."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from sidecar.display.fields import cost, count, text, tokens
from sidecar.display.speech import doing, printed, said

_LINES = 200
_LONGEST_LINE = 2048
_NAMES = 1000


@dataclass(slots=True)
class Agent:
    """A process that works for the run."""

    id: str
    name: str
    pid: int | None
    began_at: float
    step: str = ""
    task: str | None = None
    doing: str = ""
    cost_usd: float | None = None  # as far as it has told
    tokens: int = 0


class Line(NamedTuple):
    """Something that an agent printed, as it came."""

    source: str  # the task, where there is one, else the agent
    stream: str
    text: str


class Crew:
    """All of them. Each method takes the data of an event, and when it happened."""

    def __init__(self) -> None:
        self.agents: dict[str, Agent] = {}
        self.lines: deque[Line] = deque(maxlen=_LINES)
        self._names: dict[str, str] = {}  # of whoever may have said one of the lines
        self._cost_usd: float | None = None  # of what is settled, as the tokens
        self._tokens = 0
        self._unsettled: dict[str, Agent] = {}  # by step: ended, and the last word about its cost is still to come

    @property
    def cost_usd(self) -> float | None:
        """So far, where any agent tells it."""
        told = [agent.cost_usd for agent in self._telling() if agent.cost_usd is not None]
        return (self._cost_usd or 0.0) + sum(told) if told or self._cost_usd is not None else None

    @property
    def tokens(self) -> int:
        """So far."""
        return self._tokens + sum(agent.tokens for agent in self._telling())

    def _telling(self) -> list[Agent]:
        return [*self.agents.values(), *self._unsettled.values()]

    def began(self, data: dict[str, Any], at: float) -> None:
        """One is started."""
        agent_id = text(data.get("agent_id"))
        name, task = text(data.get("name")) or agent_id, text(data.get("task")) or None
        pid = count(data.get("pid")) or None
        self.agents[agent_id] = Agent(agent_id, name, pid, at, text(data.get("step")), task)
        self._names.pop(agent_id, None)
        self._names[agent_id] = task or name
        while len(self._names) > _NAMES:
            del self._names[next(iter(self._names))]

    def ended(self, data: dict[str, Any], _at: float) -> None:
        """One is over."""
        agent_id = text(data.get("agent_id"))
        agent = self.agents.pop(agent_id, None)
        if agent is not None and (agent.tokens or agent.cost_usd is not None):
            self._unsettled[agent.step] = agent

    def dismiss(self) -> None:
        """The run is over, or begins anew: none of them lives."""
        for agent_id in list(self.agents):
            self.ended({"agent_id": agent_id}, 0.0)

    def spent(self, data: dict[str, Any], _at: float) -> None:
        """The last word about what an agent told of its cost while it worked."""
        step = text(data.get("step"))
        self._unsettled.pop(step, None)
        for agent in self.agents.values():
            if agent.step == step:
                agent.cost_usd, agent.tokens = None, 0
        usd = cost(data.get("cost_usd"))
        if usd is not None:
            self._cost_usd = (self._cost_usd or 0.0) + usd
        self._tokens += tokens(data.get("tokens"))

    def acted(self, data: dict[str, Any], _at: float) -> None:
        """One tells what it does."""
        agent_id = text(data.get("agent_id"))
        self._show(agent_id, "stdout", said(data))
        agent = self.agents.get(agent_id)
        if agent is not None:
            now = doing(data)
            agent.doing = agent.doing if now is None else now
            agent.cost_usd = cost(data.get("cost_usd"), agent.cost_usd)
            agent.tokens = tokens(data.get("tokens")) or agent.tokens

    def said(self, data: dict[str, Any], _at: float) -> None:
        """One has printed something."""
        lines = data.get("lines")
        if isinstance(lines, list):
            # Only the last ones: a flood has to cost nothing.
            shown = printed({**data, "lines": [text(line)[:_LONGEST_LINE] for line in lines[-_LINES:]]})
            self._show(text(data.get("agent_id")), text(data.get("stream")), shown)

    def _show(self, agent_id: str, stream: str, lines: list[str]) -> None:
        source = self._names.get(agent_id, agent_id)
        self.lines.extend(Line(source, stream, line) for line in lines[-_LINES:])
