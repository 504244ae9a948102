"""The account of one agent: what its tool told so far, and the events that came of the line just read."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from sidecar.agents.adapters.events import (
    Denied,
    Failed,
    Resumed,
    Said,
    SessionStarted,
    Summary,
    Tokens,
    ToolBegan,
    ToolEnded,
    Used,
    Waiting,
)

if TYPE_CHECKING:
    from pydantic import JsonValue

    from sidecar.agents.adapters.events import Event, WaitingFor

# Bounds for a tool that talks nonsense for hours. No real one comes near them.
_MAX_TEXT = 16 * 1024 * 1024
_MAX_OPEN_TOOLS = 1000
_MAX_DENIED = 100
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Account:
    """Filled by an adapter's interpreter, one method per thing that tools tell."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.session_id: str | None = None
        self.tokens = Tokens()
        self.cost_usd: float | None = None
        self.structured: JsonValue = None
        self.error: str | None = None
        self.waiting: Waiting | None = None
        self.budget_reached = False
        self.finished = False
        self._pieces: list[str] = []
        self._length = 0
        self._denied: dict[str, None] = {}
        self._tools: dict[str, str] = {}

    def session(self, session_id: str) -> None:
        """The tool named its session; it repeats the name in most of its lines."""
        if session_id and session_id != self.session_id:
            self.session_id = session_id
            self.events.append(SessionStarted(session_id))

    def said(self, text: str, *, anew: bool) -> None:
        """The agent said something; `anew`: it is a message of its own, not the next piece of the last one."""
        if anew:
            self._pieces, self._length = [], 0
        if text and self._length < _MAX_TEXT:
            self._pieces.append(text[: _MAX_TEXT - self._length])
            self._length += len(self._pieces[-1])
            self.events.append(Said(self._pieces[-1]))

    def answered(self, text: str) -> None:
        """The tool gave the final text as such, after all that was said."""
        self._pieces = [text[:_MAX_TEXT]]

    def began(self, call_id: str, name: str) -> None:
        """A tool call began."""
        if call_id not in self._tools:
            if len(self._tools) < _MAX_OPEN_TOOLS:
                self._tools[call_id] = name
            self.events.append(ToolBegan(call_id, name))

    def ended(self, call_id: str, *, succeeded: bool, name: str = "") -> None:
        """A tool call ended."""
        self.events.append(ToolEnded(call_id, self._tools.pop(call_id, name), succeeded))

    def tool(self, call_id: str) -> str:
        """The name of the tool that an open call is to."""
        return self._tools.get(call_id, "")

    def denied(self, name: str) -> None:
        """A tool call was not permitted."""
        if name not in self._denied and len(self._denied) < _MAX_DENIED:
            self._denied[name] = None
            self.events.append(Denied(name))

    def used(self, tokens: Tokens, cost_usd: float | None = None) -> None:
        """New totals."""
        self.tokens = tokens
        self.cost_usd = self.cost_usd if cost_usd is None else cost_usd
        self.events.append(Used(self.tokens, self.cost_usd))

    def waits(self, what: WaitingFor, until: float | None, detail: str = "") -> None:
        """The agent waits, or has given up because of what it would have had to wait for."""
        waiting = Waiting(what, until, detail)
        if waiting != self.waiting:
            self.waiting = waiting
            self.events.append(waiting)

    def told_end(self, now: float) -> float | None:
        """The end of the present wait, where it was told and is still to come."""
        until = self.waiting.until if self.waiting is not None else None
        return until if until is not None and until > now else None

    def goes_on(self) -> None:
        """Something happened that a waiting agent does not do."""
        if self.waiting is not None:
            self.waiting = None
            self.events.append(Resumed())

    def failed(self, message: str) -> None:
        """The tool reported an error; the last one is what it ended with."""
        self.error = message
        self.events.append(Failed(message))

    def succeeded(self) -> None:
        """The tool ended its turn well; what went wrong on the way did not decide it."""
        self.error = None
        self.finished = True

    def summary(self) -> Summary:
        """All of it."""
        text = "".join(self._pieces)
        return Summary(
            text=text,
            structured=self.structured if self.structured is not None else json_in(text),
            session_id=self.session_id,
            tokens=self.tokens,
            cost_usd=self.cost_usd,
            error=self.error,
            waiting=self.waiting,
            budget_reached=self.budget_reached,
            denied=tuple(self._denied),
            open_tools=tuple(self._tools.values()),
            finished=self.finished,
        )


def json_in(text: str) -> JsonValue:
    """The value, where an answer is one JSON object or list and nothing else."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    value: JsonValue = json_value(text)
    return value


def json_value(text: str) -> Any:
    """The value of a JSON text; None where it is none, however it fails to be one."""
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):
            # JSON can spell half a character. No file and no database would take it from us later.
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):  # RecursionError: a line of nothing but brackets
        return None
    return value


# Nothing that a tool prints has to have the type that it had last year.


def mapping(value: object) -> dict[str, Any]:
    """The value, where it is a JSON object."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[dict[str, Any]]:
    """The JSON objects in a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text_of(value: object) -> str:
    """The value, where it is text."""
    return value if isinstance(value, str) else ""


def number_of(value: object) -> float | None:
    """The value, where it is a number that can be calculated with."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def count_of(value: object) -> int:
    """The value, where it is a count; 0 elsewhere."""
    number = number_of(value)
    return int(number) if number is not None and number > 0 else 0
