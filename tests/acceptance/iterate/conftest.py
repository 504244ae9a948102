"""A workspace, an agent that does in each turn what the test tells it, and the command in a pipe or on a terminal."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Event, Project, Terminal, until

# Takes the prompt, says that it is there, and does what it is told through a FIFO.
AGENT = 'cat > prompt; pwd > where; echo turn >> turns; read -r order < orders; eval "$order"'


class WorkspaceProject(Project):
    """A project with the workspace `my-task`."""

    def __init__(self, root: Path, workspaces: str = ".swissarmyhammer/workspaces") -> None:
        super().__init__(root, SIDECAR_KILL_AFTER_S="0.5", SIDECAR_DEFAULT_AGENT="scripted")
        self.workspace = root / workspaces / "my-task"
        self.workspace.mkdir(parents=True)
        (self.workspace / "INSTRUCTIONS.md").write_text("Count to three.\n")
        self.agent("scripted", AGENT)
        os.mkfifo(root / "orders")
        self.turns_told = 0

    # --- the agent

    def turns(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return len((self.root / "turns").read_text().splitlines())
        return 0

    def wait_for_turn(self) -> None:
        """The agent has begun a turn that it was not told anything in yet, and waits."""
        self.until(lambda: self.turns() > self.turns_told)

    def tell(self, order: str) -> None:
        """What the agent does in this turn."""
        self.wait_for_turn()
        orders = _opened(self.root / "orders")
        os.write(orders, order.encode() + b"\n")
        os.close(orders)
        self.turns_told += 1

    def report(self, **status: Any) -> None:
        """The agent writes its status, and ends its turn."""
        self.tell(f"printf %s {shlex.quote(json.dumps({'complete': False, **status}))} > {self.status}")

    @property
    def status(self) -> str:
        return shlex.quote(str(self.workspace / ".status.json"))

    # --- the command

    def at_terminal(self, *arguments: str, **size: int) -> Terminal:
        """`iterate` on a terminal."""
        words = arguments or ("iterate", "my-task", "-p", "delay=0s", "-p", "max_iterations=5")
        return self.terminal(*words, **size)

    def iterate(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        return self.start("iterate", "my-task", "-p", "delay=0s", *arguments, stdin=stdin)

    def last_events(self, kind: str) -> list[Event]:
        """Of the newest run."""
        return self.events(self.last().run_id, kind)


def _opened(fifo: Path) -> int:
    """The end to write to, as soon as somebody has the other one."""

    def opened() -> list[int]:
        try:
            return [os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)]
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return []

    (file,) = until(opened)
    return int(file)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[WorkspaceProject]:
    with WorkspaceProject(tmp_path).alone() as project:
        yield project


@pytest.fixture
def claude_iterate(tmp_path: Path) -> Iterator[WorkspaceProject]:
    """A project whose workspaces claude-iterate made."""
    with WorkspaceProject(tmp_path, "claude-iterate/workspaces").alone() as project:
        yield project
