"""A stage for steps that start agents: real processes, a real evaluator, and everything that they tell is kept."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar import config
from sidecar.agents.supervisor import Agent, Launch, Supervisor
from sidecar.engine.evaluation import Texts, View
from sidecar.engine.steps.context import Context, RunServices
from sidecar.model import ulid
from sidecar.state.script import Script
from sidecar.state.world import World
from tests.kit import alive


class Stage:
    """A project with a run in it, and one attempt at one step."""

    def __init__(self, root: Path, supervisor: Supervisor, script: Script) -> None:
        self.root = root
        self.supervisor = supervisor
        self.script = script
        self.run_id = ulid.new()
        self.settings = config.load(str(root), {}, default_agent="worker", kill_after_s=0.5)
        self.environment: dict[str, str] = {"PATH": os.environ["PATH"]}
        self.mcp: Any = None
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.spent: list[tuple[float | None, int]] = []
        self.agents: list[tuple[str, Agent]] = []
        self.logs: list[Path] = []

    def define(self, name: str, script: str, adapter: str = "command", **more: object) -> None:
        """An agent that is a shell script; for `claude`, one that speaks its language."""
        words = ["sh", "-c", script, name]
        self.file(f"agents/{name}.yaml", yaml.safe_dump({"adapter": adapter, "command": words, **more}))

    def file(self, name: str, text: str) -> Path:
        path = self.root / ".swissarmyhammer" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def context(self, names: Mapping[str, Any] | None = None, **changes: Any) -> Context:
        services = RunServices(
            root=str(self.root),
            run_id=self.run_id,
            workspace=None,
            environment=self.environment,
            settings=self.settings,
            secrets=self.settings.secret_values(self.environment),
            mcp=self.mcp,
        )
        context = Context(
            services=services,
            view=View(Texts(self.script), World(self.script), dict(names or {})),
            key="step",
            attempt=1,
            task_id=None,
            additions=(),
            cost_remaining_usd=None,
            start=self._start,
            log_path=self._log_path,
            emit=lambda kind, data: self.told.append((kind, data)),
            spend=lambda cost, tokens: self.spent.append((cost, tokens)),
        )
        return replace(context, **changes)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """What was told of one kind, as JSON has it."""
        return [json.loads(json.dumps(data)) for told, data in self.told if told == kind]

    def living(self) -> list[int]:
        """Those agents, and those processes whose pids they wrote into `born`, that live."""
        born = self.root / "born"
        written = born.read_text() if born.exists() else ""
        pids = [agent.pid for _, agent in self.agents] + [int(word) for word in written.split()]
        return [pid for pid in pids if alive(pid)]

    async def _start(self, launch: Launch, name: str) -> Agent:
        agent = await self.supervisor.start(launch)
        self.agents.append((name, agent))
        return agent

    def _log_path(self) -> str:
        self.logs.append(self.root / f"{len(self.logs) + 1}.log")
        return str(self.logs[-1])


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    with Script(worker=False) as script:
        async with Supervisor(str(tmp_path)) as supervisor:
            yield Stage(tmp_path, supervisor, script)


@pytest.fixture
def claude_says() -> Callable[..., str]:
    """A script that takes its prompt, notes its arguments in `argv`, and prints messages as claude does."""

    def script(*messages: dict[str, Any]) -> str:
        lines = [f"printf '%s\\n' {shlex.quote(json.dumps(message))}" for message in messages]
        return "\n".join(["cat > prompt; printf '%s\\n' \"$@\" > argv", *lines])

    return script
