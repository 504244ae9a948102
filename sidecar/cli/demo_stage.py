"""Where `sidecar demo` plays: commands that are typed for whoever watches, and really executed, with their output."""

from __future__ import annotations

import os
import shlex
import site
import sys
from typing import TYPE_CHECKING, Self

import anyio

from sidecar.agents.supervisor import Launch, Supervisor
from sidecar.errors import SidecarError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from anyio.abc import TaskGroup

    from sidecar.agents.supervisor import Agent

_SELF = (sys.executable, "-P", "-m", "sidecar")
_STYLES = {"heading": "\033[1;36m", "command": "\033[1m", "output": "\033[2m", "good": "\033[32m"}
_PLAIN = "\033[0m"
_MARGINS = {"heading": "", "text": "", "command": "  $ ", "output": "  | ", "good": "  "}


class Stage:
    """A project whose every process ends with this; `write` takes a line with its newline."""

    def __init__(self, root: str, home: str, write: Callable[[str], None], *, colour: bool) -> None:
        self.root = root
        self._home = home
        self._write = write
        self._colour = colour
        self._supervisor = Supervisor(root)
        self._tasks: TaskGroup = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._supervisor.__aenter__()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nobody listens any more, and then everything is ended: that takes as long as it takes.
        try:
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            await self._supervisor.__aexit__(kind, error, trace)

    def show(self, style: str, text: str) -> None:
        """Lines of one kind: heading, text, command, output or good."""
        before, after = (_STYLES.get(style, ""), _PLAIN) if self._colour and style in _STYLES else ("", "")
        for line in text.splitlines() or [""]:
            self._write(f"{_MARGINS[style]}{before}{line}{after}\n")

    async def start(self, typed: str) -> Command:
        """Type a command, and go on while it runs."""
        self.show("command", typed)
        program, *rest = shlex.split(typed)
        argv = [*(_SELF if program == "sidecar" else (program,)), *rest]
        agent = await self._supervisor.start(Launch(argv=argv, cwd=self.root, starter_env=_environment(self._home)))
        command = Command(typed, agent)
        self._tasks.start_soon(command.follow, lambda line: self.show("output", line))
        return command

    async def run(self, typed: str) -> Command:
        """Type a command, and wait until it is done well."""
        command = await self.start(typed)
        await command.done()
        return command


class Command:
    """One that was typed."""

    def __init__(self, typed: str, agent: Agent) -> None:
        self.lines: list[str] = []
        self._typed = typed
        self._agent = agent
        self._output = agent.subscribe()
        self._news = anyio.Event()
        self._is_shown = False

    async def follow(self, show: Callable[[str], None]) -> None:
        """Show its lines until there are no more."""
        async for output in self._output:
            for line in output.lines:
                show(line)
                self.lines.append(line)
            self._stir()
        self._is_shown = True
        self._stir()

    async def says(self, text: str, times: int = 1) -> str:
        """Wait for a line with this in it, or for the second of them."""
        while True:
            found = [line for line in self.lines if text in line]
            if len(found) >= times:
                return found[-1]
            if self._is_shown:
                raise SidecarError(f"the demo did not go as it should: `{self._typed}` never said {text!r}")
            await self._news.wait()

    async def done(self, code: int = 0) -> None:
        """Wait until it has ended, as it should."""
        ended = await self._agent.wait()
        while not self._is_shown:
            await self._news.wait()
        if ended.exit_code != code:
            raise SidecarError(f"the demo did not go as it should: `{self._typed}` ended with {ended.exit_code}")

    def _stir(self) -> None:
        self._news.set()
        self._news = anyio.Event()


def _environment(home: str) -> dict[str, str]:
    """Ours, without the settings of the person: they are for real work, and may have their own idea of a default."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SIDECAR_")}
    # With another home, Python would look for packages of the person there.
    return {**environment, "HOME": home, "PYTHONUSERBASE": site.getuserbase()}
