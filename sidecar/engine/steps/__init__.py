"""How steps are done: one module for each type that reaches out into the world, and the table of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.engine.steps import agent, agent_shell_command, apply_hints, mcp_call, shell_command, user_input, wait
from sidecar.model.steps import AgentShellCommand, AgentStep, ApplyHints, McpCall, ShellCommand, UserInput, Wait

if TYPE_CHECKING:
    from sidecar.engine.context import Handlers

HANDLERS: Handlers = {
    ShellCommand: shell_command.run,
    AgentShellCommand: agent_shell_command.run,
    AgentStep: agent.run,
    ApplyHints: apply_hints.run,
    McpCall: mcp_call.run,
    UserInput: user_input.run,
    Wait: wait.run,
}
