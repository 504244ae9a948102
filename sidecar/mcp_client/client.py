"""The MCP servers that a run has open: opened for the first call that needs them, kept, opened again when they died."""

from __future__ import annotations

import importlib
import json
import logging
import math
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import anyio
import pydantic_core

from sidecar import __version__
from sidecar.agents.launch import Launch
from sidecar.agents.mask import Secrets
from sidecar.errors import AgentFailed, ConfigError, StepFailed
from sidecar.mcp_client.servers import PROJECT_FILE, HttpServer, Server, Servers, StdioServer, nearest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp import Client
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

    from sidecar.agents.agent import Agent
    from sidecar.agents.launch import Launch
    from sidecar.agents.stream import Output, Subscription
    from sidecar.config import Settings
    from sidecar.model.agent import AgentEnded, EndReason

    Incoming = MemoryObjectSendStream[SessionMessage | Exception]
    Outgoing = MemoryObjectReceiveStream[SessionMessage]

    from mcp_types import CallToolResult


class McpClients:
    """`Clients` of a run. Leaving it, by whatever way, ends every server that it started and returns then."""

    def __init__(
        self,
        *,
        start: Callable[[Launch, str], Awaitable[Agent]],
        root: str,
        settings: Settings,
        environment: Mapping[str, str],
        secrets: tuple[str, ...],
        log_path: Callable[[], str],
        kill_after_s: float,
        run_id: str | None = None,
    ) -> None:
        self._servers = Servers(root, settings.mcp_servers, environment)
        self._opening = Opening(
            start=start,
            environment=environment,
            secrets=secrets,
            log_path=log_path,
            kill_after_s=kill_after_s,
            run_id=run_id,
        )
        self._open: dict[str, Connection] = {}
        self._tools: dict[str, frozenset[str]] = {}  # of every server that was ever asked
        self._asked_all = False
        self._closed = False
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        aborted = kind is not None and issubclass(kind, anyio.get_cancelled_exc_class())
        self._closed = True
        self._leave_all("abort" if aborted else "shutdown")
        # Not told of the error: a failed run still takes its leave of its servers, a cancelled one is cancelled anyway.
        await self._tasks.__aexit__(None, None, None)

    async def close(self) -> None:
        """End every server by the ladder. A later call opens what it needs again."""
        connections = list(self._open.values())
        self._leave_all("shutdown")
        with anyio.CancelScope(shield=True):
            for connection in connections:
                await connection.over.wait()

    async def call(self, server: str | None, tool: str, arguments: dict[str, Any], timeout_s: float | None) -> Any:
        """What a tool answers; StepFailed where it fails. `server` None: the one server that has the tool."""
        with anyio.CancelScope() as scope:
            if timeout_s is not None:
                scope.deadline = anyio.current_time() + timeout_s
            try:
                connection = await self._opened(server if server is not None else await self._holder(tool))
                return await connection.call(tool, arguments)
            except ConfigError as error:
                raise StepFailed(str(error), kind="server", server=server, tool=tool) from None
        whose = f" of {server!r}" if server is not None else ""
        raise StepFailed(
            f"MCP tool {tool!r}{whose} did not answer within {timeout_s:g} s", kind="timeout", server=server, tool=tool
        )

    async def _opened(self, name: str) -> Connection:
        while not self._closed:
            connection = self._open.get(name)
            if connection is not None and connection.is_leaving:
                # Two at once of a server that may hold a port or a lock would be one too many.
                await connection.over.wait()
                if self._open.get(name) is connection:
                    del self._open[name]
                continue
            if connection is None:
                connection = self._open[name] = Connection(self._servers.find(name), self._opening)
                self._tasks.start_soon(connection.live)
            await connection.ready.wait()
            if connection.problem is not None:
                raise StepFailed(f"MCP server {name!r} {connection.problem}", kind="server", server=name)
            self._tools[name] = connection.tools
            await connection.prove()
            if not connection.is_leaving:
                return connection
        raise StepFailed(f"MCP server {name!r} is not open any more: the run is at its end", kind="server", server=name)

    async def _holder(self, tool: str) -> str:
        """The one server that has a tool."""
        names = self._servers.names()
        if not names:
            raise StepFailed(f"no MCP servers: neither {PROJECT_FILE} nor the setting mcp_servers names one", tool=tool)
        failures: dict[str, str] = {}
        holders = self._holders(tool, names)
        # Every server is asked once. One that could not be opened is tried again only where no other has the tool.
        if not self._asked_all or not holders:
            failures = await self._ask(names)
            self._asked_all = True
            holders = self._holders(tool, names)
        if len(holders) > 1:
            several = ", ".join(holders)
            raise StepFailed(f"several MCP servers have a tool {tool!r}: {several}; say which with `server`", tool=tool)
        if not holders:
            known = {name for tools in self._tools.values() for name in tools}
            untold = "".join(f"; {failure}" for failure in failures.values())
            raise StepFailed(f"no MCP server has a tool {tool!r}; {nearest(tool, known)}{untold}", tool=tool)
        return holders[0]

    def _holders(self, tool: str, names: Sequence[str]) -> list[str]:
        return [name for name in names if tool in self._tools.get(name, ())]

    async def _ask(self, names: Sequence[str]) -> dict[str, str]:
        """Open servers for their tools; why some could not be."""
        failures: dict[str, str] = {}

        async def ask(name: str) -> None:
            try:
                await self._opened(name)
            except (StepFailed, ConfigError) as error:
                failures[name] = str(error)

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(ask, name)
        return failures

    def _leave_all(self, reason: EndReason) -> None:
        for connection in self._open.values():
            connection.leave(reason)


