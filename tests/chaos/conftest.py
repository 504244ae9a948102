"""For tests of runs: a program that starts the command, each time in a process of its own, and kills it on request."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"


class Starter:
    """One such program; it serves one request at a time."""

    def __init__(self, *around: str) -> None:
        """`around`: a command that is given the program and starts it."""
        command = [*around, sys.executable, str(PROGRAMS / "owner.py")]
        environment = {**os.environ, "EFFECT": str(PROGRAMS / "effect.sh")}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, root: Path, run_id: str | None = None, workflow: str = "", **request: Any) -> dict[str, Any]:
        """`flow run`, or `resume` where a run is given: what it printed, when nothing of it lives any more."""
        words = ["resume", run_id] if run_id else ["flow", "run", workflow]
        answer = self.ask(root=str(root), arguments=[*words, "--json"], **request)
        assert "bug" not in answer, answer["bug"]
        assert answer["left"] == [], "it left processes behind"
        if answer["out"]:
            return {**answer, **json.loads(answer["out"])}
        return (
            {**answer, "error": answer["err"].removeprefix("sidecar: ").removesuffix("\n")} if answer["err"] else answer
        )

    def shell(self, script: str) -> None:
        """Done where the program is: what it mounted, no other process sees."""
        self.ask(shell=script)

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the program that starts runs is gone"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def starter() -> Iterator[Callable[..., Starter]]:
    """Makes such programs; each of them is then called with a project and a request."""
    with ExitStack() as started:

        def make(*around: str) -> Starter:
            made = Starter(*around)
            started.callback(made.close)
            return made

        yield make


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """In memory where there is such a place: a killed process needs no disk, and hundreds of runs wait for it long."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="sidecar-chaos-", dir=memory) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def project() -> Callable[..., Path]:
    """Makes a project with an agent whose every execution can be counted from outside, and these workflows."""

    def make(place: Path, *workflows: Path) -> Path:
        root = Path(tempfile.mkdtemp(dir=place))
        agents = root / ".swissarmyhammer" / "agents"
        agents.mkdir(parents=True)
        agents.with_name("workflows").mkdir()
        for workflow in workflows:
            shutil.copy(workflow, agents.with_name("workflows"))
        command = json.dumps(["sh", str(PROGRAMS / "effect.sh")])
        (agents / "scribe.yaml").write_text(f"adapter: command\ncommand: {command}\n", encoding="utf-8")
        return root

    return make
