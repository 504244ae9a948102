"""A unix socket whose connections carry the bytes of the stdio transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream

from sidecar.mcp_server.descriptors import Output, StandardInput
from sidecar.sockets import Listener, serve_each

if TYPE_CHECKING:
    import socket

    from anyio.abc import TaskStatus

Serve = Callable[[ByteReceiveStream, ByteSendStream], Awaitable[None]]


async def listen(path: str, serve: Serve, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Serve everybody who connects, until cancelled. The caller holds the lock of whatever the socket belongs to."""
    with Listener(path) as listening:
        task_status.started()
        await accept(listening, serve)


async def accept(listening: socket.socket, serve: Serve) -> None:
    """Serve each connection, until cancelled."""

    async def one(connected: socket.socket) -> None:
        await serve(StandardInput(connected.fileno()), Output(connected.fileno(), connected))

    await serve_each(listening, one, "MCP")
