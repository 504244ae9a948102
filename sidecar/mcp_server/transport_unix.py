"""A unix socket whose connections carry the bytes of the stdio transport."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream

from sidecar.agents.bound_socket import bound
from sidecar.mcp_server.descriptors import Input, Output

if TYPE_CHECKING:
    import socket

    from anyio.abc import TaskStatus

logger = logging.getLogger(__name__)
Serve = Callable[[ByteReceiveStream, ByteSendStream], Awaitable[None]]
_MOST_CONNECTIONS = 512
_PATIENCE_S = 0.1


async def listen(path: str, serve: Serve, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Serve everybody who connects, until cancelled. The caller holds the lock of whatever the socket belongs to."""
    with bound(path) as listening:
        task_status.started()
        await accept(listening, serve)


async def accept(listening: socket.socket, serve: Serve) -> None:
    """Serve each connection in a task of its own, until cancelled. One that fails is nobody else's affair."""
    listening.setblocking(False)
    room = anyio.Semaphore(_MOST_CONNECTIONS)

    async def one(connected: socket.socket) -> None:
        with connected:
            try:
                await serve(Input(connected.fileno()), Output(connected.fileno(), connected))
            except Exception:
                logger.exception("an MCP connection failed")
            finally:
                room.release()

    async with anyio.create_task_group() as tasks:
        while True:
            await room.acquire()
            tasks.start_soon(one, await _next(listening))


async def _next(listening: socket.socket) -> socket.socket:
    while True:
        await anyio.wait_readable(listening)
        try:
            connected, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            continue
        except OSError as error:
            # No descriptor is left, most likely. Whoever waits at the door gets in when somebody leaves.
            logger.warning("cannot accept an MCP connection: %s", error.strerror)
            await anyio.sleep(_PATIENCE_S)
            continue
        connected.setblocking(True)
        return connected
