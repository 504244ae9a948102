"""One project and one daemon for a whole module, and clients of both eras by both ways that lead to it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psutil
import pytest
from mcp import Client
from mcp.types import ProgressNotification

from tests.kit import DEADLINE_S, Project
from tests.kit.mcp_client import ERAS, SocketClient, at_socket, over_socket


class House:
    """A project with a daemon, as its clients find it."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.root = project.root
        self.state = project.state
        # Deaf processes are killed soon: nobody here waits for manners.
        (self.state / "config.yaml").write_text("kill_after_s: 0.3\n")
        self.daemon = project.daemon()

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.daemon.process.pid)

    @asynccontextmanager
    async def client(self, era: str, way: str = "socket", **more: Any) -> AsyncIterator[Client]:
        """A client that starts `sidecar serve` (`stdio`), or one that goes to the daemon's socket."""
        transport = self.project.served() if way == "stdio" else over_socket(str(self.state / "sidecar.sock"))
        with anyio.fail_after(DEADLINE_S):
            async with Client(transport, mode=era, **more) as client:
                yield client

    @contextmanager
    def connected(self) -> Iterator[SocketClient]:
        """A client that does what no library would."""
        with at_socket(self.state / "sidecar.sock") as client:
            yield client

    def abort_by_file(self, content: bytes, run_id: str | None = None) -> None:
        """Put an `.abort` there, whole: what is made of one that is only half written is not the matter here."""
        directory = self.state / "runs" / run_id if run_id else self.state
        (directory / "aside").write_bytes(content)
        (directory / "aside").rename(directory / ".abort")

    async def until(self, what: Callable[[], Any]) -> Any:
        """As the project's, in a thread: what is looked at may start the command, and the clients go on meanwhile."""
        return await anyio.to_thread.run_sync(self.project.until, what)


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


@contextmanager
def _built(place: Path) -> Iterator[House]:
    project = Project(place / "project", HOME=str(place))
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


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    """The handshake era and the stateless one."""
    return str(request.param)


@pytest.fixture(params=["stdio", "socket"])
def way(request: pytest.FixtureRequest) -> str:
    """How a client comes to the daemon."""
    return str(request.param)


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name that no other test of the module uses."""
    return "t" + "".join(c if c.isalnum() else "-" for c in request.node.name)[-60:] + str(os.getpid())
