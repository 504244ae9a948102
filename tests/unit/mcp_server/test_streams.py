from __future__ import annotations

import json

import anyio
import pytest
from anyio.abc import ByteReceiveStream, ByteSendStream
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCMessage, JSONRPCNotification, JSONRPCResponse

from sidecar.mcp_server import streams
from sidecar.mcp_server.streams import MessageStream

DEADLINE_S = 20


class Pieces(ByteReceiveStream):
    """Bytes that come in pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self._pieces:
            raise anyio.EndOfStream
        return self._pieces.pop(0)

    async def aclose(self) -> None:
        pass


class Kept(ByteSendStream):
    """Bytes that are kept; `full`: until they are wanted."""

    def __init__(self) -> None:
        self.data = b""
        self.wanted = anyio.Event()
        self.wanted.set()

    async def send(self, item: bytes) -> None:
        await self.wanted.wait()
        self.data += item

    async def aclose(self) -> None:
        pass


async def read(pieces: list[bytes]) -> list[str]:
    found = []
    both = MessageStream(Pieces(pieces), Kept())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(both.write)
        async for item in both:
            assert isinstance(item, SessionMessage)
            assert isinstance(item.message, JSONRPCNotification)
            found.append(item.message.method)
        await both.finish()
    return found


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=30), max_size=5), st.data())
def test_messages_are_read_however_the_bytes_are_cut(methods: list[str], data: st.DataObject) -> None:
    lines = [json.dumps({"jsonrpc": "2.0", "method": method}, ensure_ascii=False) for method in methods]
    whole = "".join(f"{line}\r\n\n" for line in lines).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert anyio.run(read, [piece for piece in pieces if piece]) == methods


@pytest.mark.anyio
async def test_what_is_no_message_is_answered_and_the_next_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LONGEST_LINE", 2**20)
    good = b'{"jsonrpc":"2.0","method":"m"}\n'
    kept = Kept()
    both = MessageStream(Pieces([b"nonsense\n", b"y" * 2**19, b"y" * 2**19, b"y" * 10, b"y\n", good]), kept)
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(both.write)
            item = await both.receive()
            assert isinstance(item, SessionMessage)
            await both.finish()
    codes = [json.loads(line)["error"]["code"] for line in kept.data.splitlines()]
    assert codes == [-32700, -32600]


@pytest.mark.anyio
async def test_a_sender_that_is_cancelled_leaves_no_half_line_and_what_is_written_is_told() -> None:
    kept = Kept()
    kept.wanted = anyio.Event()
    told: list[JSONRPCMessage] = []
    sent: list[int] = []
    both = MessageStream(Pieces([]), kept, told.append)
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(both.write)
            for number in range(40):
                with anyio.move_on_after(0.001):
                    message = JSONRPCResponse(jsonrpc="2.0", id=number, result={"x": "y" * 1000})
                    await both.outgoing.send(SessionMessage(message))
                    sent.append(number)
            assert told == []
            kept.wanted.set()
            await both.finish()
    numbers = [json.loads(line)["id"] for line in kept.data.splitlines()]
    assert numbers == sorted(set(numbers))
    assert set(sent) <= set(numbers)
    assert sent  # on a busy machine not all of them
    assert [message.id for message in told if isinstance(message, JSONRPCResponse)] == numbers
