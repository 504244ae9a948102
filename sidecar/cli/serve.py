"""`sidecar serve`: MCP on standard input and output.

Where the daemon or the agent's own run serves already, this carries bytes to it and back: a client waits about a second
for its server, and the SDK alone takes that to import. Standard library only, and little of it.
"""

from __future__ import annotations

import os
import select
import socket
import sys

from sidecar import layout, sockets
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
        connected = reach(_socket(root, environment))
        if connected is not None:
            return pump(connected)
        from sidecar.mcp_server import endpoints  # noqa: PLC0415 - all that the pump must not pay for

        return endpoints.serve_standard_streams(root, environment)
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
    """The server's socket. For an agent it is its own run's only: elsewhere `abort` without a run means the project."""
    run_id = environment.get("SIDECAR_RUN_ID")
    return layout.run_socket(root, os.path.basename(run_id)) if run_id else layout.daemon_socket(root)


def _failed(error: Exception) -> int:
    print(f"sidecar: {error}", file=sys.stderr)
    return FAILED


# --- the byte pump: standard input and output to the socket of the server


_CHUNK = 65536
_GONE = select.POLLERR | select.POLLHUP  # always reported
_INCOMING = select.POLLIN | select.POLLHUP | select.POLLERR


def reach(path: str) -> socket.socket | None:
    """A connection to the server at a path; None where none listens there."""
    try:
        return sockets.connect(path)
    except OSError:
        return None


def pump(connected: socket.socket, source: int = 0, sink: int = 1) -> int:
    """Carry bytes both ways until either side is done; the exit code.

    At the client's end of file the server's input ends too: it sends the answers it owes and closes, unless the client
    does not read them any more. Where the server goes away first, that is an error: the client has to know it.
    """
    with connected:
        return _Pump(connected, source, sink).run()


class _Pump:
    """Neither direction waits for the other: a side that does not read may still send."""

    __slots__ = ("_connected", "_down", "_ended", "_server", "_sink", "_source", "_up")

    def __init__(self, connected: socket.socket, source: int, sink: int) -> None:
        self._connected, self._server = connected, connected.fileno()
        self._source, self._sink = source, sink
        self._up, self._down = b"", b""  # read from one side, and not yet taken by the other
        self._ended = False

    def run(self) -> int:
        while True:
            ready = self._wait()
            if self._ended and ready.get(self._sink, 0) & _GONE:
                return 0
            code = self._downwards(ready)
            if code is None:
                code = self._upwards(ready)
            if code is not None:
                return code

    def _wait(self) -> dict[int, int]:
        poll = select.poll()
        if self._down or self._ended:
            poll.register(self._sink, select.POLLOUT if self._down else 0)
        if self._up or not self._down:
            poll.register(self._server, (select.POLLOUT if self._up else 0) | (0 if self._down else select.POLLIN))
        if not self._up and not self._ended:
            poll.register(self._source, select.POLLIN)
        return dict(poll.poll())

    def _downwards(self, ready: dict[int, int]) -> int | None:
        try:
            if self._down and self._sink in ready:
                # A pipe that is ready takes this many bytes, and perhaps not one more.
                self._down = self._down[os.write(self._sink, self._down[: select.PIPE_BUF]) :]
            elif not self._down and ready.get(self._server, 0) & _INCOMING:
                self._down = self._connected.recv(_CHUNK)
                if not self._down:
                    return 0 if self._ended else 1
        except ConnectionResetError:
            return 1
        except BrokenPipeError:  # the client does not read any more: it is gone
            return 0
        return None

    def _upwards(self, ready: dict[int, int]) -> int | None:
        try:
            if not self._up and not self._ended and self._source in ready:
                self._up = os.read(self._source, _CHUNK)
                if not self._up:
                    self._ended = True
                    self._connected.shutdown(socket.SHUT_WR)
            if self._up:
                self._up = self._up[self._connected.send(self._up, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            pass
        except OSError:
            return 1
        return None
