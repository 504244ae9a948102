"""`sidecar mcp install`: tell an MCP client about this sidecar, after showing what that changes."""

from __future__ import annotations

import difflib
import os
import shutil
import sys
from typing import TYPE_CHECKING

from sidecar import layout
from sidecar.cli.options import parser
from sidecar.errors import ConfigError

if TYPE_CHECKING:
    from sidecar.cli.file_change import FileChange

OK = 0
_SHOWN_LINES = 20


def main(arguments: list[str], project: str | None) -> int:
    """There is one thing to do here: install."""
    options = parser("mcp").parse_args(arguments)
    from sidecar.cli.file_change import FileChange  # noqa: PLC0415 - only for those who install
    from sidecar.service import clients, workflow_command  # noqa: PLC0415

    root = layout.find_root(project, os.environ)
    person = clients.Person(os.path.expanduser("~"), os.environ, sys.platform)
    program = _program(user=options.user)
    wanted = [clients.configuration(options.client, root, person, program, user=options.user)]
    command = clients.command_file(options.client, root, person, user=options.user)
    if command is not None:
        wanted.append(clients.Change(command, workflow_command.edited))
    try:
        # All of it is worked out before any is written: a file that cannot be edited leaves the others alone, too.
        changes = [FileChange.of(one.path, one.edited) for one in wanted]
    except ConfigError:
        if options.print:
            print(clients.text_of(options.client, program, user=options.user), end="")
        raise
    for change in changes:
        print("\n".join(_shown(change, whole=options.print)))
    if options.print:
        return OK
    for change in changes:
        backup = change.write()
        if backup is not None:
            print(f"what was there before is in {backup}")
    if command is not None and workflow_command.MARK not in changes[-1].after:
        print(f"{command} is somebody else's command /workflow; take it away to get the sidecar's")
    client = clients.CLIENTS[options.client]
    print(f"\n{client.user_note if options.user else client.project_note}")
    return OK


def _program(*, user: bool) -> list[str]:
    """What starts this very sidecar. A project's file is for others, too, who have it elsewhere on their PATH."""
    script = os.path.join(os.path.dirname(sys.executable), "sidecar")
    if not os.path.exists(script):
        return [sys.executable, "-P", "-m", "sidecar"]
    found = shutil.which("sidecar")
    if found is None or not os.path.samefile(found, script):
        return [script]
    return [os.path.abspath(found) if user else "sidecar"]


def _shown(change: FileChange, *, whole: bool) -> list[str]:
    """What becomes of a file: all of a new one, or the lines that differ."""
    if change.before == change.after:
        return [f"{change.path}: stays as it is"]
    if change.before is None:
        lines, what = change.after.splitlines(), "new"
    else:
        found = difflib.unified_diff(change.before.splitlines(), change.after.splitlines(), lineterm="", n=2)
        lines, what = list(found)[2:], "changed"
    more = len(lines) - _SHOWN_LINES
    shown = lines if whole or more <= 1 else [*lines[:_SHOWN_LINES], f"… and {more} more lines; --print shows them"]
    return [f"{change.path}: {what}", *(f"    {line}".rstrip() for line in shown)]
