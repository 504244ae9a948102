"""The Model Context Protocol by hand, as JSON-RPC over a socket or a pipe, and the library's client over a socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from mcp.shared.message import SessionMessage
from mcp.types.jsonrpc import jsonrpc_message_adapter

from tests.kit import sockets
from tests.kit.forking import SIDECAR, Forked
from tests.kit.waiting import DEADLINE_S

ERAS = ("legacy", "2026-07-28")
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "by hand", "version": "1"}}
STATELESS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "by hand", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class McpClient:
    """One connection: messages that no library would send, and what comes back."""

    def __init__(self, send: Callable[[bytes], object], lines: Iterable[bytes]) -> None:
        self.send_bytes = send
        self._lines = lines
        self.received: list[dict[str, Any]] = []
        self._used = 1_000  # tests that number their requests take smaller ones

    def hello(self) -> McpClient:
        """The handshake of the first era; the second has none."""
        self.request(0, "initialize", HELLO)
        self.answer(0)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def send(self, *messages: dict[str, Any]) -> None:
        self.send_bytes(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    def request(self, number: int, method: str, params: dict[str, Any]) -> None:
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})

    def call(self, number: int, tool: str, arguments: dict[str, Any], **meta: Any) -> None:
        more = {"_meta": meta} if meta else {}
        self.request(number, "tools/call", {"name": tool, "arguments": arguments, **more})

    def use(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """What a tool gives that refuses nothing."""
        self._used += 1
        self.call(self._used, tool, arguments)
        answer = self.answer(self._used)
        assert not answer["result"].get("isError"), (tool, arguments, answer)
        return answer["result"]["structuredContent"]  # type: ignore[no-any-return]

    def answer(self, number: int | None) -> dict[str, Any]:
        """The answer to one request; what else comes is kept in `received`."""
        while True:
            message = self.answer_any()
            if message.get("id") == number:
                return message

    def answer_any(self) -> dict[str, Any]:
        """The next answer, whatever to."""
        for line in self._lines:
            message: dict[str, Any] = json.loads(line)
            self.received.append(message)
            if "method" not in message:
                return message
        raise AssertionError("the server closed the connection before it answered")


class SocketClient(McpClient):
    """Over a Unix socket, which is there to be abused too."""

    def __init__(self, connection: socket.socket, lines: Iterable[bytes]) -> None:
        super().__init__(connection.sendall, lines)
        self.connection = connection


@contextmanager
def at_socket(path: Path) -> Iterator[SocketClient]:
    with sockets.connect(path) as connection:
        connection.settimeout(DEADLINE_S)
        with connection.makefile("rb") as lines:
            yield SocketClient(connection, lines)


def at_pipes(process: subprocess.Popen[bytes]) -> McpClient:
    """To a process whose standard input and output are pipes."""
    assert process.stdin is not None
    assert process.stdout is not None
    stdin = process.stdin

    def send(data: bytes) -> None:
        stdin.write(data)
        stdin.flush()

    return McpClient(send, process.stdout)


@contextmanager
def at_serve(directory: Path, environment: dict[str, str]) -> Iterator[McpClient]:
    """To a `sidecar serve` of its own."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with Forked([SIDECAR, "serve"], directory, environment, **streams) as process:
        yield at_pipes(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(DEADLINE_S)


def tools(project: Path) -> dict[str, dict[str, Any]]:
    """The tools that `sidecar serve` lists there, by name."""
    with at_serve(project, dict(os.environ)) as client:
        client.hello().request(1, "tools/list", {})
        return {tool["name"]: tool for tool in client.answer(1)["result"]["tools"]}


def over_socket(path: str) -> Any:
    """The transport of the library's client at a socket, written apart from the server's."""

    @asynccontextmanager
    async def transport() -> AsyncIterator[Any]:
        async with await anyio.connect_unix(path) as stream, _streams(stream, stream.send) as streams:
            yield streams

    return transport()


def over_pipes(directory: Path, environment: dict[str, str]) -> Any:
    """The same with `sidecar serve`, which it starts and ends as clients do: its standard input is closed."""

    @asynccontextmanager
    async def transport() -> AsyncIterator[Any]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with Forked([SIDECAR, "serve"], directory, environment, bufsize=0, **pipes) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            async with _streams(_pieces(process.stdout.fileno()), partial(_write, process.stdin.fileno())) as streams:
                yield streams
            process.stdin.close()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(process.wait, DEADLINE_S)

    return transport()


async def _pieces(file: int) -> AsyncIterator[bytes]:
    os.set_blocking(file, False)
    while True:
        await anyio.wait_readable(file)
        data = os.read(file, 65_536)
        if not data:
            return
        yield data


async def _write(file: int, data: bytes) -> None:
    os.set_blocking(file, False)
    while data:
        await anyio.wait_writable(file)
        data = data[os.write(file, data) :]


@asynccontextmanager
async def _streams(pieces: AsyncIterable[bytes], send: Callable[[bytes], Awaitable[object]]) -> AsyncIterator[Any]:
    """What the library reads from and writes to."""
    to_client, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_client = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        parts: list[bytes] = []
        async with to_client:
            with suppress(anyio.BrokenResourceError):  # the client has left, and the server goes on writing
                async for data in pieces:
                    *lines, rest = data.split(b"\n")
                    for line in lines:
                        whole = b"".join([*parts, line])
                        parts = []
                        await to_client.send(SessionMessage(jsonrpc_message_adapter.validate_json(whole)))
                    parts.append(rest)

    async def write() -> None:
        async with from_client:
            async for item in from_client:
                await send(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        yield incoming, outgoing
        tasks.cancel_scope.cancel()
