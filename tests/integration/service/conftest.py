"""A project with an owner in this process, and workflows whose steps are real processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from sidecar import config
from sidecar.config import Project
from sidecar.engine.owner import Owner
from sidecar.service import runs

DEADLINE_S = 300.0  # of hundreds of runs on a busy machine


class Place:
    """A project, and who executes its runs."""

    def __init__(self, root: Path, owner: Owner, project: Project) -> None:
        self.root = root
        self.owner = owner
        self.project = project

    def run(self, name: str, *steps: dict[str, Any]) -> str:
        """A pending run of a workflow of these steps."""
        path = self.root / ".swissarmyhammer" / "workflows" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump({"description": name, "steps": list(steps)}, sort_keys=False))
        definition = runs.find_workflow(self.project, name, self.owner.script)
        prepared = runs.prepare(self.project, definition, {})
        return runs.begin(self.project, prepared, detached=True, database=self.owner.database)

    def status(self, run_id: str) -> str:
        return self.owner.journal.run(run_id).status


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    root = tmp_path / "project"
    (root / ".swissarmyhammer").mkdir(parents=True)
    environment = dict(os.environ)
    settings = config.load(str(root), environment)
    with anyio.fail_after(DEADLINE_S):
        async with Owner(str(root), settings, environment, lambda _: None) as owner:
            yield Place(root, owner, Project(str(root), settings, environment))
