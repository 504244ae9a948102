"""What to start: a command with its surroundings. Nothing here knows of prompts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sidecar.agents import kill, lineage
from sidecar.errors import AgentFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence


class Interruptible(Protocol):
    """What an adapter's own way to interrupt can use of an agent."""

    def write_stdin(self, data: bytes) -> bool:
        """More input, where stdin was kept open; False where it is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One command, and what is known of it."""

    argv: Sequence[str]
    cwd: str
    starter_env: Mapping[str, str] | None = None  # None: the owner's own
    env: Mapping[str, str] = field(default_factory=dict)  # what the step adds
    stdin: bytes | None = None
    keep_stdin_open: bool = False
    log_path: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    secrets: Sequence[str] = ()
    kill_after_s: float = kill.KILL_AFTER_S
    interrupt: Callable[[Interruptible], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        """AgentFailed for what no operating system starts. Values are not shown: they may be secrets."""
        if not self.argv:
            raise AgentFailed("there is no command to run")
        given = [("the working directory", self.cwd), ("the program's name", self.argv[0])]
        given += [(f"argument {number}", word) for number, word in enumerate(self.argv[1:], 1)]
        given += [(f"the variable {name!r}", value) for name, value in self.env.items()]
        given += [(f"the name of the variable {name!r}", name) for name in self.env]
        for what, text in given:
            if (why := unfit(text)) is not None:
                raise AgentFailed(f"{what} {why}, which cannot be passed to a program")
        for name in self.env:
            if not name or "=" in name:
                raise AgentFailed(f"{name!r} cannot be the name of a variable")

    @property
    def feeds_stdin(self) -> bool:
        """Whether stdin is a pipe; /dev/null otherwise."""
        return self.stdin is not None or self.keep_stdin_open

    def environment(self, project: str, token: str) -> dict[str, str]:
        """The starter's, what the step adds, ours, and the marker."""
        environment = dict(os.environ if self.starter_env is None else self.starter_env)
        environment.update(self.env)
        environment["SIDECAR_PROJECT"] = project
        for name, value in (("SIDECAR_RUN_ID", self.run_id), ("SIDECAR_TASK_ID", self.task_id)):
            if value is None:
                environment.pop(name, None)  # the outer agent's must not pass for this one's
            else:
                environment[name] = value
        environment[lineage.MARKER_VARIABLE] = lineage.with_marker(environment, token)
        return environment


def unfit(text: str) -> str | None:
    """What keeps a text from being an argument, a variable or a path; None where nothing does."""
    if "\0" in text:
        return "holds a NUL byte"
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return "holds half a surrogate pair"
    return None


class Pipes:
    """The three descriptors that a child gets, and our ends of them."""

    def __init__(self, *, feeds_stdin: bool) -> None:
        self.theirs: list[int] = []
        self.mine: dict[str, int] = {}
        try:
            if feeds_stdin:
                read, self.mine["stdin"] = os.pipe()
                self.theirs.append(read)
            else:
                self.theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            for stream in ("stdout", "stderr"):
                self.mine[stream], write = os.pipe()
                self.theirs.append(write)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Give all of them up."""
        for descriptor in (*self.theirs, *self.mine.values()):
            os.close(descriptor)
