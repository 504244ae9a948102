"""A project directory, and the installed command in it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import anyio
import psutil
import yaml
from mcp import Client

from tests.kit import journal
from tests.kit.forking import SIDECAR, Forked
from tests.kit.mcp_client import McpClient, at_serve, over_pipes
from tests.kit.terminal import Terminal
from tests.kit.waiting import DEADLINE_S, until

CALLER = Path(__file__).parent / "programs" / "caller.py"
TAG = "SIDECAR_TEST_TAG"
FORKED_OPTIONS = {"cwd", "env", "stdin", "stdout", "stderr", "text", "bufsize", "encoding", "errors"}


class Project:
    """A project on the disk. Everything that is started in it carries a tag in its environment."""

    def __init__(self, root: Path, **environment: str) -> None:
        self.root = root
        self.state = root / ".swissarmyhammer"
        self.tag = uuid.uuid4().hex
        # A fixture of a module is made before the environment of its tests is.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SIDECAR_")}
        self.environment = {**kept, TAG: self.tag, **environment}
        self.started: list[subprocess.Popen[str]] = []
        self.terminals: list[Terminal] = []
        for name in ("workflows", "agents"):
            (self.state / name).mkdir(parents=True)

    # --- what is in it

    def workflow(self, name: str, /, *steps: dict[str, Any], **definition: Any) -> None:
        content = {"description": name, **definition, **({"steps": list(steps)} if steps else {})}
        (self.state / "workflows" / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))

    def agent(self, name: str, script: str, **definition: Any) -> None:
        """An agent that is a shell script."""
        command = ["sh", "-c", script, name]
        content = {"description": name, "adapter": "command", "command": command, **definition}
        (self.state / "agents" / f"{name}.yaml").write_text(yaml.safe_dump(content))

    def calling_agent(self, name: str, manner: str, file: str, *calls: tuple[str, dict[str, Any]]) -> None:
        """An agent that is an MCP client: see the program."""
        words = [sys.executable, str(CALLER), manner, file, *([json.dumps(calls)] if calls else [])]
        self.agent(name, "", command=words)

    def touch(self, name: str) -> None:
        (self.root / name).touch()

    def lines(self, name: str) -> list[str]:
        return (self.root / name).read_text().splitlines()

    def directory(self, run_id: str) -> Path:
        return self.state / "runs" / run_id

    # --- the command

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """The command: forked from a process that has imported it, but where an option needs a start from the disk."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        kind = subprocess.Popen if options.keys() - FORKED_OPTIONS else Forked
        process = kind([SIDECAR, *arguments], **{"cwd": self.root, "env": self.environment, **pipes, **options})
        self.started.append(process)
        return process

    def start_into(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """With its output in a file, which can be read while it runs."""
        with (self.root / name).open("w") as file:
            return self.start(*arguments, stdout=file)

    def terminal(self, *arguments: str, **size: int) -> Terminal:
        """The command on a terminal of its own."""
        self.terminals.append(Terminal([SIDECAR, *arguments], self.root, self.environment, **size))
        return self.terminals[-1]

    @staticmethod
    def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
        """Exit code, output and errors, when it has ended."""
        out, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out, err

    def run(self, *arguments: str) -> tuple[int, str, str]:
        return self.finished(self.start(*arguments))

    def output(self, *arguments: str, code: int = 0) -> str:
        """What it prints where it exits with this code: its output, or its errors where the code is not 0."""
        found, out, err = self.run(*arguments)
        assert found == code, (arguments, found, out, err)
        return out if code == 0 else err

    def json(self, *arguments: str, code: int = 0) -> Any:
        found, out, err = self.run(*arguments)
        assert found == code, (arguments, found, out, err)
        return json.loads(out)

    def daemon(self, *arguments: str) -> Daemon:
        return Daemon(self, *arguments)

    def detached(self, workflow: str, *arguments: str) -> str:
        """The id of a run that was started with `--detach`."""
        self.output("flow", "run", workflow, "--detach", *arguments)
        return self.last().run_id

    @asynccontextmanager
    async def client(self, era: str, **environment: str) -> AsyncIterator[Client]:
        """An MCP client that starts `sidecar serve`, as real ones do."""
        with anyio.fail_after(DEADLINE_S):
            async with Client(self.served(**environment), mode=era) as client:
                yield client

    def served(self, **environment: str) -> Any:
        """The transport of such a client."""
        return over_pipes(self.root, {**self.environment, **environment})

    def serve(self) -> AbstractContextManager[McpClient]:
        """A client of a `sidecar serve` of its own, by hand."""
        return at_serve(self.root, self.environment)

    # --- what others see of it

    def runs(self) -> list[dict[str, Any]]:
        """As `status --json` prints them, newest first."""
        found: list[dict[str, Any]] = self.json("status", "--json", "--all")["runs"]
        return found

    def only_run(self) -> dict[str, Any]:
        (found,) = self.runs()
        return found

    def journalled(self) -> list[journal.RunRow]:
        """The runs as the journal has them, newest first."""
        return journal.runs(self.root)

    def last(self) -> journal.RunRow:
        """The newest run."""
        return self.journalled()[0]

    def events(self, run_id: str, *kinds: str) -> list[journal.Event]:
        return journal.events(self.root, run_id, *kinds)

    def data(self, run_id: str, *kinds: str) -> list[dict[str, Any]]:
        """The data of the events of these kinds."""
        return [event.data for event in self.events(run_id, *kinds)]

    def owner(self, run_id: str) -> int:
        """The process that executes the run, or did so last."""
        return int((self.directory(run_id) / "lock").read_text().split("\n")[0])

    def is_live(self, run_id: str) -> bool:
        """Whether a process executes the run now."""
        with suppress(FileNotFoundError), (self.directory(run_id) / "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def tagged(self) -> list[psutil.Process]:
        """What runs with this project's tag. The environment of a forked command cannot be seen from outside."""
        running = [process.pid for process in self.started if process.poll() is None]
        found = tagged(self.tag)
        unseen = set(running) - {process.pid for process in found}
        return [*found, *map(psutil.Process, unseen)]

    def processes(self) -> list[psutil.Process]:
        """What runs with this project's tag, besides what the test started itself."""
        ours = {process.pid for process in self.started} | {os.getpid()}
        return [process for process in self.tagged() if process.pid not in ours]

    @contextmanager
    def hold(self, run_id: str) -> Iterator[Callable[[], None]]:
        """Hold the run's lock, as the process does that executes it; what is yielded releases it before the end."""
        lock = os.open(self.directory(run_id) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        held = [lock]
        until(lambda: _locked(lock))
        os.ftruncate(lock, os.pwrite(lock, b"%d\n" % os.getpid(), 0))

        def release() -> None:
            while held:
                os.close(held.pop())

        try:
            yield release
        finally:
            release()

    # --- waiting

    def until(self, what: Callable[[], Any]) -> Any:
        """As `until`, and a failure shows the runs."""
        return until(what, shown=self.runs)

    def until_status(self, run_id: str, status: str) -> dict[str, Any]:
        """The run, as `status --json` prints it, as soon as it has this status."""

        def recorded() -> bool:
            found = next((run for run in self.journalled() if run.run_id == run_id), None)
            if found is None:
                return False
            # The journal is read, not the command started, as long as nothing has changed.
            return found.status == status or (found.status == "running" and not self.is_live(run_id))

        def seen() -> dict[str, Any] | None:
            both = (run_id, status)
            return next((run for run in self.runs() if (run["run_id"], run["status"]) == both), None)

        found: dict[str, Any] = self.until(lambda: recorded() and seen())
        return found

    def until_exists(self, name: str) -> None:
        self.until((self.root / name).exists)

    def until_file(self, name: str) -> Path:
        """A file that has something in it."""
        path = self.root / name
        self.until(lambda: path.exists() and path.stat().st_size > 0)
        return path

    @contextmanager
    def alone(self) -> Iterator[Self]:
        """For a test, in which everything that it starts has to come to an end."""
        try:
            yield self
            for terminal in self.terminals:
                terminal.close()
            until(lambda: not self.tagged(), shown=lambda: f"processes were left behind: {self.tagged()}")
        finally:
            self.close()

    def close(self) -> list[psutil.Process]:
        """End everything that is left; what was left of what the command started."""
        for terminal in self.terminals:
            terminal.close()
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait(DEADLINE_S)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        left = self.processes()

        def none_left() -> bool:
            found = self.processes()
            for each in found:
                with suppress(psutil.Error):
                    each.kill()
            return not found

        until(none_left, shown=self.processes)
        return left


class Daemon:
    """`sidecar daemon`, ready."""

    def __init__(self, project: Project, *arguments: str) -> None:
        self.project = project
        self._log = project.root / f"daemon-{len(project.started)}.log"
        with self._log.open("w") as log:
            self.process = project.start("daemon", *arguments, stderr=log, stdout=log)
        self.until_printed("is process")

    @property
    def printed(self) -> str:
        return self._log.read_text()

    def until_printed(self, text: str) -> None:
        def seen() -> bool:
            assert self.process.poll() is None or text in self.printed, self.printed
            return text in self.printed

        until(seen, shown=lambda: self.printed)

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


def tagged(tag: str) -> list[psutil.Process]:
    """Every process that does something and has this tag in its environment."""
    found = []
    for pid in psutil.pids():
        with suppress(psutil.Error, OSError):
            if _has_tag(pid, tag) and (process := psutil.Process(pid)).status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _has_tag(pid: int, tag: str) -> bool:
    if sys.platform != "linux":
        return psutil.Process(pid).environ().get(TAG) == tag
    with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # a fifth of what psutil takes, for every process
        return f"{TAG}={tag}\0".encode() in file.read()


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
