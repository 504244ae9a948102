"""What an adapter is: how its tool is called, the events that its output means, and their sum.

Each tool has a module beside this one with its adapter: its arguments, and an interpreter that fills an `Account`.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from sidecar.errors import AgentFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import JsonValue

    from sidecar.model.agent import AdapterName, Assignment, PromptVia

MCP_SERVER = "sidecar"
_MAX_ARGUMENT = 128 * 1024 - 1  # Linux' limit for one argument, its NUL not counted


class McpConfiguration(TypedDict):
    """The MCP server that leads back to the run: how the tool starts it."""

    command: Sequence[str]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AdapterCall:
    """All that the arguments of a tool depend on."""

    assignment: Assignment
    prompt_via: PromptVia
    mcp: McpConfiguration | None


@dataclass(frozen=True, slots=True)
class Invocation:
    """A process to start. Standard input is closed when `stdin` is in: every tool here runs headless."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]  # to add to the starter's
    stdin: bytes


# There is no way to interrupt in here, and none is missing. Only claude has one (a control request on stdin in its
# stream-json input mode), and it needs an open stdin, which a headless agent must not have: some tools wait
# for its end before they begin, and an agent that asks a question there would wait for ever. SIGTERM does the same.
@dataclass(frozen=True, slots=True)
class Adapter:
    """One tool."""

    name: AdapterName
    prompt_via: PromptVia  # where the definition does not say
    arguments: Callable[[AdapterCall], list[str]]  # all behind the program, the prompt included where it is an argument
    parser: Callable[[Clock], Parser]  # the clock gives seconds since the epoch
    prints_json: bool = True  # a JSON object a line, for programs; else what it prints is for people
    program: str | None = None  # None: the definition has the argv
    package: str = ""  # where npm has the program
    environment: Mapping[str, str] = field(default_factory=dict)
    # How to make the MCP server known to a tool that takes none for a single call.
    mcp_by_hand: str | None = None

    def invocation(
        self,
        assignment: Assignment,
        *,
        cwd: str,
        environment: Mapping[str, str],
        mcp: McpConfiguration | None = None,
    ) -> Invocation:
        """How to start the tool; AgentFailed where that cannot work.

        `environment` is the one that the process will inherit: PATH and SIDECAR_CLAUDE and the like are read there.
        """
        definition = assignment.definition
        via = definition.prompt_via or self.prompt_via
        prompt = _encoded(assignment)
        if via == "argument":
            _check_argument(assignment, prompt)
        added = {**self.environment, **definition.env}
        if mcp is not None and self.mcp_by_hand:
            added = {**added, **mcp["env"]}  # its server, registered by hand, inherits them from the tool
        command = self._command(assignment, cwd, {**environment, **added})
        arguments = self.arguments(AdapterCall(assignment, via, mcp))
        return Invocation((*command, *arguments), added, prompt if via == "stdin" else b"")

    @property
    def variable(self) -> str:
        """The environment variable that may name the program."""
        return f"SIDECAR_{self.name.upper()}"

    def _command(self, assignment: Assignment, cwd: str, environment: Mapping[str, str]) -> tuple[str, ...]:
        words = assignment.command or (environment.get(self.variable) or self.program or "",)
        found = _executable(os.path.expanduser(words[0]), cwd, environment)
        if found is None:
            raise AgentFailed(self._missing(assignment, words[0]))
        return (found, *words[1:])

    def _missing(self, assignment: Assignment, program: str) -> str:
        message = f"agent {assignment.name!r}: cannot find the program {program!r}, or it is not executable"
        if self.program is None:
            return f"{message}; `command` in the agent's YAML is its argv: a path, or a name on PATH"
        return (
            f"{message}; install it (npm install -g {self.package}), or point to it with {self.variable}=/path/to/"
            f"{self.program} or `command: [/path/to/{self.program}]` in .swissarmyhammer/agents/{assignment.name}.yaml"
        )


def _executable(word: str, cwd: str, environment: Mapping[str, str]) -> str | None:
    """The program's path, found as the process itself would: relative to where it will run, on its own PATH."""
    if os.path.dirname(word):
        return shutil.which(os.path.join(cwd, word))
    path = environment.get("PATH", os.defpath)
    return shutil.which(word, path=os.pathsep.join(os.path.join(cwd, part) for part in path.split(os.pathsep)))


def _encoded(assignment: Assignment) -> bytes:
    try:
        # A lone surrogate is what Python makes of an undecodable byte on the command line: give the byte back.
        return assignment.prompt.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a text of JavaScript's that was cut in the middle of a character
        message = f"agent {assignment.name!r}: the prompt contains half a surrogate pair, which is not a character"
        raise AgentFailed(message) from None


def _check_argument(assignment: Assignment, prompt: bytes) -> None:
    if b"\0" in prompt:
        raise AgentFailed(f"agent {assignment.name!r}: the prompt contains a NUL byte: use `prompt_via: stdin`")
    if len(prompt) > _MAX_ARGUMENT:
        raise AgentFailed(f"agent {assignment.name!r}: the prompt is too long for an argument: use `prompt_via: stdin`")


