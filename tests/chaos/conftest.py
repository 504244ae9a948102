"""For tests of runs: a program that starts them, each in a process of its own, and kills it where it is told to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"


class _Starter:
    """One such program; it serves one request at a time."""

    def __init__(self, *around: str) -> None:
        """`around`: a command that is given the program and starts it."""
        command = [*around, sys.executable, str(PROGRAMS / "owner.py")]
        environment = {**os.environ, "EFFECT": str(PROGRAMS / "effect.sh")}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, root: Path, **request: Any) -> dict[str, Any]:
        """A start or a resume: what its process told, when nothing of it lives any more."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"root": str(root), **request}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the program that starts runs is gone"
        answer: dict[str, Any] = json.loads(line)
        assert "bug" not in answer, answer["bug"]
        assert answer["left"] == [], "it left processes behind"
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def starter() -> Iterator[Callable[..., Callable[..., dict[str, Any]]]]:
    """Makes such programs; each of them is then called with a project and a request."""
    with ExitStack() as started:

        def make(*around: str) -> _Starter:
            made = _Starter(*around)
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
def project() -> Callable[[Path], Path]:
    """Makes a project with an agent whose every execution can be counted from outside."""

    def make(place: Path) -> Path:
        root = Path(tempfile.mkdtemp(dir=place))
        agents = root / ".swissarmyhammer" / "agents"
        agents.mkdir(parents=True)
        command = json.dumps(["sh", str(PROGRAMS / "effect.sh")])
        (agents / "scribe.yaml").write_text(f"adapter: command\ncommand: {command}\n", encoding="utf-8")
        return root

    return make
