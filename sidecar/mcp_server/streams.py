"""The stdio transport of MCP: a JSON message a line, over standard input and output or a unix socket.

Descriptors are used without threads and without changing their mode: one may be shared, as a terminal is with the
shell, so it stays in blocking mode and is polled first. anyio's own socket streams report an error to the loop when
they are cancelled just as the peer closes.
"""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
import anyio.lowlevel
from anyio.abc import ByteReceiveStream, ByteSendStream
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp.types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from mcp.types.jsonrpc import jsonrpc_message_adapter
from pydantic import ValidationError

from sidecar.sockets import Listener, serve_each

if TYPE_CHECKING:
    from anyio.abc import TaskStatus
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

LONGEST_LINE = 16 * 1024 * 1024
# Requests of one connection whose answer is not written yet. Beyond this, nothing more is read from it: a client that
# never reads its answers costs no more than these.
MOST_IN_FLIGHT = 64
_READ_BYTES = 65536
_WRITE_BYTES = 256 * 1024
_QUEUE_LENGTH = 64
_FINISH_S = 1.0
_ANSWER_S = 10.0  # for what is in flight at the end of input; a call that waits for a run could take hours
_POLL_S = 0.5
_ENDLESS = "subscriptions/listen"  # answered when the client cancels it
_TOO_LONG = f"a message may have {LONGEST_LINE // 2**20} MiB at most"
_TOO_DEEP = "nested more than 200 levels deep"  # pydantic's limit
_NO_MESSAGE = "not a JSON-RPC message"
_BAD_ID = "the id of a request is a string or an integer"
_LINE_BREAK = b"\n"
Serve = Callable[[ByteReceiveStream, ByteSendStream], Awaitable[None]]


# --- where connections come from


@asynccontextmanager
async def standard_streams() -> AsyncIterator[tuple[DescriptorReader, DescriptorWriter]]:
    """Standard input and output as one connection.

    Inside the block descriptor 0 is empty and descriptor 1 is standard error: what agents, libraries and `print` read
    and write does not get into the protocol.
    """
    sys.stdout.flush()
    protocol_in, protocol_out = os.dup(0), os.dup(1)
    writer = DescriptorWriter(protocol_out)
    try:
        _divert_standard_streams()
        try:
            yield DescriptorReader(protocol_in), writer
        finally:
            # What was printed meanwhile waits in a buffer: it must be gone before descriptor 1 is the protocol again.
            sys.stdout.flush()
            os.dup2(protocol_in, 0)
            os.dup2(protocol_out, 1)
    finally:
        await writer.aclose()
        os.close(protocol_in)
        os.close(protocol_out)


def _divert_standard_streams() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)


