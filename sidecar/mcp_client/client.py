"""The MCP servers of a run: opened for the first call that needs them, kept open, opened again after they died, ended
with the run."""

from __future__ import annotations

import importlib
import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import pydantic_core

from sidecar import __version__
from sidecar.agents.output import OutputLines, Secrets, Subscription
from sidecar.agents.supervisor import Agent, Launch
from sidecar.config import Settings
from sidecar.errors import AgentFailed, ConfigError, StepFailed
from sidecar.mcp_client.servers import PROJECT_FILE, HttpServer, Server, Servers, StdioServer, nearest
from sidecar.model.agent import AgentEnded, EndReason

if TYPE_CHECKING:  # the SDK takes a second to load, and few runs call a server
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp import Client
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage
    from mcp_types import CallToolResult

    ToSession = MemoryObjectSendStream[SessionMessage | Exception]
    FromSession = MemoryObjectReceiveStream[SessionMessage]

_OPEN_S = 60.0  # the command of a server may have to download it first
_CLOSE_S = 2.0  # for the last request that HTTP has
_PROBE_S = 5.0
_EXIT_NEWS_S = 1.0  # for the end of a process to be reported after that of its output
_CONNECT_S = 30.0
_MOST_PAGES = 100
_CLOSED = "Connection closed"  # the SDK's message for a session at its end
_LONGEST_QUOTE = 300
_WAITING_BYTES = 16 << 20  # of output that waits to be read; then the oldest is dropped
_LONGEST_LINE_BYTES = 1 << 20  # a subscription cuts longer lines
_UTF8_BYTES = 4
_SILENT = logging.NullHandler()


class McpClients:
    """The servers of one run. Leaving it, in whatever way, ends every server that it started and returns then."""

    def __init__(
        self,
        *,
        start: Callable[[Launch, str], Awaitable[Agent]],
        root: str,
        settings: Settings,
        environment: Mapping[str, str],
        secrets: tuple[str, ...],
        log_path: Callable[[], str],
        run_id: str | None = None,
    ) -> None:
        self.secrets = secrets
        self._servers = Servers(root, settings.mcp_servers, environment)
        self._start = start
        self._environment = environment
        self._log_path = log_path
        self._kill_after_s = settings.kill_after_s
        self._run_id = run_id
        self._open: dict[str, McpConnection] = {}
        self._tools: dict[str, frozenset[str]] = {}  # of every server that was opened
        self._listed_all = False
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
        for connection in self._open.values():
            connection.close("abort" if aborted else "shutdown")
        # Without the error: a failed run still closes its servers in order, and a cancelled one is cancelled anyway.
        await self._tasks.__aexit__(None, None, None)

    async def close(self) -> None:
        """End every server by the ladder. A later call opens what it needs again."""
        connections = list(self._open.values())
        for connection in connections:
            connection.close("shutdown")
        with anyio.CancelScope(shield=True):
            for connection in connections:
                await connection.ended.wait()

    async def call(self, server: str | None, tool: str, arguments: dict[str, Any], timeout_s: float | None) -> Any:
        """The answer of a tool; StepFailed where it fails. `server` None: the one server that has the tool."""
        with anyio.CancelScope() as scope:
            if timeout_s is not None:
                scope.deadline = anyio.current_time() + timeout_s
            try:
                connection = await self._connection(server if server is not None else await self._server_of(tool))
                return await connection.call(tool, arguments)
            except ConfigError as error:
                raise StepFailed(str(error), kind="server", server=server, tool=tool) from None
        whose = f" of {server!r}" if server is not None else ""
        raise StepFailed(
            f"MCP tool {tool!r}{whose} did not answer within {timeout_s:g} s", kind="timeout", server=server, tool=tool
        )

    async def start_server(self, server: StdioServer) -> Agent:
        """Start the process of a server; AgentFailed where that is not possible."""
        launch = Launch(
            argv=server.argv,
            cwd=server.cwd,
            starter_env=self._environment,
            env=server.env,
            keep_stdin_open=True,
            log_path=self._log_path(),
            run_id=self._run_id,
            secrets=self.secrets,
            kill_after_s=self._kill_after_s,
        )
        return await self._start(launch, f"MCP server {server.name}")

    async def _connection(self, name: str) -> McpConnection:
        """An open connection to a server."""
        while not self._closed:
            connection = self._open.get(name)
            if connection is not None and connection.is_closing:
                # Two processes at once of a server that may hold a port or a lock would be one too many.
                await connection.ended.wait()
                if self._open.get(name) is connection:
                    del self._open[name]
                continue
            if connection is None:
                connection = self._open[name] = McpConnection(self._servers.find(name), self)
                self._tasks.start_soon(connection.run)
            await connection.ready.wait()
            if connection.problem is not None:
                raise StepFailed(f"MCP server {name!r} {connection.problem}", kind="server", server=name)
            self._tools[name] = connection.tools
            await connection.probe()
            if not connection.is_closing:
                return connection
        raise StepFailed(f"MCP server {name!r} is not open any more: the run is at its end", kind="server", server=name)

    async def _server_of(self, tool: str) -> str:
        """The one server that has a tool."""
        names = self._servers.names()
        if not names:
            raise StepFailed(f"no MCP servers: neither {PROJECT_FILE} nor the setting mcp_servers names one", tool=tool)
        failures: list[str] = []
        having = self._having(tool, names)
        # Every server is opened once. One that could not be opened is tried again only where no other has the tool.
        if not self._listed_all or not having:
            failures = await self._open_all(names)
            self._listed_all = True
            having = self._having(tool, names)
        if len(having) > 1:
            several = ", ".join(having)
            raise StepFailed(f"several MCP servers have a tool {tool!r}: {several}; say which with `server`", tool=tool)
        if not having:
            known = {name for tools in self._tools.values() for name in tools}
            reasons = "".join(f"; {failure}" for failure in failures)
            raise StepFailed(f"no MCP server has a tool {tool!r}; {nearest(tool, known)}{reasons}", tool=tool)
        return having[0]

    def _having(self, tool: str, names: Sequence[str]) -> list[str]:
        return [name for name in names if tool in self._tools.get(name, ())]

    async def _open_all(self, names: Sequence[str]) -> list[str]:
        """Open servers for their lists of tools; why some could not be opened."""
        failures: list[str] = []

        async def open_one(name: str) -> None:
            try:
                await self._connection(name)
            except (StepFailed, ConfigError) as error:
                failures.append(str(error))

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(open_one, name)
        return failures


