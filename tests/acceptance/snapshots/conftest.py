"""What a user or a program sees of sidecar, compared with files in this directory.

Nothing of `sidecar` is imported here: the tests use the command line, files, and MCP over the pipes of `sidecar serve`.
With SIDECAR_TEST_WRITE_SNAPSHOTS=1 in the environment the files are written instead; review the difference.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit import SIDECAR, Forked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
DEADLINE_S = 120
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "snapshots", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Project:
    """An empty project with a home directory of its own, and the command line in it."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "project"
        self.state = self.root / ".swissarmyhammer"
        (self.state / "workflows").mkdir(parents=True)
        (self.state / "agents").mkdir()
        (directory / "home").mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SIDECAR_", "XDG_"))}
        self.environment = {**kept, "HOME": str(directory / "home"), "COLUMNS": "100"}
        self.environment |= {"SIDECAR_DEFAULT_AGENT": "command", "SIDECAR_KILL_AFTER_S": "0.3"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return Forked([SIDECAR, *arguments], self.root, self.environment, **streams)

    def run(self, *arguments: str, code: int = 0) -> str:
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code, (arguments, process.returncode, out, err)
        return out

    @contextmanager
    def serve(self, *, handshake: bool = True) -> Iterator[Client]:
        """`sidecar serve`, and a client of one of the two protocol eras."""
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with Forked([SIDECAR, "serve"], self.root, self.environment, **streams) as process:
            client = Client(process, handshake=handshake)
            yield client
            client.close()


class Client:
    """MCP, one request after the other."""

    def __init__(self, process: subprocess.Popen[bytes], *, handshake: bool) -> None:
        self._process = process
        self._number = 0
        self._handshake = handshake
        if handshake:
            about = {"name": "snapshots", "version": "1"}
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about}
            self.request("initialize", hello)
            self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        if not self._handshake:
            params = {**params, "_meta": ENVELOPE}
        self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == self._number:
                assert "result" in message, message
                return message["result"]  # type: ignore[no-any-return]
        raise AssertionError("the server went away before it answered")

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured result of a tool."""
        result = self.request("tools/call", {"name": tool, "arguments": arguments})
        assert not result.get("isError"), (tool, arguments, result)
        return result["structuredContent"]  # type: ignore[no-any-return]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=DEADLINE_S)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("snapshots"))


@pytest.fixture(scope="module")
def client(project: Project) -> Iterator[Client]:
    with project.serve() as client:
        yield client


@pytest.fixture
def same_as_snapshot() -> Callable[[str, str], None]:
    """Compares a text with the file of that name."""

    def compare(name: str, text: str) -> None:
        path = HERE / name
        if os.environ.get("SIDECAR_TEST_WRITE_SNAPSHOTS"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{name} is missing; SIDECAR_TEST_WRITE_SNAPSHOTS=1 writes it"
        assert text == path.read_text()

    return compare
