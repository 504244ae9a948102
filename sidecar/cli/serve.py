"""`sidecar serve`: MCP on standard input and output.

Where somebody serves already, this is a pipe to them: a client waits about a second for its server, and the SDK alone
takes that to import. Standard library only, and little of it.
"""

from __future__ import annotations

import os
import sys

from sidecar import layout
from sidecar.cli import serve_pump
from sidecar.errors import REPORTED, SidecarError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FAILED = 2
_HELP = """\
usage: sidecar serve [--project DIR]

MCP on standard input and output, for clients that start their servers:

  claude mcp add sidecar -- sidecar serve

Where `sidecar daemon` runs for the project, it is the server; else this
process is. Runs that a client starts go on when the client ends. To an agent
of a run, its own run answers.
"""


def main(arguments: list[str], project: str | None, environment: Mapping[str, str] = os.environ) -> int:
    """Serve until the client's end of file; the exit code."""
    try:
        project = _project(arguments, project)
    except SidecarError as error:
        return _failed(error)
    if project == "--help":
        print(_HELP, end="")
        return 0
    try:
        root = layout.find_root(project, environment)
        if layout.foreign(root, environment) is not None:
            from sidecar import config  # noqa: PLC0415 - as below

            config.refuse_foreign(root, environment)
        connected = serve_pump.reach(_socket(root, environment))
        if connected is not None:
            return serve_pump.pump(connected)
        from sidecar.cli import serve_here  # noqa: PLC0415 - all that the pump must not pay for

        return serve_here.main(root, environment)
    except REPORTED as error:
        return _failed(error)


def _project(arguments: list[str], project: str | None) -> str | None:
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in ("-h", "--help"):
            return "--help"
        if word == "--project" and rest:
            project = rest.pop(0)
        elif word.startswith("--project="):
            project = word.partition("=")[2]
        else:
            raise SidecarError(f"serve takes --project DIR and nothing else, not {word!r}")
    return project


def _socket(root: str, environment: Mapping[str, str]) -> str:
    """Who is to answer: an agent's own run, and nobody else for it: `abort` without a run would mean the project."""
    run_id = environment.get("SIDECAR_RUN_ID")
    return layout.run_socket(root, os.path.basename(run_id)) if run_id else layout.daemon_socket(root)


def _failed(error: Exception) -> int:
    print(f"sidecar: {error}", file=sys.stderr)
    return FAILED
