"""A project with real processes, its runs driven by the owner itself or by an agent outside that does as it is told."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from sidecar import config
from sidecar.config import Project
from sidecar.engine.boundary import Ending
from sidecar.engine.owner import Owner
from sidecar.engine.replay import load
from sidecar.engine.server_driven import ServerDriven
from sidecar.errors import InputError
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent
from sidecar.service import runs
from sidecar.service.driving import Driving
from sidecar.service.owners import DetachedExecutor
from sidecar.signals import files, receipts
from sidecar.signals.receipts import Receipt
from sidecar.signals.run_lock import RunLock
from tests.kit import DEADLINE_S, alive, eventually

MCP_SERVER = Path(__file__).parents[1] / "programs" / "mcp_plain_server.py"
# The agents of every scenario: `worker` gives back its prompt, `hinter` says that it applied two hints.
AGENTS: dict[str, dict[str, Any]] = {
    "worker": {"adapter": "command", "command": ["cat"]},
    "hinter": {"adapter": "command", "command": ["sh", "-c", "cat > /dev/null; echo '{\"applied_count\": 2}'"]},
}


class Answers:
    """A person who gives one answer after the other."""

    def __init__(self, *answers: str) -> None:
        self.left = list(answers)
        self.problems: list[str | None] = []
        self.when_asked: Callable[[], object] = lambda: None

    async def ask(self, question: dict[str, Any], problem: str | None) -> str | None:
        self.problems.append(problem)
        self.when_asked()
        return self.left.pop(0) if self.left else None

    async def lend_terminal(self, run: Callable[[int], Awaitable[int]]) -> int | None:
        return None


class World:
    """One project, one owner, and everything that its runs told."""

    def __init__(self, root: Path, owner: Owner, project: Project) -> None:
        self.root = root
        self.owner = owner
        self.project = project
        self.cases = Driving(project, owner, DetachedExecutor(project, owner.journal), self._hear)
        self.told: list[RunEvent] = []
        self.executions: dict[str, ServerDriven] = {}
        self._waiting = anyio.Event()

    # --- what is there

    def file(self, name: str, content: str | dict[str, Any]) -> Path:
        """A file of the project, below its root."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
        return path

    def workflow(self, name: str, content: str | dict[str, Any]) -> str:
        self.file(f".swissarmyhammer/workflows/{name}.yaml", content)
        return name

    def agent(self, name: str, script: str) -> None:
        definition = {"adapter": "command", "command": ["sh", "-c", script, name]}
        self.file(f".swissarmyhammer/agents/{name}.yaml", definition)

    def workspace(self, name: str) -> Path:
        path = self.root / ".swissarmyhammer" / "workspaces" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def place(self, where: str, run_id: str) -> Path:
        """One of the three directories that govern a run."""
        state = self.root / ".swissarmyhammer"
        return {"project": state, "workspace": state / "workspaces" / "desk", "run": state / "runs" / run_id}[where]

    # --- runs that the owner drives

    def create(self, name: str, inputs: dict[str, Any] | None = None, workspace: str | None = None) -> str:
        definition = runs.find_workflow(self.project, name, self.owner.script)
        prepared = runs.prepare(self.project, definition, inputs or {}, workspace)
        return runs.begin(self.project, prepared, database=self.owner.database)

    async def execute(self, run_id: str, **more: Any) -> Ending:
        """One start, or one resume."""
        with anyio.fail_after(DEADLINE_S):
            with RunLock(str(self.root), run_id):
                runs.begin_again(str(self.root), self.owner.journal, self.owner.journal.run(run_id), "server")
            execution = self.executions[run_id] = ServerDriven(self.owner, run_id, self._hear, **more)
            return await execution.execute()

    async def run(self, name: str, inputs: dict[str, Any] | None = None, **more: Any) -> tuple[str, Ending]:
        run_id = self.create(name, inputs, more.pop("workspace", None))
        return run_id, await self.execute(run_id, **more)

    @asynccontextmanager
    async def running(self, run_id: str, **more: Any) -> AsyncIterator[list[Ending]]:
        """The run while something else happens; its ending is in the list when the block is left."""
        endings: list[Ending] = []

        async def go() -> None:
            endings.append(await self.execute(run_id, **more))

        async with anyio.create_task_group() as group:
            group.start_soon(go)
            yield endings

    async def heard(self, kind: str, run_id: str | None = None, times: int = 1, **data: Any) -> RunEvent:
        """Wait until something was told so often."""
        with anyio.fail_after(DEADLINE_S):
            while True:
                found = [
                    event
                    for event in self.told
                    if event.kind == kind
                    and run_id in (None, event.run_id)
                    and all(event.data.get(name) == value for name, value in data.items())
                ]
                if len(found) >= times:
                    return found[times - 1]
                await self._waiting.wait()

    # --- runs that an agent drives

    async def start(self, name: str, inputs: dict[str, Any] | None = None, workspace: str | None = None) -> str:
        started = await self.cases.start(name, inputs or {}, workspace)
        return str(started["workflow_id"])

    async def drive(self, run_id: str, answers: list[Any] | None = None) -> dict[str, Any]:
        """Do every step that is handed out, until there is none."""
        return await Driver(self, run_id, answers or []).drive()

    # --- what came of it

    def state(self, run_id: str) -> dict[str, Any]:
        image = load(self.owner, self.owner.journal.run(run_id))
        try:
            return image.states[()].state.flattened()
        finally:
            image.states.close()

    def status(self, run_id: str) -> str:
        return self.owner.journal.run(run_id).status

    def events(self, run_id: str, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.owner.journal.events(run_id) if event.kind == kind]

    def compact(self, run_id: str) -> list[str]:
        """What the journal has, a word and a name for each event."""
        return [text for event in self.owner.journal.events(run_id) if (text := compact(event.kind, event.data))]

    def warnings(self) -> list[str]:
        return [event.data["text"] for event in self.told if event.kind == kinds.WARNING]

    def lines(self, name: str) -> list[str]:
        path = self.root / name
        return path.read_text().splitlines() if path.exists() else []

    async def until_lines(self, name: str, count: int) -> None:
        await eventually(lambda: len(self.lines(name)) >= count)

    def living(self, name: str = "pids") -> list[int]:
        """Those whose pids were written into a file and that live."""
        return [int(line) for line in self.lines(name) if alive(int(line))]

    # --- signals

    def signalled(self, kind: Any, directory: Path) -> bool:
        return files.present(files.path_of(str(directory), kind))

    def signal(self, kind: Any, directory: Path, reason: str = "why", **more: Any) -> str:
        """As `sidecar stop` and `abort` write it; its id."""
        signed = files.new_trailers(**more)
        files.write(str(directory), kind, reason, signed)
        return signed.signal_id or ""

    def receipt(self, kind: Any, directory: Path) -> Receipt:
        found = receipts.read(files.path_of(str(directory), kind))
        assert found is not None
        return found

    def _hear(self, event: RunEvent) -> None:
        self.told.append(event)
        self._waiting.set()
        self._waiting = anyio.Event()