# One MCP server, open: everything that has to be entered and left in one task lives in that task, calls come to it.


_OPEN_S = 60.0  # a server may have to be downloaded by whoever starts it
_LEAVE_S = 2.0  # for the goodbye that HTTP has
_PROOF_S = 5.0
_LAST_WORDS_S = 1.0  # for the news of a process's end to follow that of its output's
_CONNECT_S = 30.0
_MOST_PAGES = 100
_CLOSED = "Connection closed"  # the SDK's words for a session at its end
_LONGEST_QUOTE = 300
_SILENT = logging.NullHandler()


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What opening a server takes."""

    start: Callable[[Launch, str], Awaitable[Agent]]
    environment: Mapping[str, str]
    secrets: tuple[str, ...]
    log_path: Callable[[], str]
    kill_after_s: float
    run_id: str | None


class Connection:
    """A server from its start to its end. `live` is its task; everything else may be called from any other."""

    def __init__(self, server: Server, opening: Opening) -> None:
        self.name = server.name
        self.tools: frozenset[str] = frozenset()
        self.ready = anyio.Event()  # it is open, or never will be
        self.over = anyio.Event()
        self.problem: str | None = None  # why it is over, where nobody asked for that
        self._server = server
        self._opening = opening
        self._mask = Secrets(opening.secrets)
        self._client: Client | None = None
        self._leaving = anyio.Event()
        self._reason: EndReason | None = None
        self._scope = anyio.CancelScope()
        self._calls = 0
        self._in_doubt = False

    @property
    def is_leaving(self) -> bool:
        """Whether it is of no use any more."""
        return self._leaving.is_set()

    def leave(self, reason: EndReason) -> None:
        """Have it over soon, also where it is not even open."""
        self._reason = self._reason or reason
        self._leaving.set()
        if not self.ready.is_set():
            self._scope.cancel()

    async def live(self) -> None:
        """Open it, keep it until it is to leave, and leave nothing behind."""
        try:
            with self._scope:
                await self._keep()
            if self._scope.cancelled_caught and not self.is_leaving:
                self.problem = f"did not answer within {_OPEN_S:g} s"
        except Exception as error:  # whatever a server or the SDK comes up with ends this server, not the run
            self.problem = self.problem or f"failed: {self._words(error)}"
        finally:
            self._leaving.set()
            self._client = None
            self.ready.set()
            self.over.set()

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """What a tool answers; StepFailed where it fails, or the server does."""
        client = await self._having(tool)
        self._calls += 1
        try:
            result = await client.call_tool(tool, arguments)
            if result.is_error:
                said = self._mask.masked_text(text_of(result)) or "it did not say why"
                raise self._failed(f"MCP tool {tool!r} of {self.name!r} failed: {said}", "tool", tool=tool, text=said)
            return value_of(result, self._mask.masked_text)
        except anyio.get_cancelled_exc_class():
            # The server was told, but whether it cares is known only when it answers something else.
            self._in_doubt = True
            raise
        except StepFailed:
            raise
        except Exception as error:  # the SDK's, the transport's, and those of validating what was answered
            raise await self._explained(tool, error) from None
        finally:
            self._calls -= 1

    async def prove(self) -> None:
        """After a call that was given up: see whether the server still answers, and have it over where it does not."""
        if not self._in_doubt or self._calls:
            return
        with anyio.move_on_after(_PROOF_S):
            try:
                await self._learn()
            except Exception:  # noqa: S110 - no answer is no proof, whatever the reason
                pass
            else:
                self._in_doubt = False
        if self._in_doubt and not self._calls:
            self.leave("stall")

    async def _having(self, tool: str) -> Client:
        """The client, of a server that has the tool."""
        try:
            if tool not in self.tools:
                await self._learn()  # servers may change their tools while they run
        except Exception as error:
            raise await self._explained(tool, error) from None
        if tool not in self.tools:
            raise self._failed(f"MCP server {self.name!r} has no tool {tool!r}; {nearest(tool, self.tools)}", "tool")
        if self._client is None:
            raise self._failed(f"MCP server {self.name!r} {self.problem or 'was closed'}", "server")
        return self._client

    async def _explained(self, tool: str, error: Exception) -> StepFailed:
        """Why a call failed that the server did not answer, or not as it should."""
        from mcp import MCPError  # noqa: PLC0415 - loaded by now
        from mcp_types import CONNECTION_CLOSED  # noqa: PLC0415

        # Both, because servers use that number for errors of their own.
        if isinstance(error, MCPError) and (error.code, error.message) == (CONNECTION_CLOSED, _CLOSED):
            self._leaving.set()
        if self.is_leaving:
            # The session only knows that nobody is there any more. Why that is, is known when the process is over.
            await self.over.wait()
            why = self.problem or f"was gone: {self._words(error)}"
            return self._failed(f"MCP server {self.name!r} {why}", "server", tool=tool)
        self._in_doubt = self._in_doubt or isinstance(error, MCPError)
        return self._failed(f"MCP tool {tool!r} of {self.name!r} failed: {self._words(error)}", "protocol", tool=tool)

    async def _keep(self) -> None:
        # In a thread: it takes a second, in which a stop or an abort must not have to wait.
        await anyio.to_thread.run_sync(_load_sdk, abandon_on_cancel=True)
        from mcp import Client  # noqa: PLC0415 - loaded by now
        from mcp_types import Implementation  # noqa: PLC0415

        self._scope.deadline = anyio.current_time() + _OPEN_S
        about_us = Implementation(name="sidecar", version=__version__)
        async with Client(self._transport(), client_info=about_us, cache=None) as self._client:
            await self._learn()
            self._scope.deadline = math.inf
            self.ready.set()
            await self._leaving.wait()
            self._scope.deadline = anyio.current_time() + _LEAVE_S

    async def _learn(self) -> None:
        """Which tools it has now."""
        client, names, cursor = self._client, set[str](), None
        if client is None:
            return
        for _ in range(_MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            names.update(tool.name for tool in page.tools)
            cursor = page.next_cursor
            if cursor is None:
                break
        self.tools = frozenset(names)

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[TransportStreams]:
        if isinstance(self._server, HttpServer):
            async with _http(self._server) as streams:
                yield streams
            return
        agent = await self._started(self._server)
        wire = Wire(agent, self._leaving.set)
        try:
            async with wire.streams() as streams:
                yield streams
        except anyio.get_cancelled_exc_class():
            # Nobody answered in time, or the run is cancelled, which is an abort unless it was said to be another end.
            self._reason = self._reason or ("timeout" if self._scope.cancel_called else "abort")
            raise
        finally:
            with anyio.CancelScope(shield=True):
                self.problem = await self._end(agent, wire)

    async def _started(self, server: StdioServer) -> Agent:
        opening = self._opening
        try:
            launch = Launch(
                argv=server.argv,
                cwd=server.cwd,
                starter_env=opening.environment,
                env=server.env,
                keep_stdin_open=True,
                log_path=opening.log_path(),
                run_id=opening.run_id,
                secrets=opening.secrets,
                kill_after_s=opening.kill_after_s,
            )
            return await opening.start(launch, f"MCP server {server.name}")
        except AgentFailed as error:
            self.problem = f"cannot be started: {error}"
            raise

    async def _end(self, agent: Agent, wire: Wire) -> str | None:
        """End the process, where it has not ended by itself; why, where nobody asked for that."""
        ended = None
        if self._reason is None and wire.problem is None:
            # It seems to have ended. That is its own end, and has its own status, where the news of it is only late.
            with anyio.move_on_after(_LAST_WORDS_S):
                ended = await agent.wait()
        ended = ended or await agent.end(self._reason or "shutdown")
        if ended.reason == "exited":
            return _exit_text(ended)
        if self._reason is None:
            return f"was ended: {wire.problem or 'it closed its input'}"
        return None

    def _failed(self, message: str, kind: str, **known: object) -> StepFailed:
        return StepFailed(self._mask.masked_text(" ".join(message.split())), kind=kind, server=self.name, **known)

    def _words(self, error: BaseException) -> str:
        """One line for an error; of a group, the first that is no group."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return self._mask.masked_text(" ".join(str(error).split()) or type(error).__name__)


