"""The two ways in which tools speak: a JSON object on each line, or plain text."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from sidecar.agents.adapters.account import Account, json_in, json_value, mapping
from sidecar.agents.adapters.events import Said, Summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.agents.adapters.events import Event, Stream, Waiting

    Clock = Callable[[], float]
    Interpret = Callable[[dict[str, object], Account, float], None]
    Hear = Callable[[str, Account, float], None]

# A longer line is not taken apart: its JSON would cost several times its size in memory.
MAX_LINE = 32 * 1024 * 1024
_MAX_TEXT = 4 * 1024 * 1024


def _decoded(line: bytes | str) -> str:
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    return text.removesuffix("\n").removesuffix("\r")


class JsonLines:
    """Gives each JSON object on stdout to an interpreter; stderr, where the tool says something there, to another."""

    def __init__(self, interpret: Interpret, hear: Hear | None = None, clock: Clock = time.time) -> None:
        self._interpret = interpret
        self._hear = hear
        self._clock = clock
        self._account = Account()

    @property
    def waiting(self) -> Waiting | None:
        """What the agent waits for now."""
        return self._account.waiting

    def feed(self, line: bytes | str, stream: Stream = "stdout") -> list[Event]:
        """Take one line. What is no JSON object says nothing: tools print warnings among their lines."""
        if len(line) > MAX_LINE:
            return []
        text = _decoded(line)
        if stream == "stderr":
            if self._hear is not None:
                self._hear(text, self._account, self._clock())
        elif text.lstrip().startswith("{"):
            self._interpret(mapping(json_value(text)), self._account, self._clock())
        events, self._account.events = self._account.events, []
        return events

    def summary(self) -> Summary:
        """What was told so far."""
        return self._account.summary()


class PlainText:
    """Keeps the end of stdout: for a command it is the answer."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._length = 0

    @property
    def waiting(self) -> None:
        """A command does not tell."""
        return

    def feed(self, line: bytes | str, stream: Stream = "stdout") -> list[Event]:
        """Take one line."""
        if stream == "stderr":
            return []
        text = _decoded(line[-_MAX_TEXT:])
        self._lines.append(text)
        self._length += len(text) + 1
        while self._length > _MAX_TEXT:
            first, excess = self._lines.popleft(), self._length - _MAX_TEXT
            if len(first) > excess:
                self._lines.appendleft(first[excess:])
            self._length -= min(excess, len(first) + 1)
        return [Said(text)]

    def summary(self) -> Summary:
        """The text, without its last newline, as `$(…)` has it. That a command is finished, its exit tells."""
        text = "\n".join(self._lines)
        return Summary(text=text, structured=json_in(text))
