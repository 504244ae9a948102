"""A workspace, an agent that does in each turn what the test tells it, and the command in a pipe or on a terminal."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pty
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyte
import pytest
import yaml

from sidecar.store.db import open_database
from sidecar.store.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sidecar.store.journal import Event, Run

SIDECAR = str(Path(sys.executable).with_name("sidecar"))
DEADLINE_S = 60.0
# Takes the prompt, says that it is there, and does what it is told through a FIFO.
AGENT = 'cat > prompt; pwd > where; echo turn >> turns; read -r order < orders; eval "$order"'
# Opens its terminal again, which makes it the one that controls the new session, and becomes the command.
ON_A_TERMINAL = "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])"


class Project:
    """A project with the workspace `my-task`; all that is started in it carries a tag."""

    def __init__(self, root: Path, workspaces: str = ".swissarmyhammer/workspaces") -> None:
        self.root = root
        self.state = root / ".swissarmyhammer"
        self.workspace = root / workspaces / "my-task"
        self.tag = uuid.uuid4().hex
        self.environment = {**os.environ, "TEST_TAG": self.tag, "SIDECAR_KILL_AFTER_S": "0.5"}
        self.environment["SIDECAR_DEFAULT_AGENT"] = "scripted"
        (self.state / "agents").mkdir(parents=True)
        self.workspace.mkdir(parents=True)
        (self.workspace / "INSTRUCTIONS.md").write_text("Count to three.\n")
        self.agent("scripted", AGENT)
        os.mkfifo(root / "orders")
        self.turns_told = 0

    def agent(self, name: str, script: str, **definition: Any) -> None:
        content = {"adapter": "command", "command": ["sh", "-c", script, name], **definition}
        (self.state / "agents" / f"{name}.yaml").write_text(yaml.safe_dump(content))

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

    def start(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([SIDECAR, *arguments], cwd=self.root, env=self.environment, text=True, **pipes)

    def iterate(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        return self.start("iterate", "my-task", "-p", "delay=0s", *arguments, stdin=stdin)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        return self.finished(self.start(*arguments))

    @staticmethod
    def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
        out, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out, err

    @staticmethod
    def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "it never came true"
            time.sleep(0.005)

    def tagged(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if _environ(process).get("TEST_TAG") == self.tag]

    # --- what the journal has

    def last(self) -> Run:
        with open_database(str(self.root)) as database:
            return Journal(database).runs()[0]

    def events(self, kind: str) -> list[Event]:
        with open_database(str(self.root)) as database:
            journal = Journal(database)
            return [event for event in journal.events(journal.runs()[0].run_id) if event.kind == kind]


class TwoScreens(pyte.Screen):
    """pyte knows only one screen; terminals have a second one, which the first survives."""

    def set_mode(self, *modes: int, **kwargs: Any) -> None:
        if 1049 in modes and kwargs.get("private"):
            self.first = {y: dict(line) for y, line in self.buffer.items()}, self.cursor.x, self.cursor.y
        super().set_mode(*modes, **kwargs)

    def reset_mode(self, *modes: int, **kwargs: Any) -> None:
        super().reset_mode(*modes, **kwargs)
        if 1049 in modes and kwargs.get("private"):
            lines, x, y = self.first
            self.buffer.clear()
            for at, line in lines.items():
                self.buffer[at].update(line)
            self.cursor_position(y + 1, x + 1)


class Terminal:
    """The command on a terminal of its own: what is on the screen, and keys."""

    def __init__(self, project: Project, *arguments: str, columns: int = 120, lines: int = 30) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.screen = TwoScreens(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_A_TERMINAL, SIDECAR, *arguments],
            cwd=project.root,
            env={**project.environment, "TERM": "xterm-256color"},
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
        )

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, self.text
            self.read(0.02)

    def shows(self, *texts: str) -> None:
        self.until(lambda: all(text in self.text for text in texts))

    def listens(self) -> None:
        """Now single keys are heard."""
        self.until(lambda: not termios.tcgetattr(self.slave)[3] & termios.ECHO)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self) -> int:
        self.until(lambda: self.process.poll() is not None)
        self.read(0)
        return self.process.returncode

    def read(self, patience_s: float) -> None:
        while select.select([self.master], [], [], patience_s)[0]:
            self.stream.feed(os.read(self.master, 65536))
            patience_s = 0

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


def _opened(fifo: Path) -> int:
    """The end to write to, as soon as somebody has the other one."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    _nothing_is_left(project)


@pytest.fixture
def claude_iterate(tmp_path: Path) -> Iterator[Project]:
    """A project whose workspaces claude-iterate made."""
    project = Project(tmp_path, "claude-iterate/workspaces")
    yield project
    _nothing_is_left(project)


def _nothing_is_left(project: Project) -> None:
    left = project.tagged()
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    assert left == [], "processes were left behind"


@pytest.fixture
def at_terminal(project: Project) -> Iterator[Callable[..., Terminal]]:
    """`iterate` on a terminal."""
    terminals: list[Terminal] = []

    def begin(*arguments: str, **size: int) -> Terminal:
        words = arguments or ("iterate", "my-task", "-p", "delay=0s", "-p", "max_iterations=5")
        terminals.append(Terminal(project, *words, **size))
        return terminals[-1]

    try:
        yield begin
    finally:
        for terminal in terminals:
            terminal.close()
