"""A project, use cases that stand in for the real ones, a server, and real clients of both eras."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp import Client

from sidecar.mcp_server import streams
from sidecar.mcp_server.calls import Site
from sidecar.mcp_server.server import McpServer, serving
from tests.kit.mcp_client import over_socket

if TYPE_CHECKING:
    from tests.integration.mcp_server.programs.stand_in import StandIn

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
        async with Client(over_socket(str(self.path)), mode=mode, **more) as client:
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
        serving(Site(service, str(root)), heartbeat_s=0.3, catalog_poll_s=0.1) as server,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(streams.listen, str(path), server.serve)
        yield Served(service, server, path, root)
        tasks.cancel_scope.cancel()


@pytest.fixture(params=["legacy", "2026-07-28"])
def era(request: pytest.FixtureRequest) -> str:
    """The handshake era and the stateless one."""
    return str(request.param)


@pytest.fixture
def stdio_command(root: Path) -> list[str]:
    return [sys.executable, str(STAND_IN), str(root)]