# --- events: what an agent reports while it runs, in the same words for every tool


Stream = Literal["stdout", "stderr"]
# `retry`: the model did not answer and the tool asks again by itself, for a reason other than a rate limit.
WaitingFor = Literal["rate_limit", "permission", "retry"]


@dataclass(frozen=True, slots=True)
class TokenUsage:
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
class MessagePiece:
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
    """The totals so far. The cost is None where the tool does not report it (or not before its end)."""

    tokens: TokenUsage
    cost_usd: float | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The agent can do nothing until something comes from outside; `until` is in seconds since the epoch."""

    what: WaitingFor
    until: float | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The wait is over."""


@dataclass(frozen=True, slots=True)
class Denied:
    """A tool call that was not permitted; the agent went on without it."""

    name: str


@dataclass(frozen=True, slots=True)
class Failed:
    """An error, as the tool words it. Not yet the end: the tool may go on."""

    message: str


Event = SessionStarted | MessagePiece | ToolBegan | ToolEnded | Used | Waiting | Resumed | Denied | Failed


@dataclass(frozen=True, slots=True)
class Summary:
    """All that an agent reported.

    `finished` says that the tool reported the end of its turn. That is no proof of success: claude, ended by
    SIGTERM in the middle of a tool call, may still print a result that looks like one.
    """

    text: str = ""
    structured: JsonValue = None
    session_id: str | None = None
    tokens: TokenUsage = TokenUsage()
    cost_usd: float | None = None
    error: str | None = None
    waiting: Waiting | None = None
    budget_reached: bool = False
    denied: tuple[str, ...] = ()
    open_tools: tuple[str, ...] = ()
    finished: bool = False


# --- parsers: a JSON object on each line, or plain text


Clock = Callable[[], float]
Interpret = Callable[[dict[str, object], "Account", float], None]
InterpretText = Callable[[str, "Account", float], None]

# A longer line is not taken apart: its JSON would cost several times its size in memory.
MAX_LINE = 32 * 1024 * 1024
_MAX_TEXT = 4 * 1024 * 1024


def _decoded(line: bytes | str) -> str:
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    return text.removesuffix("\n").removesuffix("\r")


class JsonLines:
    """Parses a tool's output line by line, and never raises: each JSON object on stdout goes to one interpreter; a line
    on stderr, where it means something, to another."""

    def __init__(
        self, interpret: Interpret, interpret_stderr: InterpretText | None = None, clock: Clock = time.time
    ) -> None:
        self._interpret = interpret
        self._interpret_stderr = interpret_stderr
        self._clock = clock
        self._account = Account()

    def feed(self, line: bytes | str, stream: Stream = "stdout") -> list[Event]:
        """The events of one line, with or without its newline. A warning among the JSON means none."""
        if len(line) > MAX_LINE:
            return []
        text = _decoded(line)
        if stream == "stderr":
            if self._interpret_stderr is not None:
                self._interpret_stderr(text, self._account, self._clock())
        elif text.lstrip().startswith("{"):
            self._interpret(mapping(json_value(text)), self._account, self._clock())
        events, self._account.events = self._account.events, []
        return events

    def summary(self) -> Summary:
        """All that was reported so far."""
        return self._account.summary()


class PlainText:
    """Parses the output of a command: the end of stdout is the answer."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._length = 0

    def feed(self, line: bytes | str, stream: Stream = "stdout") -> list[Event]:
        """The event of one line."""
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
        return [MessagePiece(text)]

    def summary(self) -> Summary:
        """The text, without its last newline, as `$(…)` has it. Its exit shows that a command is finished."""
        text = "\n".join(self._lines)
        return Summary(text=text, structured=json_in(text))


Parser = JsonLines | PlainText


# --- the account of one agent


# Bounds for a tool that talks nonsense for hours. No real one comes near them.
_MAX_ANSWER = 16 * 1024 * 1024
_MAX_OPEN_TOOLS = 1000
_MAX_DENIED = 100
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Account:
    """What one agent has reported so far. Filled by its adapter's interpreter, one method per kind of report."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.session_id: str | None = None
        self.tokens = TokenUsage()
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

    def message(self, text: str, *, anew: bool) -> None:
        """A part of the answer; `anew`: it is a message of its own, not the next piece of the last one."""
        if anew:
            self._pieces, self._length = [], 0
        if text and self._length < _MAX_ANSWER:
            self._pieces.append(text[: _MAX_ANSWER - self._length])
            self._length += len(self._pieces[-1])
            self.events.append(MessagePiece(self._pieces[-1]))

    def answered(self, text: str) -> None:
        """The tool gave the final text as such, after all messages."""
        self._pieces = [text[:_MAX_ANSWER]]

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

    def used(self, tokens: TokenUsage, cost_usd: float | None = None) -> None:
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

    def known_end(self, now: float) -> float | None:
        """The end of the present wait, where it is known and still to come."""
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


# --- values of JSON


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
