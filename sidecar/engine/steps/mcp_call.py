"""`mcp_call`: a tool of an MCP server is called, and what it answers is the step's result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.errors import StepFailed

if TYPE_CHECKING:
    from sidecar.engine.steps.context import Context
    from sidecar.model.steps import McpCall


async def run(step: McpCall, context: Context) -> Any:
    """What the tool answers; StepFailed where the tool says that it failed, or there is none, or it takes too long."""
    view = context.view
    tool = view.text(step.mcp.method)
    server = None if step.mcp.server is None else view.text(step.mcp.server)
    arguments = view.value(step.mcp.params)
    timeout_s = view.seconds(step.timeout_s)
    clients = context.services.clients
    if clients is None:
        raise StepFailed("no MCP servers can be called in this run", tool=tool)
    return await clients.call(server, tool, arguments, timeout_s)
