"""What an agent says and does, in words for people: not the protocol in which it tells that to programs.

Tools such as claude print a JSON object a line, and what those mean comes as activity; a command prints what it has
to say, and its adapter repeats that as activity. Which of them an agent is, its events say (model/run.py); either way
everything is shown once.
"""

from __future__ import annotations

import time
from typing import Any

_REPEATED = frozenset({"message", "usage", "session_started"})  # nothing that an agent does


def printed(data: dict[str, Any]) -> list[str]:
    """What is to be shown of the lines that an agent printed: objects only where they are meant for people."""
    lines = data.get("lines")
    if not isinstance(lines, list):
        return []
    texts = list(map(str, lines))
    return [line for line in texts if not line.lstrip().startswith("{")] if data.get("json") else texts


def said(data: dict[str, Any]) -> list[str]:
    """What an agent said by an activity, where that does not only repeat what it printed."""
    is_new = data.get("json") and data.get("activity") == "message"
    return str(data.get("text") or "").splitlines() if is_new else []


def doing(data: dict[str, Any]) -> str | None:
    """What an activity says that the agent does now: empty for nothing in particular, None where it says nothing."""
    activity = data.get("activity")
    if activity in ("tool_ended", "resumed"):
        return ""
    if activity in _REPEATED:
        return None
    if activity == "tool_started":
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