def _load_sdk() -> None:
    importlib.import_module("mcp.client.streamable_http")
    for name in ("mcp", "httpx2"):
        # Without any handler, Python itself would print their warnings into the person's terminal.
        logging.getLogger(name).addHandler(_SILENT)


@asynccontextmanager
async def _http(server: HttpServer) -> AsyncIterator[TransportStreams]:
    from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 - loaded by now
    from mcp.shared._httpx_utils import create_mcp_http_client  # noqa: PLC0415

    async with create_mcp_http_client(dict(server.headers)) as client:
        # A tool may be silent for as long as its step may take; only reaching the server has a limit of its own.
        client.timeout = (_CONNECT_S, None, _CONNECT_S, _CONNECT_S)
        async with streamable_http_client(server.url, http_client=client) as streams:
            yield streams


def _exit_text(ended: AgentEnded) -> str:
    """How a process ended by itself, and its last words that were no message."""
    status = ended.exit_code
    if status is None:
        how = "was gone"
    else:
        how = f"ended with exit code {status}" if status >= 0 else f"died of signal {-status}"
    lines = [line.strip() for line in ended.tail.splitlines()]
    words = [line for line in lines if line and not line.startswith("{")]
    return f"{how}: {words[-1][:_LONGEST_QUOTE]}" if words else how


