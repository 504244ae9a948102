"""The project that a soak storms: workflows of every shape, one agent of every temper, and the way runs are begun."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import yaml

from sidecar import config
from sidecar.catalog import workflows
from sidecar.engine.execution import locked
from sidecar.errors import REPORTED
from sidecar.service import owners, runs
from sidecar.signals import run_lock
from sidecar.store.db import Database, open_database
from sidecar.store.journal import Journal

TEMPERS = ("cooperative", "cooperative", "deaf", "slow", "forking", "daemonizing", "chatty", "crashing")
MARK = "SOAK_MARK"
EFFECTS = "effects"
_AGENT = Path(__file__).with_name("temper.sh")
_ACT = {"id": "act", "type": "agent", "agent": "temper", "prompt": "{{ item }}"}
_RUN = ["sh", str(_AGENT), "{{ item }}"]
_SHELL = {"id": "shell", "type": "shell_command", "command": ["sh", str(_AGENT), "{{ inputs.shell }}"]}
_INPUTS = {
    "shell": {"type": "string", "required": True},
    "walk": {"type": "array", "required": True},
    "fan": {"type": "array", "required": True},
}
_WORKFLOWS: dict[str, dict[str, Any]] = {
    "walk": {
        "inputs": _INPUTS,
        "steps": [
            _SHELL,
            {"id": "walk", "type": "foreach", "items": "{{ inputs.walk }}", "steps": [_ACT]},
        ],
    },
    "fan": {
        "inputs": _INPUTS,
        "sub_agent_tasks": {"part": {"steps": [{"id": "do", "type": "shell_command", "command": _RUN}]}},
        "steps": [
            {
                "id": "fan",
                "type": "parallel_foreach",
                "items": "{{ inputs.fan }}",
                "max_parallel": 2,
                "sub_agent_task": "part",
                "on_sub_agent_error": {"strategy": "fail_all"},
            },
            {"id": "walk", "type": "foreach", "items": "{{ inputs.walk }}", "steps": [_ACT]},
            _SHELL,
        ],
    },
}


class Soaked:
    """One project below a place of its own; what agents do is written beside it, not inside."""

    def __init__(self, place: Path, mark: str, workspaces: int, seed: int) -> None:
        self.place = place
        self.root = place / "project"
        self.own = self.root / ".swissarmyhammer"
        self.environment = {
            **os.environ,
            MARK: mark,
            "SOAK_EFFECTS": str(place / EFFECTS),
        }
        self.plans: dict[str, list[str]] = {}  # the keys of the steps that each run has to do
        self.bound: dict[str, Path | None] = {}  # the workspace of each run
        self.workspaces = [self.own / "workspaces" / f"w{number}" for number in range(workspaces)]
        self._random = random.Random(f"{seed} plans")
        self._make()
        self._project = config.open_project(str(self.root), self.environment)
        self._database: Database = open_database(str(self.root))
        self.journal = Journal(self._database)

    def close(self) -> None:
        """Let go of the journal."""
        self._database.close()

    def live(self) -> list[str]:
        """The runs that somebody executes now."""
        return run_lock.live_runs(str(self.root))

    def owner(self, run_id: str) -> int:
        """The process that has it, or had it last; 0 where nobody knows."""
        try:
            return int((self.own / "runs" / run_id / "lock").read_text().split("\n")[0])
        except (OSError, ValueError):
            return 0

    def add_run(self, workspace: Path | None, items: int = 4) -> str:
        """A run that is pending, with work of every temper."""
        definition = workflows.find(str(self.root), self._random.choice(sorted(_WORKFLOWS)))
        given: dict[str, Any] = {"shell": self._work("shell")}
        given["walk"] = [self._work(f"walk[{index}]/act") for index in range(items)]
        given["fan"] = [self._work(f"fan.{index}/do") for index in range(items)]
        prepared = runs.prepare(self._project, definition, given, workspace.name if workspace else None)
        run_id = runs.begin(self._project, prepared, detached=True)
        self.bound[run_id] = workspace
        words = [given["shell"], *given["walk"], *(given["fan"] if definition.name == "fan" else [])]
        self.plans[run_id] = [str(word).split()[1] for word in words]
        return run_id

    async def begin(self, run_id: str) -> str | None:
        """Have it executed, or gone on with; why not, where nobody does."""
        try:
            async with locked(str(self.root), run_id):
                runs.begin_again(str(self.root), self.journal, self.journal.run(run_id), "server")
            await owners.delegate(self._project, self.journal, run_id)
        except (*REPORTED, OSError) as error:
            return str(error)
        return None

    def _work(self, step: str) -> str:
        return f"{self._random.choice(TEMPERS)} {step} {self._random.uniform(0.02, 0.5):.2f}"

    def _make(self) -> None:
        for directory in (self.own / "workflows", self.own / "agents", *self.workspaces):
            directory.mkdir(parents=True, exist_ok=True)
        for name, content in _WORKFLOWS.items():
            self._write(f"workflows/{name}.yaml", {"description": name, **content})
        command = ["sh", str(_AGENT)]
        self._write("agents/temper.yaml", {"adapter": "command", "command": command, "prompt_via": "argument"})
        # The auditor wants the whole journal.
        self._write("config.yaml", {"kill_after_s": 0.5, "keep_runs": 1_000_000, "default_agent": "temper"})

    def _write(self, name: str, content: object) -> None:
        (self.own / name).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
