"""A project, the commands as a user has them, a daemon that ends with the test, and clients of both eras."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
import yaml
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from sidecar.service import looking, starting
from sidecar.signals import liveness
from sidecar.store.db import open_database
from sidecar.store.journal import Journal

DEADLINE_S = 60.0
SIDECAR = [sys.executable, "-m", "sidecar"]
CALLER = Path(__file__).parent / "programs" / "caller.py"


class Project:
    """A project on the disk, and the commands in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.own = root / ".swissarmyhammer"
        (self.own / "workflows").mkdir(parents=True)
        (self.own / "agents").mkdir()
        self.environment = {**os.environ, "SIDECAR_TEST_PROJECT": str(root)}
        self.started: list[subprocess.Popen[str]] = []

    def workflow(self, name: str, *steps: dict[str, Any], **more: Any) -> None:
        content = {"description": name, **more, "steps": list(steps)}
        (self.own / "workflows" / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))

    def calling_agent(self, name: str, manner: str, file: str, *calls: tuple[str, dict[str, Any]]) -> None:
        """An agent that is an MCP client: see the program."""
        command = [sys.executable, str(CALLER), manner, file, *([json.dumps(calls)] if calls else [])]
        content = {"description": name, "adapter": "command", "command": command}
        (self.own / "agents" / f"{name}.yaml").write_text(yaml.safe_dump(content))

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [*SIDECAR, *arguments], cwd=self.root, env=self.environment, text=True, **{**pipes, **more}
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, code: int = 0) -> str:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code, (arguments, process.returncode, out, err)
        return out if code == 0 else err

    def daemon(self, *arguments: str) -> Daemon:
        return Daemon(self, *arguments)

    # --- what is to be seen

    def runs(self) -> list[dict[str, Any]]:
        """As `status --json` has them, without the cost of starting it."""
        with open_database(str(self.root)) as database:
            return looking.statuses(database, str(self.root))

    def events(self, run_id: str, *kinds: str) -> list[dict[str, Any]]:
        """What the journal has of a run: the data of the events of these kinds."""
        with open_database(str(self.root)) as database:
            return [event.data for event in Journal(database).events(run_id) if event.kind in kinds]

    def only_run(self) -> dict[str, Any]:
        (found,) = self.runs()
        return found

    def until(self, what: Callable[[], Any]) -> Any:
        """What something gives as soon as that is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := what()):
            assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {self.runs()}"
            time.sleep(0.02)
        return found

    def until_status(self, run_id: str, status: str) -> dict[str, Any]:
        def seen() -> dict[str, Any] | None:
            return next((run for run in self.runs() if (run["run_id"], run["status"]) == (run_id, status)), None)

        found: dict[str, Any] = self.until(seen)
        return found

    def until_file(self, name: str) -> Path:
        """A file that has something in it."""
        path = self.root / name
        self.until(lambda: path.exists() and path.stat().st_size > 0)
        return path

    def owner(self, run_id: str) -> int:
        """The process that has the run, or had it last."""
        return int((self.own / "runs" / run_id / "lock").read_text().split("\n")[0])

    def detached(self, workflow: str, *arguments: str) -> str:
        """The id of a run that was handed over."""
        self.run("flow", "run", workflow, "--detach", *arguments)
        return str(self.runs()[0]["run_id"])

    def begin_again(self, run_id: str) -> None:
        """As `resume` does before it hands a run over."""
        with open_database(str(self.root)) as database, liveness.RunLock(str(self.root), run_id):
            journal = Journal(database)
            starting.begin_again(str(self.root), journal, journal.run(run_id), "server")

    def processes(self) -> list[psutil.Process]:
        """What runs with the marker of this project, but for those that the test started itself."""
        ours = {process.pid for process in self.started} | {os.getpid()}
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                alive = process.pid not in ours and process.status() != psutil.STATUS_ZOMBIE
                if alive and process.environ().get("SIDECAR_TEST_PROJECT") == str(self.root):
                    found.append(process)
        return found

    @asynccontextmanager
    async def client(self, era: str, **environment: str) -> AsyncIterator[Client]:
        """A client that starts `sidecar serve`, as real ones do."""
        command, *arguments = [*SIDECAR, "serve"]
        env = {**self.environment, **environment}
        with anyio.fail_after(DEADLINE_S):
            parameters = StdioServerParameters(command=command, args=arguments, env=env, cwd=self.root)
            async with Client(parameters, mode=era) as client:
                yield client

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait(DEADLINE_S)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        deadline = time.monotonic() + DEADLINE_S
        while left := self.processes():
            for each in left:
                with suppress(psutil.Error):
                    each.kill()
            assert time.monotonic() < deadline, left
            time.sleep(0.02)


class Daemon:
    """`sidecar daemon`, ready."""

    def __init__(self, project: Project, *arguments: str) -> None:
        self.project = project
        self._log = project.root / f"daemon-{len(project.started)}.log"
        with self._log.open("w") as log:
            self.process = project.start("daemon", *arguments, stderr=log, stdout=log)
        self.until_said("is process")

    @property
    def said(self) -> str:
        return self._log.read_text()

    def until_said(self, text: str) -> None:
        def seen() -> bool:
            assert self.process.poll() is None or text in self.said, self.said
            return text in self.said

        self.project.until(seen)

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    found = Project(tmp_path / "project")
    yield found
    found.close()


@pytest.fixture(params=["legacy", "2026-07-28"])
def era(request: pytest.FixtureRequest) -> str:
    """The handshake era and the stateless one."""
    return str(request.param)


@pytest.fixture
def is_live(project: Project) -> Callable[[str], bool]:
    return lambda run_id: liveness.is_live(str(project.root), run_id)
