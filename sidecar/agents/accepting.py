"""The next connection at a listening socket. Out of descriptors, a connection is ended, and never who listens."""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    Serve = Callable[[socket.socket], Awaitable[None]]

logger = logging.getLogger(__name__)
_MOST = 512
_AGAIN_S = 0.1
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class Accepting:
    """Takes connections, one at a time. `what` they are, for the log."""

    def __init__(self, listening: socket.socket, what: str) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._what = what
        # Given up for a moment where there is no other: who waits at the door is let in with it and sent away, and
        # does not wait for ever.
        self._spare: int | None = _spare()

    async def next(self) -> socket.socket:
        """The next connection, blocking as sockets are by default."""
        while True:
            await anyio.wait_readable(self._listening)
            try:
                connected, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                continue
            except OSError as error:
                logger.warning("cannot accept a connection (%s): %s", self._what, error.strerror)
                if error.errno not in _NO_DESCRIPTOR or not self._send_away():
                    await anyio.sleep(_AGAIN_S)
                continue
            connected.setblocking(True)
            return connected

    def close(self) -> None:
        """Give back what is held here; whoever opened the socket closes it."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _send_away(self) -> bool:
        if self._spare is None:
            self._spare = _spare()
            return self._spare is not None
        os.close(self._spare)
        try:
            self._listening.accept()[0].close()
        except OSError:
            return False
        finally:
            self._spare = _spare()
        return True


async def serve_each(listening: socket.socket, serve: Serve, what: str) -> None:
    """Serve each connection in a task of its own, until cancelled. One that fails is nobody else's affair."""
    room = anyio.Semaphore(_MOST)

    async def one(connected: socket.socket) -> None:
        with connected:
            try:
                await serve(connected)
            except Exception:
                logger.exception("a connection failed (%s)", what)
            finally:
                room.release()

    accepting = Accepting(listening, what)
    try:
        async with anyio.create_task_group() as tasks:
            while True:
                await room.acquire()
                tasks.start_soon(one, await accepting.next())
    finally:
        accepting.close()


def _spare() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
