"""What an agent says and does, in words for people: not the protocol in which it tells that to programs.

Tools such as claude print a JSON object a line, and what those mean comes as activity; a command prints what it has
to say, and an adapter may repeat that as activity. Either way everything is to be shown once.
"""

from __future__ import annotations

import time
from typing import Any, Literal

_Manner = Literal["unknown", "plain", "protocol"]
_REPEATED = frozenset({"said", "used", "session_started"})  # nothing that an agent does


class Speech:
    """The words of all agents. What the first lines are is known only when the next event of that agent comes."""

    def __init__(self) -> None:
        self._manners: dict[str, _Manner] = {}
        self._held: dict[str, list[str]] = {}

    def printed(self, agent_id: str, stream: str, lines: list[str]) -> list[str]:
        """What of the lines that an agent printed is to be shown now, those that were held back included."""
        if stream == "stderr":
            return lines
        manner = self._manners.get(agent_id, "unknown")
        if manner == "protocol":
            return []
        if manner == "unknown" and agent_id not in self._held and lines and lines[0].lstrip().startswith("{"):
            self._held[agent_id] = lines
            return []
        self._manners[agent_id] = "plain"
        return self._held.pop(agent_id, []) + lines

    def acted(self, agent_id: str, data: dict[str, Any]) -> list[str]:
        """What an agent said by an activity."""
        if self._held.pop(agent_id, None) is not None:
            self._manners[agent_id] = "protocol"
        if self._manners.get(agent_id) != "protocol" or data.get("activity") != "said":
            return []
        return str(data.get("text") or "").splitlines()

    def ended(self, agent_id: str) -> list[str]:
        """What was held back, when nothing can follow any more."""
        self._manners.pop(agent_id, None)
        return self._held.pop(agent_id, [])


def doing(data: dict[str, Any]) -> str | None:
    """What an activity says that the agent does now: empty for nothing in particular, None where it says nothing."""
    activity = data.get("activity")
    if activity in ("tool_ended", "resumed"):
        return ""
    if activity in _REPEATED:
        return None
    if activity == "tool_began":
        return str(data.get("name") or "")
    if activity == "waiting":
        return _waits(data)
    if activity == "denied":
        return f"not permitted: {data.get('name')}"
    if activity == "failed":
        return str(data.get("message") or "failed")
    text = data.get("text")
    return None if text is None else str(text)


def _waits(data: dict[str, Any]) -> str:
    until = data.get("until")
    what = str(data.get("what") or "something").replace("_", " ")
    if not isinstance(until, (int, float)):
        return f"waits: {what}"
    try:
        return f"waits: {what}, until {time.strftime('%H:%M', time.localtime(until))}"
    except (ValueError, OverflowError, OSError):  # no moment that a clock knows
        return f"waits: {what}"
