"""`mcp_call`: calls a tool of an MCP server; its answer is the result of the step."""

from __future__ import annotations

from typing import Any

from sidecar.engine.steps.context import Context
from sidecar.errors import StepFailed
from sidecar.model.steps import McpCall


async def run(step: McpCall, context: Context) -> Any:
    """The tool's answer; StepFailed where the tool fails, or there is none, or it takes too long."""
    view = context.view
    tool = view.text(step.mcp.method)
    server = None if step.mcp.server is None else view.text(step.mcp.server)
    arguments = view.value(step.mcp.params)
    timeout_s = view.seconds(step.timeout_s)
    clients = context.services.clients
    if clients is None:
        raise StepFailed("no MCP servers can be called in this run", tool=tool)
    return await clients.call(server, tool, arguments, timeout_s)
