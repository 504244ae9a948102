"""A project, use cases that stand in for the real ones, a server, and real clients of both eras."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp import Client
from mcp.shared.message import SessionMessage
from mcp.types.jsonrpc import jsonrpc_message_adapter

from sidecar.mcp_server import transport_unix
from sidecar.mcp_server.server import McpServer, serving
from sidecar.mcp_server.tool import Site

if TYPE_CHECKING:
    from tests.integration.mcp_server.programs.stand_in import StandIn

DEADLINE_S = 20
STAND_IN = Path(__file__).parent / "programs" / "stand_in.py"
WORKFLOW = """\
name: build
description: Builds it.
version: "1"
inputs:
  target: {type: string, required: false, description: What to build.}
steps:
  - {id: first, type: user_message, message: one}
  - {id: second, type: user_message, message: two}
"""
PROMPT = """\
---
title: Greeting
description: Greets somebody.
parameters:
  - {name: who, description: Whom to greet, type: string}
  - {name: times, type: integer, required: false, default: 1}
  - {name: tone, type: string, required: false, default: warm, choices: [warm, cold]}
  - {name: workflow, type: string, required: false, default: build}
---
Greet {{ who }} {{ times }} times, {{ tone }}, about {{ workflow }}.
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with a workflow and a prompt."""
    own = tmp_path / "project" / ".swissarmyhammer"
    (own / "workflows").mkdir(parents=True)
    (own / "prompts").mkdir()
    (own / "workflows" / "build.yaml").write_text(WORKFLOW)
    (own / "prompts" / "greet.md").write_text(PROMPT)
    return own.parent


@dataclass
class Served:
    """A server on a socket, and what it serves."""

    service: StandIn
    server: McpServer
    path: Path
    root: Path

    @asynccontextmanager
    async def client(self, mode: str, **more: Any) -> AsyncIterator[Client]:
        async with Client(over_socket(self.path), mode=mode, **more) as client:
            yield client


@pytest.fixture
async def served(root: Path) -> AsyncIterator[Served]:
    spec = importlib.util.spec_from_file_location("sidecar_stand_in", STAND_IN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = root / "mcp.sock"
    async with (
        module.standing_in(root) as service,
        serving(Site(service, str(root)), heartbeat_s=0.3, look_every_s=0.1) as server,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(transport_unix.listen, str(path), server.serve)
        yield Served(service, server, path, root)
        tasks.cancel_scope.cancel()


@pytest.fixture(params=["legacy", "2026-07-28"])
def era(request: pytest.FixtureRequest) -> str:
    """The handshake era and the stateless one."""
    return str(request.param)


@pytest.fixture
def stdio_command(root: Path) -> list[str]:
    return [sys.executable, str(STAND_IN), str(root)]


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Waits until something is true."""

    async def wait(condition: Callable[[], bool]) -> None:
        with anyio.fail_after(DEADLINE_S):
            while not condition():  # noqa: ASYNC110 - anything may be the condition
                await anyio.sleep(0.01)

    return wait


def over_socket(path: Path) -> AbstractAsyncContextManager[Any]:
    """The client's side of the socket, written apart from the server's."""

    @asynccontextmanager
    async def transport() -> AsyncIterator[Any]:
        to_client, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, from_client = anyio.create_memory_object_stream[SessionMessage](0)
        async with await anyio.connect_unix(path) as stream, anyio.create_task_group() as tasks:

            async def read() -> None:
                rest = b""
                async with to_client:
                    with suppress(anyio.BrokenResourceError):  # the client has left, and the server goes on talking
                        async for data in stream:
                            *lines, rest = (rest + data).split(b"\n")
                            for line in lines:
                                await to_client.send(SessionMessage(jsonrpc_message_adapter.validate_json(line)))

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
