"""The byte pump of `sidecar serve`: standard input and output to the socket of whoever is really the server.

Standard library only, and little of it: clients give a server about a second to answer, and the SDK alone takes that.
"""

from __future__ import annotations

import os
import select
import socket

from sidecar import sockets

_CHUNK = 65536
_GONE = select.POLLERR | select.POLLHUP  # told unasked
_INCOMING = select.POLLIN | select.POLLHUP | select.POLLERR


def reach(path: str) -> socket.socket | None:
    """A connection to the server at a path; None where nobody listens there."""
    try:
        return sockets.connect(path)
    except OSError:
        return None


def pump(connected: socket.socket, source: int = 0, sink: int = 1) -> int:
    """Carry bytes both ways until either side is done; the exit code.

    At the client's end of file, the server hears it, answers what it was asked, and closes; unless nobody reads the
    answers any more. Where the server goes away first, that is an error: the client has to know that nobody is there.
    """
    with connected:
        return _Pump(connected, source, sink).run()


class _Pump:
    """Neither direction waits for the other: who is blocked in one may go on in the other."""

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
