"""Byte streams over descriptors, without threads and without a change of their mode.

A descriptor may be shared, as a terminal is with the shell: it stays in blocking mode, and is asked first whether it
is ready. anyio's own socket streams report an error to the loop when they are cancelled just as the peer closes.
"""

from __future__ import annotations

import os
import select
import socket
import stat
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
from anyio.abc import ByteReceiveStream, ByteSendStream

_READ_BYTES = 65536


class StandardInput(ByteReceiveStream):
    """Bytes from a descriptor. Whoever opened it closes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def receive(self, max_bytes: int = _READ_BYTES) -> bytes:
        """The next bytes; EndOfStream at the end."""
        await _ready(self._descriptor, select.POLLIN, anyio.wait_readable)
        data = os.read(self._descriptor, max_bytes)
        if not data:
            raise anyio.EndOfStream
        return data

    async def aclose(self) -> None:
        """Nothing is to be given back."""


class Output(ByteSendStream):
    """Bytes to a descriptor (`connected`: to that socket), as many at a time as it takes without blocking the loop."""

    def __init__(self, descriptor: int, connected: socket.socket | None = None) -> None:
        self._descriptor = descriptor
        self._socket = connected
        self._opened: socket.socket | None = None
        if connected is None and stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            self._socket = self._opened = socket.socket(fileno=os.dup(descriptor))

    async def send(self, item: bytes) -> None:
        """All of it."""
        left = memoryview(item)
        while left:
            await _ready(self._descriptor, select.POLLOUT, anyio.wait_writable)
            try:
                left = left[self._write(left) :]
            except BlockingIOError:
                continue

    def is_gone(self) -> bool:
        """Whether nobody can read any more what is written here."""
        poll = select.poll()
        poll.register(self._descriptor, 0)  # errors and hang-ups are told unasked
        return any(told & (select.POLLERR | select.POLLHUP) for _, told in poll.poll(0))

    def _write(self, data: memoryview) -> int:
        if self._socket is not None:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        # A pipe that is ready takes this many bytes, and perhaps not one more.
        return os.write(self._descriptor, data[: select.PIPE_BUF])

    async def aclose(self) -> None:
        """Give back what was opened here."""
        if self._opened is not None:
            self._opened.close()


async def _ready(descriptor: int, event: int, wait: Callable[[int], Awaitable[None]]) -> None:
    """Wait until the descriptor is ready. Asking first is cheaper than the loop's selector, and usually enough."""
    poll = select.poll()
    poll.register(descriptor, event)
    # A file is always ready: only here, for the loop's selector does not take it.
    if poll.poll(0):
        await anyio.lowlevel.checkpoint()
    else:
        await wait(descriptor)
