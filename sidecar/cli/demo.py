"""`sidecar demo`: shows a stop, a resume, parallel tasks and an abort with real runs in a temporary project."""

from __future__ import annotations

import json
import os
import shlex
import signal
import site
import sys
import tempfile
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import anyio
from anyio import CancelScope
from anyio.abc import TaskGroup, TaskStatus

from sidecar import layout
from sidecar.agents.supervisor import Agent, Launch, Supervisor
from sidecar.catalog.naming import builtin_directory
from sidecar.cli.options import parser
from sidecar.errors import REPORTED, SidecarError

OK = 0
_SIGNALLED = 128
_AT_MOST_S = 180.0
_SIGNAL = ".swissarmyhammer/.abort"
_WORKSPACE = "my-task"
_STOP = f".swissarmyhammer/workspaces/{_WORKSPACE}/.stop"

_AFTERWARDS = """
The project is removed, and none of its processes is left. What to try next:
  sidecar --help        every command
  sidecar doctor        checks of this machine and project
  sidecar flow list     the built-in workflows"""


def main(arguments: list[str], _project: str | None) -> int:
    """Run the demo in a temporary directory, which is removed afterwards, as is every process."""
    parser("demo").parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="sidecar-demo-") as directory:
        code = anyio.run(_Demo(os.path.realpath(directory)).play)
    if code == OK:
        print(_AFTERWARDS)
    return code


