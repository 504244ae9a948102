"""A project with workflows of its own, and the installed command in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import yaml

from sidecar.store.db import open_database
from sidecar.store.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sidecar.store.journal import Event, Run

SIDECAR = str(Path(sys.executable).with_name("sidecar"))
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


class Flows:
    """The project; all that is started in it carries a tag."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / ".swissarmyhammer"
        self.tag = uuid.uuid4().hex
        self.environment = {**os.environ, "TEST_TAG": self.tag, "SIDECAR_KILL_AFTER_S": "0.5"}
        for name in ("workflows", "agents"):
            (self.state / name).mkdir(parents=True)

    def workflow(self, name: str, *steps: dict[str, Any], **definition: Any) -> None:
        content = {"description": "", **definition, **({"steps": list(steps)} if steps else {})}
        (self.state / "workflows" / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))

    def agent(self, name: str, script: str) -> None:
        content = {"adapter": "command", "command": ["sh", "-c", script], "prompt_via": "stdin", "description": ""}
        (self.state / "agents" / f"{name}.yaml").write_text(yaml.safe_dump(content))

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([SIDECAR, *arguments], cwd=self.root, env=self.environment, **{**pipes, **options})

    def start_into(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """With its output in a file, which can be looked at without waiting."""
        with (self.root / name).open("w") as file:
            return self.start(*arguments, stdout=file)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        return self.finished(self.start(*arguments))

    def json(self, *arguments: str, code: int = 0) -> Any:
        found, out, err = self.run(*arguments)
        assert found == code, (out, err)
        return json.loads(out)

    def touch(self, name: str) -> None:
        (self.root / name).touch()

    def wait_for(self, name: str) -> None:
        self.until((self.root / name).exists)

    def lines(self, name: str) -> list[str]:
        return (self.root / name).read_text().splitlines()

    def tagged(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self.tag in _environ(process).get("TEST_TAG", "")]

    @staticmethod
    def until(condition: Callable[[], object], within_s: float = 60) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "it never came true"
            time.sleep(0.01)

    @staticmethod
    def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    # --- what the journal has

    def runs(self) -> list[Run]:
        with open_database(str(self.root)) as database:
            return Journal(database).runs()

    def events(self, run_id: str) -> list[Event]:
        with open_database(str(self.root)) as database:
            return Journal(database).events(run_id)

    def directory(self, run_id: str) -> Path:
        return self.state / "runs" / run_id


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


@pytest.fixture
def flows(tmp_path: Path) -> Iterator[Flows]:
    flows = Flows(tmp_path)
    flows.workflow("counting", **COUNTING)
    yield flows
    left = flows.tagged()
    for process in left:
        process.kill()
    assert left == [], "processes were left behind"
