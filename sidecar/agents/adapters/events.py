"""What an agent tells about itself while it runs, in the same words for every tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from pydantic import JsonValue

Stream = Literal["stdout", "stderr"]
# `retry`: the model did not answer and the tool asks again by itself, for a reason other than a rate limit.
WaitingFor = Literal["rate_limit", "permission", "retry"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens used so far; `cached` is the part of `input` that came from the provider's cache."""

    input: int = 0
    output: int = 0
    cached: int = 0

    @property
    def total(self) -> int:
        """What a token budget counts."""
        return self.input + self.output


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """The tool's own id for the conversation, with which it can resume it."""

    session_id: str


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of the agent's answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolBegan:
    """A tool call is under way."""

    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A tool call is over."""

    call_id: str
    name: str
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Used:
    """The totals so far. The cost is None where the tool does not tell it (or not before its end)."""

    tokens: Tokens
    cost_usd: float | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The agent can do nothing until something comes from outside; `until` is in seconds since the epoch."""

    what: WaitingFor
    until: float | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Resumed:
    """What the agent waited for is there."""


@dataclass(frozen=True, slots=True)
class Denied:
    """A tool call that nobody had permitted; the agent went on without it."""

    name: str


@dataclass(frozen=True, slots=True)
class Failed:
    """An error in the tool's own words. Not yet the end: the tool may go on."""

    message: str


Event = SessionStarted | Said | ToolBegan | ToolEnded | Used | Waiting | Resumed | Denied | Failed


@dataclass(frozen=True, slots=True)
class Summary:
    """All that an agent told.

    `finished` says that the tool reported the end of its turn. That is no proof of success: claude, ended by
    SIGTERM in the middle of a tool call, may still print a result that looks like one.
    """

    text: str = ""
    structured: JsonValue = None
    session_id: str | None = None
    tokens: Tokens = Tokens()
    cost_usd: float | None = None
    error: str | None = None
    waiting: Waiting | None = None
    budget_reached: bool = False
    denied: tuple[str, ...] = ()
    open_tools: tuple[str, ...] = ()
    finished: bool = False


class Parser(Protocol):
    """Reads a tool's output line by line. It never raises, whatever the output is."""

    @property
    def waiting(self) -> Waiting | None:
        """What the agent waits for now."""

    def feed(self, line: bytes | str, stream: Stream = "stdout") -> list[Event]:
        """Take one line, with or without its newline; what it says."""

    def summary(self) -> Summary:
        """What was told so far."""
