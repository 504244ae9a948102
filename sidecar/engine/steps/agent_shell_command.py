"""`agent_shell_command`: a command on the person's terminal where there is one, else like any other."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sidecar.engine.work.command import Command, exit_text
from sidecar.engine.work.output import nothing
from sidecar.errors import StepFailed

if TYPE_CHECKING:
    from sidecar.engine.context import Context
    from sidecar.model.steps import AgentShellCommand


async def run(step: AgentShellCommand, context: Context) -> Any:
    """Run the command.

    On a terminal its exit code alone decides, and the output went to the person: the result is what `output_format`
    has for nothing ("", [], {}; null for JSON). Elsewhere it is as with `shell_command`.
    """
    command = Command.of(step, context)
    person = context.around.person
    code = await person.lend_terminal(partial(command.run_on, context)) if person is not None else None
    if code is None:
        return await command.run(context)
    if code != 0:
        raise StepFailed(exit_text(code), kind="command", exit_code=code)
    return nothing(step.output_format)