class _Demo:
    """One run of the demo. Ctrl-C, SIGTERM or a closed output end it early, with everything that it started."""

    def __init__(self, directory: str) -> None:
        self._root = os.path.join(directory, "project")
        self._home = os.path.join(directory, "home")
        self._problem: Exception | None = None
        self._received: int | None = None
        self._has_reader = True
        self._all: CancelScope

    async def play(self) -> int:
        os.mkdir(self._home)
        _make_project(self._root)
        async with anyio.create_task_group() as tasks:
            self._all = tasks.cancel_scope
            await tasks.start(self._on_signals)
            await self._scenes()
            tasks.cancel_scope.cancel()
        if not self._has_reader:
            raise BrokenPipeError
        if self._received is not None:
            print("sidecar: the demo was interrupted; nothing of it is left", file=sys.stderr)
            return _SIGNALLED + self._received
        if self._problem is not None:  # raised here, outside of the task groups, which would wrap it
            raise self._problem
        return OK

    async def _on_signals(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                self._received = int(number)
                self._all.cancel()

    async def _scenes(self) -> None:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        try:
            with anyio.fail_after(_AT_MOST_S):
                async with _Stage(self._root, self._home, self._write, colour=colour) as stage:
                    try:
                        await _play(stage)
                    except REPORTED as error:
                        self._problem = error
        except TimeoutError:
            self._problem = SidecarError(f"the demo did not end within {_AT_MOST_S:g} s; this machine may be very busy")

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            self._has_reader = False
            self._all.cancel()


async def _play(stage: _Stage) -> None:
    stage.show(
        "text",
        "Four scenes with real processes in a temporary project. You could type all of\n"
        "this yourself. Two small programs take the place of the agents; yours are\n"
        "claude, codex, gemini, or any command.",
    )
    run_id = await _stopped_by_a_file(stage)
    await _resumed(stage, run_id)
    await _in_parallel(stage)
    await _aborted(stage)


async def _stopped_by_a_file(stage: _Stage) -> str:
    stage.show("heading", "\n1. A loop of agents, stopped by a file")
    stage.show("text", "A workflow gives an agent four pieces of work, one after the other.")
    loop = await stage.start(f"sidecar flow run loop --workspace {_WORKSPACE}")
    run_id = (await loop.prints("started loop, run ")).rpartition(" ")[2]
    await loop.prints("worker: started", times=2)
    stage.show("text", "The agent works on the second one. Whatever can write a file can stop the run:")
    await stage.run(f"touch {_STOP}")
    await loop.done()
    stage.show("good", "The agent finished its piece of work. Exit code 0.")
    return run_id


async def _resumed(stage: _Stage, run_id: str) -> None:
    stage.show("heading", "\n2. The same run continues")
    stage.show("text", "Completed steps are in the journal and are not executed again.")
    await (await stage.start(f"sidecar resume {run_id}")).done()
    log = await stage.run("cat work.log")
    if log.lines != [f"piece {number}" for number in (1, 2, 3, 4)]:
        raise SidecarError(f"unexpected content of work.log: {log.lines}")
    stage.show("good", "Four pieces of work, each done once.")


async def _in_parallel(stage: _Stage) -> None:
    stage.show("heading", "\n3. Parallel tasks and computed state")
    stage.show(
        "text",
        "Six tasks, three at a time. Each writes one value. Two fields of the state are\n"
        "computed from all values, again after every write.",
    )
    survey = await stage.run("sidecar flow run survey")
    await survey.prints("all 6 are measured, the tallest is the sequoia")
    stage.show("good", "No step computed these fields: the state did.")


async def _aborted(stage: _Stage) -> None:
    stage.show("heading", "\n4. An agent that ignores SIGTERM is aborted")
    stage.show("text", "So does its child, which runs in a session of its own.")
    stubborn = await stage.start("sidecar flow run stubborn")
    await stubborn.prints("ignore SIGTERM")
    abort = await stage.start('sidecar abort "wrong branch" --wait')
    await abort.done()
    await stubborn.done(code=2)
    stage.show("text", f"{_SIGNAL}.receipt.json says how each process ended:")
    receipt = _receipt(stage.root)
    for process in receipt["processes"]:
        took = f"after {process['ms_to_death'] / 1000:.1f} s"
        stage.show("output", f"pid {process['pid']}  {process['program']}  last rung: {process['rung']}, {took}")
    stage.show("output", f"survivors: {receipt['survivors']}")
    alive = [process["pid"] for process in receipt["processes"] if _lives(process["pid"])]
    if receipt["survivors"] or alive or len(receipt["processes"]) < 2:
        raise SidecarError(f"unexpected receipt: {receipt['processes']}, alive: {alive}")
    stage.show("good", "Asked to end, killed after a grace of 2 s; none of them is left.")


def _receipt(root: str) -> dict[str, Any]:
    with open(os.path.join(root, f"{_SIGNAL}.receipt.json"), encoding="utf-8") as file:
        receipt: dict[str, Any] = json.load(file)
    return receipt


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's process, which has the number now
        return False
    return True


# --- the project, and the commands that are typed in it


def _make_project(root: str) -> None:
    """Copy the files of the project. In them, PYTHON is the interpreter, and `swissarmyhammer` has its dot."""
    source = builtin_directory("demo")
    for directory, _, names in os.walk(source):
        target = os.path.join(
            root, os.path.relpath(directory, source).replace("swissarmyhammer", layout.STATE_DIRECTORY)
        )
        os.makedirs(target, exist_ok=True)
        for name in names:
            with open(os.path.join(directory, name), encoding="utf-8") as file:
                content = file.read()
            with open(os.path.join(target, name), "w", encoding="utf-8") as file:
                file.write(content.replace("PYTHON", json.dumps(sys.executable)))  # JSON is YAML


_SELF = (sys.executable, "-P", "-m", "sidecar")
_STYLES = {"heading": "\033[1;36m", "command": "\033[1m", "output": "\033[2m", "good": "\033[32m"}
_PLAIN = "\033[0m"
_MARGINS = {"heading": "", "text": "", "command": "  $ ", "output": "  | ", "good": "  "}


class _Stage:
    """A project in which commands are executed and shown; its end ends every process of it."""

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
        try:
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            await self._supervisor.__aexit__(kind, error, trace)

    def show(self, style: str, text: str) -> None:
        """Show lines in a style: heading, text, command, output or good."""
        before, after = (_STYLES.get(style, ""), _PLAIN) if self._colour and style in _STYLES else ("", "")
        for line in text.splitlines() or [""]:
            self._write(f"{_MARGINS[style]}{before}{line}{after}\n")

    async def start(self, typed: str) -> _Command:
        """Show a command and start it."""
        self.show("command", typed)
        program, *rest = shlex.split(typed)
        argv = [*(_SELF if program == "sidecar" else (program,)), *rest]
        agent = await self._supervisor.start(Launch(argv=argv, cwd=self.root, starter_env=_environment(self._home)))
        command = _Command(typed, agent)
        self._tasks.start_soon(command.follow, lambda line: self.show("output", line))
        return command

    async def run(self, typed: str) -> _Command:
        """Show a command, start it and wait until it has ended with exit code 0."""
        command = await self.start(typed)
        await command.done()
        return command


class _Command:
    """A command that was typed, and its output."""

    def __init__(self, typed: str, agent: Agent) -> None:
        self.lines: list[str] = []
        self._typed = typed
        self._agent = agent
        self._output = agent.pipes.subscribe()
        self._news = anyio.Event()
        self._is_shown = False

    async def follow(self, show: Callable[[str], None]) -> None:
        """Show its lines as they come, to the last one."""
        async for output in self._output:
            for line in output.lines:
                show(line)
                self.lines.append(line)
            self._wake()
        self._is_shown = True
        self._wake()

    async def prints(self, text: str, times: int = 1) -> str:
        """Wait until so many lines contain a text; the last of them."""
        while True:
            found = [line for line in self.lines if text in line]
            if len(found) >= times:
                return found[-1]
            if self._is_shown:
                raise SidecarError(f"`{self._typed}` did not print {text!r}")
            await self._news.wait()

    async def done(self, code: int = 0) -> None:
        """Wait until it has ended with this exit code and is shown."""
        ended = await self._agent.wait()
        while not self._is_shown:
            await self._news.wait()
        if ended.exit_code != code:
            raise SidecarError(f"`{self._typed}` ended with exit code {ended.exit_code}")

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()


def _environment(home: str) -> dict[str, str]:
    """Our environment without the person's settings for sidecar."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SIDECAR_")}
    # Packages of the person stay where they are, though HOME is another.
    return {**environment, "HOME": home, "PYTHONUSERBASE": site.getuserbase()}
