"""The handlers of the steps that have an effect, one for each type of step."""

from sidecar.engine.steps import agent, command, mcp_call, user_input, wait
from sidecar.engine.steps.context import Handler
from sidecar.model.steps import (
    AgentShellCommand,
    AgentStep,
    ApplyHints,
    McpCall,
    ShellCommand,
    StepBase,
    UserInput,
    Wait,
)

HANDLERS: dict[type[StepBase], Handler] = {
    ShellCommand: command.run_command,
    AgentShellCommand: command.run_agent_command,
    AgentStep: agent.run_agent,
    ApplyHints: agent.run_apply_hints,
    McpCall: mcp_call.run,
    UserInput: user_input.run,
    Wait: wait.run,
}
