"""A project with workflows of its own, in which nothing may be left running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import Project

# Three iterations, each noted in `ran`. Each waits for the file `go`.
COUNTING = {
    "description": "Counts to three.",
    "state_schema": {"raw": {"n": "number"}},
    "default_state": {"raw": {"n": 0}},
    "steps": [
        {
            "id": "loop",
            "type": "while",
            "condition": "{{ n < 3 }}",
            "body": [
                {
                    "id": "work",
                    "type": "shell_command",
                    "command": "echo {{ n }} >> ran; touch at-{{ n }}; until [ -e go ]; do sleep 0.02; done",
                },
                {"id": "count", "type": "state_update", "path": "raw.n", "operation": "increment"},
            ],
        }
    ],
}


@pytest.fixture
def flows(tmp_path: Path) -> Iterator[Project]:
    flows = Project(tmp_path, SIDECAR_KILL_AFTER_S="0.5")
    flows.workflow("counting", **COUNTING)
    with flows.alone():
        yield flows
