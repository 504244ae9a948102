"""The bytes of the stdio transport: a JSON message a line, over any pair of byte streams."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
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

from sidecar.mcp_server.descriptors import Output

if TYPE_CHECKING:
    from anyio.abc import ByteReceiveStream, ByteSendStream
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

logger = logging.getLogger(__name__)
LONGEST_LINE = 16 * 1024 * 1024
# Requests of one connection whose answer is not written yet. Beyond this, nothing more is read from it: a client that
# never reads its answers costs no more than these.
MOST_IN_FLIGHT = 64
_READ_BYTES = 65536
_MOST_AT_ONCE = 256 * 1024
_WAITING = 64
_FINISH_S = 1.0
_ANSWER_S = 10.0  # for what is in flight at the end of input; a call that waits for a run could take hours
_LOOK_S = 0.5
_ENDLESS = "subscriptions/listen"  # answered when the client takes it back
_TOO_LONG = f"a message may have {LONGEST_LINE // 2**20} MiB at most"
_TOO_DEEP = "nested more than 200 levels deep"  # pydantic's limit
_NO_MESSAGE = "not a JSON-RPC message"
_BAD_ID = "the id of a request is a string or an integer"
_LINE_BREAK = b"\n"
Written = Callable[[JSONRPCMessage], None]


class NotAMessage(Exception):  # noqa: N818 - the name says it
    """What was sent cannot be answered but by this error."""

    def __init__(self, code: int, message: str = _NO_MESSAGE, request_id: RequestId | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.request_id = request_id

    def answer(self) -> JSONRPCError:
        """As the client is told."""
        return JSONRPCError(jsonrpc="2.0", id=self.request_id, error=ErrorData(code=self.code, message=str(self)))


def parse(line: bytes) -> JSONRPCMessage:
    """The message; NotAMessage where it is none."""
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError:
        message = _repaired(line)
    # The SDK takes a request whose id it cannot use for a notification, and nobody would get an answer.
    if isinstance(message, JSONRPCNotification) and b'"id"' in line and "id" in json.loads(line):
        raise NotAMessage(INVALID_REQUEST, _BAD_ID)
    return message


def _repaired(line: bytes) -> JSONRPCMessage:
    """A message with halves of characters in it, which JavaScript sends and nothing here could write down again."""
    try:
        content = json.loads(line)
        whole = json.dumps(content, ensure_ascii=False).encode(errors="replace")
    except RecursionError:
        raise NotAMessage(INVALID_REQUEST, _TOO_DEEP) from None
    except ValueError:
        raise NotAMessage(PARSE_ERROR) from None
    try:
        return jsonrpc_message_adapter.validate_json(whole, by_name=False)
    except ValidationError as error:
        problem = _TOO_DEEP if _is_deep(error) else _NO_MESSAGE
    request_id = content.get("id") if isinstance(content, dict) else None
    is_usable = isinstance(request_id, str | int) and not isinstance(request_id, bool)
    raise NotAMessage(INVALID_REQUEST, problem, request_id if is_usable else None)


def _is_deep(error: ValidationError) -> bool:
    return any("recursion limit" in str(one.get("ctx")) for one in error.errors(include_input=False, include_url=False))


class _InFlight:
    """The requests that were read and whose answer is not written yet."""

    def __init__(self) -> None:
        self._count = 0
        self._endless = 0
        self._fewer = anyio.Event()

    def add(self, *, endless: bool = False) -> None:
        """One more was read."""
        self._count += 1
        self._endless += endless

    def settle(self) -> None:
        """One was answered, or never will be."""
        self._count -= 1
        self._fewer.set()
        self._fewer = anyio.Event()

    async def settle_unanswered(self) -> None:
        """As the SDK calls back for a request that was taken back."""
        self.settle()

    async def room(self) -> None:
        """Wait until another may be read."""
        while self._count >= MOST_IN_FLIGHT:
            await self._fewer.wait()

    async def none(self, is_gone: Callable[[], bool]) -> None:
        """Wait until all are settled, but for those without an end, or nobody is there to read the answers."""
        while self._count > self._endless and not is_gone():
            with anyio.move_on_after(_LOOK_S):
                await self._fewer.wait()


class Lines:
    """Messages from bytes, as the SDK's loop reads them. What is no message is answered, and the next line read."""

    def __init__(
        self,
        source: ByteReceiveStream,
        answer: MemoryObjectSendStream[SessionMessage],
        in_flight: _InFlight,
        at_end: Callable[[], Awaitable[None]],
    ) -> None:
        self._source = source
        self._answer = answer
        self._in_flight = in_flight
        self._at_end = at_end  # awaited before the end of the input is told
        self._parts: list[bytes] = []  # of a line whose end has not come; joined once, so that long lines stay cheap
        self._length = 0
        self._ready: list[bytes] = []  # whole lines, the next one last

    async def receive(self) -> SessionMessage | Exception:
        """The next message; EndOfStream at the end."""
        while True:
            await self._in_flight.room()
            while not self._ready:
                self._take(await self._read())
            line = self._ready.pop()
            if not line.strip():
                continue
            if len(line) > LONGEST_LINE:
                await self._refuse(NotAMessage(INVALID_REQUEST, _TOO_LONG))
                continue
            try:
                return self._counted(parse(line))
            except NotAMessage as error:
                await self._refuse(error)

    def _counted(self, message: JSONRPCMessage) -> SessionMessage:
        if not isinstance(message, JSONRPCRequest):
            return SessionMessage(message)
        self._in_flight.add(endless=message.method == _ENDLESS)
        return SessionMessage(message, ServerMessageMetadata(on_request_unanswered=self._in_flight.settle_unanswered))

    async def _read(self) -> bytes:
        try:
            return await self._source.receive(_READ_BYTES)
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            # A client that went away, however it did; or one that only says that it will ask no more.
            if self._parts:  # the last line may end without a line break
                return _LINE_BREAK
            await self._at_end()
            raise anyio.EndOfStream from None

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

    async def _refuse(self, error: NotAMessage) -> None:
        self._in_flight.add()  # until it is written, as any answer
        await self._answer.send(SessionMessage(error.answer()))

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

    def __init__(
        self,
        source: ByteReceiveStream,
        sink: ByteSendStream,
        written: Written | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`written` hears of every message that is out; `ended`, that the client will send nothing more."""
        self.outgoing: MemoryObjectSendStream[SessionMessage]
        self._waiting: MemoryObjectReceiveStream[SessionMessage]
        self.outgoing, self._waiting = anyio.create_memory_object_stream[SessionMessage](_WAITING)
        self._in_flight = _InFlight()
        self.incoming = Lines(source, self.outgoing.clone(), self._in_flight, self._answer_all)
        self._sink = sink
        self._written = written
        self._ended = ended
        self._finished = anyio.Event()

    async def _answer_all(self) -> None:
        """The client asks no more, but may still listen: what it asked is answered first, if that takes seconds."""
        self._ended()
        with anyio.move_on_after(_ANSWER_S):
            await self._in_flight.none(self._sink.is_gone if isinstance(self._sink, Output) else lambda: False)

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
                for message in batch:
                    if isinstance(message, JSONRPCResponse | JSONRPCError):
                        self._in_flight.settle()
                    if self._written is not None:
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
