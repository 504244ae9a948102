"""What an adapter is: plain data on how a tool is called, and the parser of what it prints."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from sidecar.errors import AgentFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sidecar.agents.adapters.events import Parser
    from sidecar.agents.adapters.parsers import Clock
    from sidecar.model.agent import AdapterName, Assignment, PromptVia

MCP_SERVER = "sidecar"
_MAX_ARGUMENT = 128 * 1024 - 1  # Linux' limit for one argument, its NUL not counted


class McpConfiguration(TypedDict):
    """The MCP server that leads back to the run: how the tool starts it."""

    command: Sequence[str]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Call:
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
    arguments: Callable[[Call], list[str]]  # all behind the program, the prompt included where it is an argument
    parser: Callable[[Clock], Parser]  # the clock tells seconds since the epoch
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
        arguments = self.arguments(Call(assignment, via, mcp))
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
        message = f"agent {assignment.name!r}: the prompt holds half a surrogate pair, which is no character"
        raise AgentFailed(message) from None


def _check_argument(assignment: Assignment, prompt: bytes) -> None:
    if b"\0" in prompt:
        raise AgentFailed(f"agent {assignment.name!r}: the prompt holds a NUL byte: use `prompt_via: stdin`")
    if len(prompt) > _MAX_ARGUMENT:
        raise AgentFailed(f"agent {assignment.name!r}: the prompt is too long for an argument: use `prompt_via: stdin`")
