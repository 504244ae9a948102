"""A journal that cannot be used is reported in one line, on the command line and by MCP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from mcp.types import TextContent

if TYPE_CHECKING:
    from tests.kit import Project


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("command", [("flow", "run", "counting"), ("status",), ("serve",)])
def test_a_command_prints_one_line(flows: Project, command: tuple[str, ...]) -> None:
    (flows.state / "sidecar.db").write_bytes(b"no database" * 1000)
    code, _, printed = flows.run(*command)
    (line,) = printed.splitlines()
    assert code == 2
    assert line.startswith("sidecar: ")
    assert "sidecar.db" in line


@pytest.mark.anyio
async def test_a_tool_fails_with_one_line_and_the_server_goes_on(flows: Project) -> None:
    flows.touch("go")
    async with flows.client("2026-07-28") as client:
        await client.call_tool("flow", {"flow_name": "counting"})
        for name in ("sidecar.db", "sidecar.db-wal", "sidecar.db-shm"):
            (flows.state / name).unlink(missing_ok=True)
        failed = await client.call_tool("flow", {"flow_name": "counting"})
        listed = await client.list_tools()
    (content,) = failed.content
    assert failed.is_error
    assert isinstance(content, TextContent)
    assert "sidecar.db" in content.text
    assert len(content.text.splitlines()) == 1
    assert listed.tools
