"""How steps are done: one module for each type that reaches out into the world, and the table of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.engine.steps import agent, command, mcp_call, user_input, wait
from sidecar.model.steps import AgentShellCommand, AgentStep, ApplyHints, McpCall, ShellCommand, UserInput, Wait

if TYPE_CHECKING:
    from sidecar.engine.steps.context import Handlers

HANDLERS: Handlers = {
    ShellCommand: command.run_command,
    AgentShellCommand: command.run_agent_command,
    AgentStep: agent.run_agent,
    ApplyHints: agent.run_apply_hints,
    McpCall: mcp_call.run,
    UserInput: user_input.run,
    Wait: wait.run,
}
