"""`sidecar mcp install`: registers sidecar with an MCP client, after showing the change."""

from __future__ import annotations

import difflib
import os
import shutil
import sys
from typing import TYPE_CHECKING

from sidecar import layout
from sidecar.cli.options import parser

if TYPE_CHECKING:
    from sidecar.service.file_change import FileChange

OK = 0
_SHOWN_LINES = 20


def main(arguments: list[str], project: str | None) -> int:
    """Show and write the change."""
    options = parser("mcp").parse_args(arguments)
    from sidecar.service import mcp_clients  # noqa: PLC0415 - only to install

    root = layout.find_root(project, os.environ)
    person = mcp_clients.Person(os.path.expanduser("~"), os.environ, sys.platform)
    # Both changes are made before the first is written: if one is refused, the other file stays as it is, too.
    server = mcp_clients.server_change(options.client, root, person, _program(user=options.user), user=options.user)
    command = mcp_clients.command_change(options.client, root, person, user=options.user)
    changes = [server, command] if command is not None else [server]
    for change in changes:
        print("\n".join(_shown(change, whole=options.print)))
    if options.print:
        return OK
    for change in changes:
        backup = change.write()
        if backup is not None:
            print(f"the former version is in {backup}")
    if command is not None and mcp_clients.COMMAND_MARK not in command.after:
        print(f"{command.path} is another command /workflow; remove it to get the one of sidecar")
    client = mcp_clients.CLIENTS[options.client]
    print(f"\n{client.user_note if options.user else client.project_note}")
    return OK


def _program(*, user: bool) -> list[str]:
    """What starts this installation. A project's file is shared with people who have it elsewhere on their PATH."""
    script = os.path.join(os.path.dirname(sys.executable), "sidecar")
    if not os.path.exists(script):
        return [sys.executable, "-P", "-m", "sidecar"]
    found = shutil.which("sidecar")
    if found is None or not os.path.samefile(found, script):
        return [script]
    return [os.path.abspath(found) if user else "sidecar"]


def _shown(change: FileChange, *, whole: bool) -> list[str]:
    """The change of a file: all of a new one, or the lines that differ."""
    if change.before == change.after:
        return [f"{change.path}: unchanged"]
    if change.before is None:
        lines, what = change.after.splitlines(), "new"
    else:
        found = difflib.unified_diff(change.before.splitlines(), change.after.splitlines(), lineterm="", n=2)
        lines, what = list(found)[2:], "changed"
    more = len(lines) - _SHOWN_LINES
    shown = lines if whole or more <= 1 else [*lines[:_SHOWN_LINES], f"… and {more} more lines; --print shows them"]
    return [f"{change.path}: {what}", *(f"    {line}".rstrip() for line in shown)]
