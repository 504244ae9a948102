"""`shell_command`: a command that the run's owner executes itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.engine.work.command import Command

if TYPE_CHECKING:
    from sidecar.engine.context import Context
    from sidecar.model.steps import ShellCommand


async def run(step: ShellCommand, context: Context) -> Any:
    """What the command says on stdout, in the step's format."""
    return await Command.of(step, context).run(context)