class McpConnection:
    """One server from its start to its end.

    The SDK's client has to be entered and left in one task, which is `run`; any task may call the other methods.
    """

    def __init__(self, server: Server, clients: McpClients) -> None:
        self.name = server.name
        self.tools: frozenset[str] = frozenset()
        self.ready = anyio.Event()  # it is open, or never will be
        self.ended = anyio.Event()
        self.problem: str | None = None  # why it ended, where that was not requested
        self._server = server
        self._clients = clients
        self._mask = Secrets(clients.secrets)
        self._client: Client | None = None
        self._closing = anyio.Event()
        self._reason: EndReason | None = None
        self._garbled: str | None = None  # why the output of its process cannot be used
        self._scope = anyio.CancelScope()
        self._calls = 0
        self._in_doubt = False  # a call was given up: it is not known whether the server still answers

    @property
    def is_closing(self) -> bool:
        """Whether it can take no more calls."""
        return self._closing.is_set()

    def close(self, reason: EndReason) -> None:
        """Have it end soon, also where it is not even open."""
        self._reason = self._reason or reason
        self._closing.set()
        if not self.ready.is_set():
            self._scope.cancel()

    # --- open and end

    async def run(self) -> None:
        """Open the server, keep it open until it is to be closed, and leave no process behind."""
        try:
            with self._scope:
                await self._keep_open()
            if self._scope.cancelled_caught and not self.is_closing:
                self.problem = f"did not answer within {_OPEN_S:g} s"
        except Exception as error:  # any error of a server or of the SDK ends this server, not the run
            self.problem = self.problem or f"failed: {self._error_text(error)}"
        finally:
            self._closing.set()
            self._client = None
            self.ready.set()
            self.ended.set()

    async def _keep_open(self) -> None:
        # In a thread: it takes a second, in which a stop or an abort must not have to wait.
        await anyio.to_thread.run_sync(_load_sdk, abandon_on_cancel=True)
        from mcp import Client  # noqa: PLC0415 - loaded by now
        from mcp_types import Implementation  # noqa: PLC0415

        server = self._server
        transport = self._http(server) if isinstance(server, HttpServer) else self._stdio(server)
        self._scope.deadline = anyio.current_time() + _OPEN_S
        client_info = Implementation(name="sidecar", version=__version__)
        async with Client(transport, client_info=client_info, cache=None) as self._client:
            await self._list_tools()
            self._scope.deadline = math.inf
            self.ready.set()
            await self._closing.wait()
            self._scope.deadline = anyio.current_time() + _CLOSE_S

    async def _list_tools(self) -> None:
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

    # --- transports

    @asynccontextmanager
    async def _http(self, server: HttpServer) -> AsyncIterator[TransportStreams]:
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 - loaded by now
        from mcp.shared._httpx_utils import create_mcp_http_client  # noqa: PLC0415

        async with create_mcp_http_client(dict(server.headers)) as client:
            # A tool may be silent for as long as its step may take; only the connection has a timeout of its own.
            client.timeout = (_CONNECT_S, None, _CONNECT_S, _CONNECT_S)
            async with streamable_http_client(server.url, http_client=client) as streams:
                yield streams

    @asynccontextmanager
    async def _stdio(self, server: StdioServer) -> AsyncIterator[TransportStreams]:
        """MCP's stdio transport over a supervised process: each line is a JSON-RPC message."""
        try:
            agent = await self._clients.start_server(server)
        except AgentFailed as error:
            self.problem = f"cannot be started: {error}"
            raise
        subscription = agent.pipes.subscribe(_WAITING_BYTES)
        to_session, incoming = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
        outgoing, from_session = anyio.create_memory_object_stream["SessionMessage"](0)
        try:
            with to_session, incoming, outgoing, from_session:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._read, subscription, to_session)
                    tasks.start_soon(self._write, agent, from_session, to_session)
                    yield incoming, outgoing
                    tasks.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            # The server did not answer in time, or the run is cancelled, which is an abort unless a reason was given.
            self._reason = self._reason or ("timeout" if self._scope.cancel_called else "abort")
            raise
        finally:
            agent.pipes.unsubscribe(subscription)
            with anyio.CancelScope(shield=True):
                self.problem = await self._end_process(agent)

    async def _read(self, subscription: Subscription, to_session: ToSession) -> None:
        # By the end of this stream the session learns that no answer will come any more.
        with to_session:
            try:
                async for output in subscription:
                    for message in self._messages(output):
                        await to_session.send(message)
                    if self._garbled is not None:
                        break
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # the session is gone, or stdin is
                pass
        self._closing.set()

    def _messages(self, output: OutputLines) -> Iterator[SessionMessage]:
        from mcp.shared.message import SessionMessage  # noqa: PLC0415 - loaded by now
        from mcp_types import jsonrpc_message_adapter  # noqa: PLC0415

        if output.dropped:
            self._garbled = "it said more at once than could be taken in"
            return
        for line in output.lines if output.stream == "stdout" else ():
            try:
                yield SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
            except ValueError:  # other output, which the log has, or a message that was cut
                if len(line.encode()) > _LONGEST_LINE_BYTES - _UTF8_BYTES:
                    self._garbled = f"it sent a message of more than {_LONGEST_LINE_BYTES >> 20} MiB"
                    return

    async def _write(self, agent: Agent, from_session: FromSession, to_session: ToSession) -> None:
        async for message in from_session:
            data = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
            if not agent.pipes.write_stdin(data):
                to_session.close()
                self._closing.set()
                return

    async def _end_process(self, agent: Agent) -> str | None:
        """End the process, where it has not ended by itself; why it ended, where that was not requested."""
        ended = None
        if self._reason is None and self._garbled is None:
            # It seems to have ended by itself: then its exit code follows soon.
            with anyio.move_on_after(_EXIT_NEWS_S):
                ended = await agent.wait()
        ended = ended or await agent.end(self._reason or "shutdown")
        if ended.reason == "exited":
            return _exit_text(ended)
        if self._reason is None:
            return f"was ended: {self._garbled or 'it closed its input'}"
        return None

    # --- call

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """The answer of a tool; StepFailed where the tool or the server fails."""
        client = await self._client_with(tool)
        self._calls += 1
        try:
            result = await client.call_tool(tool, arguments)
            if result.is_error:
                text = self._mask.masked_text(text_of(result)) or "it did not say why"
                raise self._failed(f"MCP tool {tool!r} of {self.name!r} failed: {text}", "tool", tool=tool, text=text)
            return value_of(result, self._mask.masked_text)
        except anyio.get_cancelled_exc_class():
            # The server was notified; whether it complies is known only when it answers something else.
            self._in_doubt = True
            raise
        except StepFailed:
            raise
        except Exception as error:  # of the SDK, of the transport, or of validating the answer
            raise await self._call_failed(tool, error) from None
        finally:
            self._calls -= 1

    async def probe(self) -> None:
        """After a call that was given up: check whether the server still answers, and close it where it does not."""
        if not self._in_doubt or self._calls:
            return
        with anyio.move_on_after(_PROBE_S):
            try:
                await self._list_tools()
            except Exception:  # noqa: S110 - whatever the reason, it did not answer
                pass
            else:
                self._in_doubt = False
        if self._in_doubt and not self._calls:
            self.close("stall")

    async def _client_with(self, tool: str) -> Client:
        """The client; StepFailed where the server does not have the tool."""
        try:
            if tool not in self.tools:
                await self._list_tools()  # servers may change their tools while they run
        except Exception as error:
            raise await self._call_failed(tool, error) from None
        if tool not in self.tools:
            raise self._failed(f"MCP server {self.name!r} has no tool {tool!r}; {nearest(tool, self.tools)}", "tool")
        if self._client is None:
            raise self._failed(f"MCP server {self.name!r} {self.problem or 'was closed'}", "server")
        return self._client

    async def _call_failed(self, tool: str, error: Exception) -> StepFailed:
        """The error of a call that the server did not answer, or not as it should."""
        from mcp import MCPError  # noqa: PLC0415 - loaded by now
        from mcp_types import CONNECTION_CLOSED  # noqa: PLC0415

        # Both, because servers use that number for errors of their own.
        if isinstance(error, MCPError) and (error.code, error.message) == (CONNECTION_CLOSED, _CLOSED):
            self._closing.set()
        if self.is_closing:
            # The session only knows that the connection is gone. The reason is known when the process has ended.
            await self.ended.wait()
            why = self.problem or f"was gone: {self._error_text(error)}"
            return self._failed(f"MCP server {self.name!r} {why}", "server", tool=tool)
        self._in_doubt = self._in_doubt or isinstance(error, MCPError)
        message = f"MCP tool {tool!r} of {self.name!r} failed: {self._error_text(error)}"
        return self._failed(message, "protocol", tool=tool)

    def _failed(self, message: str, kind: str, **facts: object) -> StepFailed:
        return StepFailed(self._mask.masked_text(" ".join(message.split())), kind=kind, server=self.name, **facts)

    def _error_text(self, error: BaseException) -> str:
        """One line for an error; of a group, the first that is no group."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return self._mask.masked_text(" ".join(str(error).split()) or type(error).__name__)


def _load_sdk() -> None:
    importlib.import_module("mcp.client.streamable_http")
    for name in ("mcp", "httpx2"):
        # Without any handler, Python itself would print their warnings into the person's terminal.
        logging.getLogger(name).addHandler(_SILENT)


def _exit_text(ended: AgentEnded) -> str:
    """How a process ended by itself, with its last line that is no message."""
    status = ended.exit_code
    if status is None:
        how = "was gone"
    else:
        how = f"ended with exit code {status}" if status >= 0 else f"died of signal {-status}"
    lines = [line.strip() for line in ended.tail.splitlines()]
    words = [line for line in lines if line and not line.startswith("{")]
    return f"{how}: {words[-1][:_LONGEST_QUOTE]}" if words else how


# --- the answer of a tool


def value_of(result: CallToolResult, masked: Callable[[str], str] = str) -> Any:
    """Structured content where there is some; else the text, as JSON where it is JSON; else the blocks as they are.

    A server that wraps its values (`{"result": …}`) is taken at its word. ValueError: the value is no JSON.
    """
    return json.loads(masked(json.dumps(_value(result), allow_nan=False)))


def text_of(result: CallToolResult) -> str:
    """All text of an answer."""
    return "\n".join(block.text for block in result.content if block.type == "text").strip()


def _value(result: CallToolResult) -> Any:
    if result.structured_content is not None:
        return result.structured_content
    blocks = result.content
    if not blocks:
        return None
    texts = [block.text for block in blocks if block.type == "text"]
    if len(texts) == len(blocks):
        return _parsed("\n".join(texts))
    dumped = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in blocks]
    return dumped if len(dumped) > 1 else dumped[0]


def _parsed(text: str) -> Any:
    try:
        # Not the standard library's parser: it takes NaN, and half a surrogate pair, which the journal could not store.
        found = pydantic_core.from_json(text, allow_inf_nan=False)
        json.dumps(found, allow_nan=False)  # 1e999 is read as infinity all the same
    except ValueError:
        return text
    return found
