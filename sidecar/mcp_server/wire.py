"""The bytes of the stdio transport: a JSON message a line, over any pair of byte streams."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, RequestId
from mcp.types.jsonrpc import jsonrpc_message_adapter

if TYPE_CHECKING:
    from anyio.abc import ByteReceiveStream, ByteSendStream
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

logger = logging.getLogger(__name__)
LONGEST_LINE = 16 * 1024 * 1024
_READ_BYTES = 65536
_MOST_AT_ONCE = 256 * 1024
_WAITING = 64
_FINISH_S = 1.0
_LINE_BREAK = b"\n"
Written = Callable[[JSONRPCMessage], None]


class _NotAMessage(Exception):  # noqa: N818 - the name says it
    def __init__(self, code: int, request_id: RequestId | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.request_id = request_id


def _message(line: bytes) -> JSONRPCMessage:
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return _repaired(line)


def _repaired(line: bytes) -> JSONRPCMessage:
    """A message with halves of characters in it, which JavaScript sends and nothing here could write down again."""
    request_id: RequestId | None = None
    try:
        content = json.loads(line)
        if isinstance(content, dict) and isinstance(content.get("id"), str | int):
            request_id = content["id"]
        whole = json.dumps(content, ensure_ascii=False).encode(errors="replace")
    except (ValueError, RecursionError):
        raise _NotAMessage(PARSE_ERROR) from None
    try:
        return jsonrpc_message_adapter.validate_json(whole, by_name=False)
    except ValueError:
        raise _NotAMessage(INVALID_REQUEST, request_id) from None


class Lines:
    """Messages from bytes, as the SDK's loop reads them. What is no message is answered, and the next line read."""

    def __init__(self, source: ByteReceiveStream, answer: MemoryObjectSendStream[SessionMessage]) -> None:
        self._source = source
        self._answer = answer
        self._parts: list[bytes] = []  # of a line whose end has not come; joined once, so that long lines stay cheap
        self._length = 0
        self._ready: list[bytes] = []  # whole lines, the next one last

    async def receive(self) -> SessionMessage | Exception:
        """The next message; EndOfStream at the end."""
        while True:
            while not self._ready:
                self._take(await self._read())
            line = self._ready.pop()
            if not line.strip():
                continue
            if len(line) > LONGEST_LINE:
                await self._refuse(INVALID_REQUEST, f"a message may have {LONGEST_LINE // 2**20} MiB at most")
                continue
            try:
                return SessionMessage(_message(line))
            except _NotAMessage as error:
                await self._refuse(error.code, "not a JSON-RPC message", error.request_id)

    async def _read(self) -> bytes:
        try:
            return await self._source.receive(_READ_BYTES)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            raise anyio.EndOfStream from None  # a client that went away, however it did

    def _take(self, data: bytes) -> None:
        *lines, rest = data.split(_LINE_BREAK)
        for line in lines:
            self._keep(line)
            self._ready.append(b"".join(self._parts))
            self._parts, self._length = [], 0
        self._ready.reverse()
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        """Part of a line. Of one that is too long, no more is kept than shows that it is."""
        if part and self._length <= LONGEST_LINE:
            self._parts.append(part)
            self._length += len(part)

    async def _refuse(self, code: int, message: str, request_id: RequestId | None = None) -> None:
        error = JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message))
        await self._answer.send(SessionMessage(error))

    async def aclose(self) -> None:
        """Read no more. The bytes' owner closes them."""
        self._answer.close()

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


class Wire:
    """Both directions. Writing is a task of its own: a request that is cancelled must not leave half a line."""

    def __init__(self, source: ByteReceiveStream, sink: ByteSendStream, written: Written | None = None) -> None:
        self.outgoing: MemoryObjectSendStream[SessionMessage]
        self._waiting: MemoryObjectReceiveStream[SessionMessage]
        self.outgoing, self._waiting = anyio.create_memory_object_stream[SessionMessage](_WAITING)
        self.incoming = Lines(source, self.outgoing.clone())
        self._sink = sink
        self._written = written
        self._finished = anyio.Event()

    async def write(self) -> None:
        """Write until the senders are done or the client is gone; then nobody waits for it any more."""
        async with self._waiting:
            async for first in self._waiting:
                batch = [first.message]
                data = _line(first.message)
                while len(data) < _MOST_AT_ONCE:
                    try:
                        batch.append(self._waiting.receive_nowait().message)
                    except (anyio.WouldBlock, anyio.EndOfStream):
                        break
                    data += _line(batch[-1])
                try:
                    await self._sink.send(data)
                except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
                    break
                if self._written is not None:
                    for message in batch:
                        self._written(message)
        self._finished.set()

    async def finish(self) -> None:
        """All was said: let what is still waiting go out, but do not wait for a client that does not read."""
        await self.incoming.aclose()
        self.outgoing.close()
        with anyio.move_on_after(_FINISH_S):
            await self._finished.wait()


def _line(message: JSONRPCMessage) -> bytes:
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + _LINE_BREAK
    except ValueError:  # half of a character, from an expression: JSON can say it, but only escaped
        return json.dumps(message.model_dump(by_alias=True, exclude_unset=True)).encode() + _LINE_BREAK
