"""One project and one daemon for a whole module, and clients of both eras by both ways that lead to it."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import psutil
import pytest
import yaml
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.message import SessionMessage
from mcp.types import ProgressNotification
from mcp.types.jsonrpc import jsonrpc_message_adapter

from sidecar.agents import socket_path

if TYPE_CHECKING:
    from types import ModuleType

    from tests.acceptance.owners.conftest import Daemon, Project

DEADLINE_S = 60.0
OWNERS = Path(__file__).parent.parent / "owners" / "conftest.py"
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "by hand", "version": "1"}}


class House:
    """A project with a daemon, as its clients find it."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.root = project.root
        self.own = project.own
        # Deaf processes are killed soon: nobody here waits for manners.
        (self.own / "config.yaml").write_text("kill_after_s: 0.3\n")
        self.daemon: Daemon = project.daemon()

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.daemon.process.pid)

    def agent(self, name: str, script: str, adapter: str = "command", **more: Any) -> None:
        """An agent that is a shell script."""
        content = {"description": name, "adapter": adapter, "command": ["sh", "-c", script, name], **more}
        (self.own / "agents" / f"{name}.yaml").write_text(yaml.safe_dump(content))

    @asynccontextmanager
    async def client(self, era: str, way: str = "socket", **more: Any) -> AsyncIterator[Client]:
        """A client that starts `sidecar serve` (`stdio`), or one that goes to the daemon's socket."""
        with anyio.fail_after(DEADLINE_S):
            async with Client(self._transport(way), mode=era, **more) as client:
                yield client

    def _transport(self, way: str) -> Any:
        if way == "socket":
            return over_socket(str(self.own / "sidecar.sock"))
        environment = self.project.environment
        arguments = ["-m", "sidecar", "serve"]
        return StdioServerParameters(command=sys.executable, args=arguments, env=environment, cwd=self.root)

    @contextmanager
    def connected(self) -> Iterator[ByHand]:
        """A client that does what no library would."""
        with socket_path.connect(str(self.own / "sidecar.sock")) as connection:
            connection.settimeout(DEADLINE_S)
            with connection.makefile("rb") as lines:
                yield ByHand(connection, lines)

    def abort_by_file(self, content: bytes, run_id: str | None = None) -> None:
        """Put an `.abort` there, whole: what is made of one that is only half written is not the matter here."""
        directory = self.own / "runs" / run_id if run_id else self.own
        (directory / "aside").write_bytes(content)
        (directory / "aside").rename(directory / ".abort")

    async def until(self, what: Callable[[], Any]) -> Any:
        """As the project's, while the loop goes on."""
        return await anyio.to_thread.run_sync(self.project.until, what)


class ByHand:
    """The bytes of the protocol, over a socket."""

    def __init__(self, connection: socket.socket, lines: Iterable[bytes]) -> None:
        self.connection = connection
        self._lines = lines
        self.heard: list[dict[str, Any]] = []

    def hello(self) -> ByHand:
        self.request(0, "initialize", HELLO)
        self.answer(0)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def send(self, *messages: dict[str, Any]) -> None:
        self.connection.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    def request(self, number: int, method: str, params: dict[str, Any]) -> None:
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})

    def call(self, number: int, tool: str, arguments: dict[str, Any], **meta: Any) -> None:
        more = {"_meta": meta} if meta else {}
        self.request(number, "tools/call", {"name": tool, "arguments": arguments, **more})

    def answer(self, number: int | None) -> dict[str, Any]:
        """The answer to one request; what else comes is kept in `heard`."""
        while True:
            message = self.answer_any()
            if message.get("id") == number:
                return message

    def answer_any(self) -> dict[str, Any]:
        """The next answer, whatever to."""
        for line in self._lines:
            message: dict[str, Any] = json.loads(line)
            self.heard.append(message)
            if "method" not in message:
                return message
        raise AssertionError("the server went away before it answered")


class Heard:
    """The progress that a client is told of, as its library hands it over."""

    def __init__(self) -> None:
        self.notes: list[dict[str, Any]] = []

    async def __call__(self, message: Any) -> None:
        if isinstance(message, ProgressNotification):
            self.notes.append(message.params.model_dump(by_alias=True, exclude_none=True))

    def of_kind(self, *kinds: str) -> list[dict[str, Any]]:
        return [note["_meta"] for note in self.notes if note["_meta"]["event"] in kinds]

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Wanted by the library, which asks for progress only if somebody listens to these."""


def over_socket(path: str) -> Any:
    """The transport of a client at a socket, written apart from the server's."""

    @asynccontextmanager
    async def transport() -> AsyncIterator[Any]:
        to_client, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, from_client = anyio.create_memory_object_stream[SessionMessage](0)
        async with await anyio.connect_unix(path) as stream, anyio.create_task_group() as tasks:

            async def read() -> None:
                parts: list[bytes] = []
                async with to_client:
                    with suppress(anyio.BrokenResourceError):  # the client has left, and the server goes on talking
                        async for data in stream:
                            *lines, rest = data.split(b"\n")
                            for line in lines:
                                whole = b"".join([*parts, line])
                                parts = []
                                await to_client.send(SessionMessage(jsonrpc_message_adapter.validate_json(whole)))
                            parts.append(rest)

            async def write() -> None:
                async with from_client:
                    async for item in from_client:
                        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                        await stream.send(line.encode() + b"\n")

            tasks.start_soon(read)
            tasks.start_soon(write)
            yield incoming, outgoing
            tasks.cancel_scope.cancel()

    return transport()


def _owners() -> ModuleType:
    """The project and the daemon that the tests of owners have."""
    spec = importlib.util.spec_from_file_location("sidecar_owners_conftest", OWNERS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _built(place: Path) -> Iterator[House]:
    project: Project = _owners().Project(place / "project")
    # A module's fixture is made before the environment of its tests is.
    kept = {name: value for name, value in project.environment.items() if not name.startswith("SIDECAR_")}
    project.environment = {**kept, "HOME": str(place), "SIDECAR_TEST_PROJECT": str(project.root)}
    try:
        yield House(project)
    finally:
        project.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """The module's own: its tests must not end the daemon."""
    with _built(tmp_path_factory.mktemp("house")) as house:
        yield house


@pytest.fixture
def own_house(tmp_path: Path) -> Iterator[House]:
    """For a test that ends the daemon, or breaks something in it."""
    with _built(tmp_path) as house:
        yield house


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture(params=["legacy", "2026-07-28"])
def era(request: pytest.FixtureRequest) -> str:
    """The handshake era and the stateless one."""
    return str(request.param)


@pytest.fixture(params=["stdio", "socket"])
def way(request: pytest.FixtureRequest) -> str:
    """How a client comes to the daemon."""
    return str(request.param)


@pytest.fixture
def lives() -> Callable[[int], bool]:
    """Whether a process is there and not dead."""

    def look(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return look


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name that no other test of the module uses."""
    return "t" + "".join(c if c.isalnum() else "-" for c in request.node.name)[-60:] + str(os.getpid())