class Driver:
    """An agent outside that does what each step says."""

    def __init__(self, world: World, run_id: str, answers: list[Any]) -> None:
        self._world = world
        self._run_id = run_id
        self._answers = list(answers)
        self.types: list[str] = []

    async def drive(self) -> dict[str, Any]:
        with anyio.fail_after(DEADLINE_S):
            return await self._all(None)

    async def _all(self, task_id: str | None) -> dict[str, Any]:
        while True:
            given = await self._world.cases.next_step(self._run_id, task_id)
            if given["step"] is None:
                return given
            self.types.append(given["step"]["type"])
            if given["step"]["type"] == "parallel_tasks":
                await self._tasks(given["step"], task_id)
            else:
                await self._do(given["step"], task_id)

    async def _tasks(self, step: dict[str, Any], task_id: str | None) -> None:
        for entry in step["definition"]["tasks"]:
            await self._all(entry["task_id"])
        with contextlib.suppress(InputError):  # one is to be tried again: the step is given out once more
            await self._world.cases.step_complete(self._run_id, step["id"], task_id=task_id)

    async def _do(self, step: dict[str, Any], task_id: str | None) -> None:
        told = self._result(step["type"], step["definition"])
        await self._world.cases.step_complete(self._run_id, step["id"], task_id=task_id, **told)

    def _result(self, kind: str, definition: dict[str, Any]) -> dict[str, Any]:
        if kind == "agent":
            return {"result": definition["prompt"]}
        if kind == "apply_hints":
            return {"result": {"applied_count": 2}}
        if kind == "mcp_call":
            return {"result": definition["params"]}
        if kind == "user_input":
            return {"result": self._answers.pop(0)}
        if kind == "user_message":
            return {}
        assert kind == "agent_shell_command"
        done = subprocess.run(
            ["sh", "-c", definition["command"]], cwd=self._world.root, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return {"status": "failed", "error": f"the command ended with exit code {done.returncode}"}
        return {"result": done.stdout}


def compact(kind: str, data: dict[str, Any]) -> str | None:
    """An event as a scenario writes it; None for those that only machines need."""
    step = data.get("step")
    texts: dict[str, Callable[[], str]] = {
        kinds.STEP_STARTED: lambda: f"> {step}" + (f" {data['attempt']}" if data["attempt"] > 1 else ""),
        kinds.STEP_COMPLETED: lambda: f"+ {step}",
        kinds.STEP_FAILED: lambda: f"{'~' if data['will_retry'] else '!'} {step}",
        kinds.ERROR_HANDLED: lambda: f"= {step}",
        kinds.ITERATION: lambda: f"# {step} {data['iteration']}",
        kinds.TASK_STARTED: lambda: f"( {data['task']}",
        kinds.TASK_ENDED: lambda: (
            (") " if not data["error"] else "~) " if data["will_retry"] else "!) ") + data["task"]
        ),
        kinds.MESSAGE: lambda: f"say {data['text']}",
        kinds.QUESTION: lambda: f"ask {data['prompt']}",
        kinds.WORKFLOW_RETRIED: lambda: f"round {data['round']}",
        kinds.RUN_RESUMED: lambda: f"resumed {data['previous_status']}",
        kinds.RUN_ENDED: lambda: f"end {data['status']}",
    }
    return texts[kind]() if kind in texts else None


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    root = tmp_path / "project"
    for name, definition in AGENTS.items():
        path = root / ".swissarmyhammer" / "agents" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(definition))
    servers = {"plain": {"command": sys.executable, "args": ["-I", str(MCP_SERVER), "echo", "silent"]}}
    settings = config.load(str(root), environment, default_agent="worker", kill_after_s=0.5, mcp_servers=servers)
    said: list[str] = []
    async with Owner(str(root), settings, environment, said.append) as owner:
        yield World(root, owner, Project(str(root), settings, environment))
    assert said == []


@pytest.fixture
def answers() -> type[Answers]:
    """Somebody to ask."""
    return Answers
