"""MCP's stdio transport over a process of ours: a JSON-RPC message is a line, and only stderr may say anything else."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

    from sidecar.agents.agent import Agent
    from sidecar.agents.stream import Output, Subscription

    Incoming = MemoryObjectSendStream[SessionMessage | Exception]
    Outgoing = MemoryObjectReceiveStream[SessionMessage]

_WAITING_BYTES = 16 << 20  # what may wait to be read before the oldest is lost
_LONGEST_LINE_BYTES = 1 << 20  # a longer line of a process comes cut
_UTF8_BYTES = 4


class Wire:
    """Both directions between a session and a server's process. `lost` is called when nothing more can come."""

    def __init__(self, agent: Agent, lost: Callable[[], None]) -> None:
        self.problem: str | None = None  # what the process said that cannot be taken
        self._agent = agent
        self._lost = lost

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[TransportStreams]:
        """What the SDK's session reads and writes."""
        subscription = self._agent.subscribe(_WAITING_BYTES)
        to_session, incoming = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
        outgoing, from_session = anyio.create_memory_object_stream["SessionMessage"](0)
        with to_session, incoming, outgoing, from_session:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._read, subscription, to_session)
                    tasks.start_soon(self._write, from_session, to_session)
                    try:
                        yield incoming, outgoing
                    finally:
                        tasks.cancel_scope.cancel()
            finally:
                self._agent.unsubscribe(subscription)

    async def _read(self, subscription: Subscription, to_session: Incoming) -> None:
        # The end of what is read is how the session learns that nobody answers any more.
        with to_session:
            try:
                async for output in subscription:
                    for message in self._messages(output):
                        await to_session.send(message)
                    if self.problem is not None:
                        break
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # the session is gone, or stdin is
                pass
        self._lost()

    def _messages(self, output: Output) -> Iterator[SessionMessage]:
        from mcp.shared.message import SessionMessage  # noqa: PLC0415 - it costs a second, and few runs call a server
        from mcp_types import jsonrpc_message_adapter  # noqa: PLC0415

        if output.dropped:
            self.problem = "it said more at once than could be taken in"
            return
        for line in output.lines if output.stream == "stdout" else ():
            try:
                yield SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
            except ValueError:  # a print that went astray, which the log has, or a message that came cut
                if len(line.encode()) > _LONGEST_LINE_BYTES - _UTF8_BYTES:
                    self.problem = f"it sent a message of more than {_LONGEST_LINE_BYTES >> 20} MiB"
                    return

    async def _write(self, from_session: Outgoing, to_session: Incoming) -> None:
        async for message in from_session:
            data = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
            if not self._agent.write_stdin(data):
                to_session.close()
                self._lost()
                return