async def listen(path: str, serve: Serve, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Serve every connection to a unix socket, until cancelled. The caller holds the lock of the socket's owner."""
    with Listener(path) as listening:
        task_status.started()
        await accept(listening, serve)


async def accept(listening: socket.socket, serve: Serve) -> None:
    """Serve every connection to a socket that listens already, until cancelled."""

    async def serve_one(connected: socket.socket) -> None:
        await serve(DescriptorReader(connected.fileno()), DescriptorWriter(connected.fileno(), connected))

    await serve_each(listening, serve_one, "MCP")


# --- messages


class InvalidMessage(Exception):  # noqa: N818 - the name says it
    """A line that is not a message. It is answered with this error."""

    def __init__(self, code: int, message: str = _NO_MESSAGE, request_id: RequestId | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.request_id = request_id

    def response(self) -> JSONRPCError:
        """The error as a message."""
        return JSONRPCError(jsonrpc="2.0", id=self.request_id, error=ErrorData(code=self.code, message=str(self)))


def parse(line: bytes) -> JSONRPCMessage:
    """The message in a line; InvalidMessage where there is none."""
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError:
        message = _parse_lone_surrogates(line)
    # The SDK takes a request with an invalid id for a notification, which is never answered.
    if isinstance(message, JSONRPCNotification) and b'"id"' in line and "id" in json.loads(line):
        raise InvalidMessage(INVALID_REQUEST, _BAD_ID)
    return message


def _parse_lone_surrogates(line: bytes) -> JSONRPCMessage:
    """A message with lone surrogates, which JavaScript sends and UTF-8 cannot encode: each becomes a question mark."""
    try:
        content = json.loads(line)
        encoded = json.dumps(content, ensure_ascii=False).encode(errors="replace")
    except RecursionError:
        raise InvalidMessage(INVALID_REQUEST, _TOO_DEEP) from None
    except ValueError:
        raise InvalidMessage(PARSE_ERROR) from None
    try:
        return jsonrpc_message_adapter.validate_json(encoded, by_name=False)
    except ValidationError as error:
        problem = _TOO_DEEP if _is_too_deep(error) else _NO_MESSAGE
    request_id = content.get("id") if isinstance(content, dict) else None
    is_usable = isinstance(request_id, str | int) and not isinstance(request_id, bool)
    raise InvalidMessage(INVALID_REQUEST, problem, request_id if is_usable else None)


def _is_too_deep(error: ValidationError) -> bool:
    return any("recursion limit" in str(one.get("ctx")) for one in error.errors(include_input=False, include_url=False))


class MessageStream:
    """The messages of one connection: iterating reads them, `outgoing` takes them.

    A line that is not a message is answered with an error, and the next one read. Writing is a task of its own
    (`write`), so that a request that is cancelled leaves no half line.
    """

    def __init__(
        self,
        source: ByteReceiveStream,
        sink: ByteSendStream,
        on_written: Callable[[JSONRPCMessage], None] | None = None,
        on_input_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_written` gets each message that is written; `on_input_end`: the client will send nothing more."""
        self.outgoing: MemoryObjectSendStream[SessionMessage]
        self._queue: MemoryObjectReceiveStream[SessionMessage]
        self.outgoing, self._queue = anyio.create_memory_object_stream[SessionMessage](_QUEUE_LENGTH)
        self._errors = self.outgoing.clone()  # closed when reading ends; `outgoing` is closed by `finish`
        self._source, self._sink = source, sink
        self._on_written, self._on_input_end = on_written, on_input_end
        self._in_flight = _InFlight()
        self._parts: list[bytes] = []  # of a line whose end has not come; joined once, so that long lines stay cheap
        self._length = 0
        self._lines: list[bytes] = []  # complete lines, the next one last
        self._written = anyio.Event()  # all of them, or nothing more can be

    async def receive(self) -> SessionMessage | Exception:
        """The next message; EndOfStream at the end."""
        while True:
            await self._in_flight.wait_for_room()
            while not self._lines:
                self._split(await self._read())
            line = self._lines.pop()
            if not line.strip():
                continue
            try:
                if len(line) > LONGEST_LINE:
                    raise InvalidMessage(INVALID_REQUEST, _TOO_LONG)
                message = parse(line)
            except InvalidMessage as error:
                self._in_flight.add()  # until it is written, as any answer
                await self._errors.send(SessionMessage(error.response()))
                continue
            if not isinstance(message, JSONRPCRequest):
                return SessionMessage(message)
            self._in_flight.add(endless=message.method == _ENDLESS)
            return SessionMessage(message, ServerMessageMetadata(on_request_unanswered=self._in_flight.discard))

    async def write(self) -> None:
        """Write until all senders are closed or the client is gone."""
        async with self._queue:
            async for first in self._queue:
                batch = [first.message]
                data = _line(first.message)
                while len(data) < _WRITE_BYTES:
                    try:
                        batch.append(self._queue.receive_nowait().message)
                    except (anyio.WouldBlock, anyio.EndOfStream):
                        break
                    data += _line(batch[-1])
                try:
                    await self._sink.send(data)
                except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
                    break
                for message in batch:
                    if isinstance(message, JSONRPCResponse | JSONRPCError):
                        self._in_flight.remove()
                    if self._on_written is not None:
                        self._on_written(message)
        self._written.set()

    async def finish(self) -> None:
        """Send nothing more. Waits a moment for what is queued, but not for a client that does not read."""
        await self.aclose()
        self.outgoing.close()
        with anyio.move_on_after(_FINISH_S):
            await self._written.wait()

    async def aclose(self) -> None:
        """Read nothing more. Whoever opened the byte streams closes them."""
        self._errors.close()

    async def _read(self) -> bytes:
        try:
            return await self._source.receive(_READ_BYTES)
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            if self._parts:  # the last line may end without a line break
                return _LINE_BREAK
            # The client may be gone, or only send nothing more and still read: then what it asked is answered first,
            # if that takes seconds.
            self._on_input_end()
            with anyio.move_on_after(_ANSWER_S):
                await self._in_flight.wait_for_none(self._sink)
            raise anyio.EndOfStream from None

    def _split(self, data: bytes) -> None:
        *lines, rest = data.split(_LINE_BREAK)
        for line in lines:
            self._keep(line)
            self._lines.append(b"".join(self._parts))
            self._parts, self._length = [], 0
        self._lines.reverse()
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        """Part of a line. Of one that is too long, no more is kept than shows that it is."""
        if part and self._length <= LONGEST_LINE:
            self._parts.append(part)
            self._length += len(part)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _InFlight:
    """Counts the requests that were read and whose answer is not written yet."""

    def __init__(self) -> None:
        self._count = 0
        self._endless = 0
        self._fewer = anyio.Event()

    def add(self, *, endless: bool = False) -> None:
        self._count += 1
        self._endless += endless

    def remove(self) -> None:
        """One was answered, or never will be."""
        self._count -= 1
        self._fewer.set()
        self._fewer = anyio.Event()

    async def discard(self) -> None:
        """As the SDK calls back for a request that was cancelled."""
        self.remove()

    async def wait_for_room(self) -> None:
        """Wait until another may be read."""
        while self._count >= MOST_IN_FLIGHT:
            await self._fewer.wait()

    async def wait_for_none(self, sink: ByteSendStream) -> None:
        """Wait until all are answered, apart from the endless ones, or the answers cannot be read any more."""
        while self._count > self._endless and not (isinstance(sink, DescriptorWriter) and sink.is_closed_by_peer()):
            with anyio.move_on_after(_POLL_S):
                await self._fewer.wait()


def _line(message: JSONRPCMessage) -> bytes:
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + _LINE_BREAK
    except ValueError:  # a lone surrogate, from an expression: JSON has it only escaped
        return json.dumps(message.model_dump(by_alias=True, exclude_unset=True)).encode() + _LINE_BREAK


# --- bytes


class DescriptorReader(ByteReceiveStream):
    """Bytes from a descriptor. Whoever opened it closes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def receive(self, max_bytes: int = _READ_BYTES) -> bytes:
        """The next bytes; EndOfStream at the end."""
        await _wait_ready(self._descriptor, select.POLLIN, anyio.wait_readable)
        data = os.read(self._descriptor, max_bytes)
        if not data:
            raise anyio.EndOfStream
        return data

    async def aclose(self) -> None:
        """Nothing was opened here."""


class DescriptorWriter(ByteSendStream):
    """Bytes to a descriptor (`connected`: to that socket), as many at a time as it takes without blocking the loop."""

    def __init__(self, descriptor: int, connected: socket.socket | None = None) -> None:
        self._descriptor = descriptor
        self._socket = connected
        self._opened: socket.socket | None = None
        if connected is None and stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            self._socket = self._opened = socket.socket(fileno=os.dup(descriptor))

    async def send(self, item: bytes) -> None:
        """All of it."""
        rest = memoryview(item)
        while rest:
            await _wait_ready(self._descriptor, select.POLLOUT, anyio.wait_writable)
            try:
                rest = rest[self._write(rest) :]
            except BlockingIOError:
                continue

    def is_closed_by_peer(self) -> bool:
        """Whether what is written here can never be read."""
        poll = select.poll()
        poll.register(self._descriptor, 0)  # errors and hang-ups are always reported
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))

    def _write(self, data: memoryview) -> int:
        if self._socket is not None:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        # A pipe that is ready takes this many bytes, and perhaps not one more.
        return os.write(self._descriptor, data[: select.PIPE_BUF])

    async def aclose(self) -> None:
        """Close what was opened here."""
        if self._opened is not None:
            self._opened.close()


async def _wait_ready(descriptor: int, event: int, wait: Callable[[int], Awaitable[None]]) -> None:
    """Wait until the descriptor is ready. Polling first is cheaper than the loop's selector, and usually enough."""
    poll = select.poll()
    poll.register(descriptor, event)
    # A file is always ready: only here, for the loop's selector does not take it.
    if poll.poll(0):
        await anyio.lowlevel.checkpoint()
    else:
        await wait(descriptor)