# MCP's stdio transport over a process of ours: a JSON-RPC message is a line, and only stderr may say anything else.


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


# What an MCP tool answered, as a step's result: JSON that the state can hold.


def value_of(result: CallToolResult, masked: Callable[[str], str] = str) -> Any:
    """Structured content where there is some; else the text, as JSON where it is JSON; else the blocks as they are.

    A server that wraps its values (`{"result": …}`) is taken at its word. ValueError: no JSON text stands for it.
    """
    return _storable(_value(result), masked)


def text_of(result: CallToolResult) -> str:
    """All that it says in words."""
    return "\n".join(block.text for block in result.content if block.type == "text").strip()


def _value(result: CallToolResult) -> Any:
    if result.structured_content is not None:
        return result.structured_content
    blocks = result.content
    if not blocks:
        return None
    texts = [block.text for block in blocks if block.type == "text"]
    if len(texts) == len(blocks):
        return _read("\n".join(texts))
    dumped = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in blocks]
    return dumped if len(dumped) > 1 else dumped[0]


def _read(text: str) -> Any:
    try:
        # Not the standard library's reader: it takes NaN, and half a surrogate pair, which the journal could not keep.
        found = pydantic_core.from_json(text, allow_inf_nan=False)
        json.dumps(found, allow_nan=False)  # 1e999 is read as infinity all the same
    except ValueError:
        return text
    return found


def _storable(value: Any, masked: Callable[[str], str]) -> Any:
    return json.loads(masked(json.dumps(value, allow_nan=False)))
