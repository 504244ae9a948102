"""MCP over streamable HTTP, for clients that cannot start a program."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import h11
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse, Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from sidecar.errors import SidecarError
from sidecar.http_guard import HttpGuard
from sidecar.mcp_server.streams import InvalidMessage, parse
from sidecar.sockets import Acceptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from anyio.abc import TaskStatus
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from sidecar.mcp_server.server import McpServer

    Page = Callable[[], str | None]  # its text now; None: there is no such page now

logger = logging.getLogger("sidecar.mcp")
PATH = "/mcp"
BODY_LIMIT = 4 * 1024 * 1024
MOST_CONNECTIONS = 256
HEADERS_S = 10.0
BODY_S = 60.0
_MOST_SESSIONS = 1024
_SHUTDOWN_S = 2
_SESSION_ID = b"mcp-session-id"


async def listen(
    server: McpServer,
    host: str,
    port: int,
    token: str | None = None,
    pages: Mapping[str, Page] | None = None,
    *,
    task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve at http://HOST:PORT/mcp until cancelled. Reports the port as its task status: a free one for 0. `pages`:
    other texts, by path, with the same guard."""
    guard = HttpGuard(host, token)
    listening = _bind(host, port)
    async with anyio.create_task_group() as tasks:
        mcp = server.http_protocol(tasks).streamable_http_app(
            streamable_http_path=PATH,
            max_request_body_size=BODY_LIMIT,
            max_sessions=_MOST_SESSIONS,
            # The guard checks Host and Origin, in both eras alike.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        config = uvicorn.Config(
            _Application(guard, pages or {}, mcp),
            http=_Protocol,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        web = _Uvicorn(config)
        tasks.start_soon(_shut_down_when_cancelled, web)
        tasks.start_soon(web.accept, listening)
        task_status.started(listening.getsockname()[1])
        try:
            # Shielded: uvicorn ends by itself after `should_exit`, and closes what it opened.
            with anyio.CancelScope(shield=True):
                await web.serve(sockets=[])
        finally:
            listening.close()
            tasks.cancel_scope.cancel()


class _Application:
    """An ASGI application: the guard, some pages, and the SDK's application with what it lacks."""

    def __init__(self, guard: HttpGuard, pages: Mapping[str, Page], mcp: ASGIApp) -> None:
        self._guard = guard
        self._pages = pages
        self._mcp = mcp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._mcp(scope, receive, send)
            return
        refusal = self._guard.refusal(scope["headers"])
        if refusal is not None:
            response = PlainTextResponse(f"{refusal.reason}\n", refusal.status, headers=refusal.headers)
            await response(scope, receive, send)
            return
        page = self._pages.get(scope["path"]) if scope["method"] == "GET" else None
        text = page() if page else None
        if text is not None:
            await PlainTextResponse(text)(scope, receive, send)
        elif scope["method"] == "POST":
            await self._post(scope, receive, send)
        else:
            await self._mcp(scope, receive, send)

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One message. An invalid one is refused here: the SDK never answers a request whose id is invalid."""
        received: deque[Message] = deque()
        body = b""
        more = True
        while more and len(body) <= BODY_LIMIT:  # the SDK refuses a longer one
            received.append(await receive())
            body += received[-1].get("body", b"")
            more = received[-1].get("more_body", False)

        async def replay() -> Message:
            return received.popleft() if received else await receive()

        if not more and received[-1]["type"] == "http.request":
            try:
                parse(body)
            except InvalidMessage as error:
                content = error.response().model_dump_json(by_alias=True, exclude_unset=True)
                await Response(content, 400, media_type="application/json")(scope, receive, send)
                return
        if _SESSION_ID in dict(scope["headers"]):
            await self._mcp(scope, replay, send)
        else:
            await self._open_session(scope, replay, send)

    async def _open_session(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What may be a handshake. The SDK keeps a session even where it refuses one: that session is ended here."""
        session_id, answer, is_complete = b"", bytearray(), False

        async def watch(message: Message) -> None:
            nonlocal session_id, is_complete
            if message["type"] == "http.response.start":
                session_id = dict(message.get("headers", [])).get(_SESSION_ID, b"")
            elif session_id:  # only the answer to `initialize` has it here, and is small
                answer.extend(message.get("body", b""))
                is_complete = not message.get("more_body", False)
                if is_complete and not _has_result(bytes(answer)):
                    await self._end_session(scope, session_id)  # before the client can use it
            await send(message)

        await self._mcp(scope, receive, watch)
        if session_id and not is_complete and not _has_result(bytes(answer)):  # the client hung up
            await self._end_session(scope, session_id)

    async def _end_session(self, scope: Scope, session_id: bytes) -> None:
        """As a client does it."""
        headers = [(name, value) for name, value in scope["headers"] if name == b"mcp-protocol-version"]

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(_: Message) -> None:
            pass

        await self._mcp({**scope, "method": "DELETE", "headers": [*headers, (_SESSION_ID, session_id)]}, receive, send)


def _has_result(stream: bytes) -> bool:
    """Whether the events of an answer have the result of a request."""
    data = (line.removeprefix(b"data:") for line in stream.splitlines() if line.startswith(b"data:"))
    try:
        return any("result" in json.loads(one) for one in data if one.strip())
    except (ValueError, TypeError):
        return False


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers, which are the program's affair, and with a limit of connections.

    asyncio, which it leaves the accepting to, logs 2,048 errors a second when there are no descriptors left.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ready = anyio.Event()
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Of the descriptors that the process may have, some are reserved for runs and their agents.
        self._most = MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, files // 4)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()

    async def accept(self, listening: socket.socket) -> None:
        """Accept connections until cancelled."""
        await self._ready.wait()
        loop = asyncio.get_running_loop()
        acceptor = Acceptor(listening, "HTTP")
        try:
            while True:
                connected = await acceptor.accept()
                if not self._make_room():
                    logger.warning("an HTTP connection was turned away: %d are being served", self._most)
                    connected.close()
                    continue
                connected.setblocking(False)
                try:
                    await loop.connect_accepted_socket(self._new_protocol, connected)
                except OSError:  # gone already
                    connected.close()
        finally:
            acceptor.close()

    def _new_protocol(self) -> _Protocol:
        return _Protocol(self.config, self.server_state, self.lifespan.state)

    def _make_room(self) -> bool:
        """Whether another can be served. The one that was silent the longest is dropped for it: a request that was
        never finished keeps nobody out."""
        if len(self.server_state.connections) < self._most:
            return True
        silent = [one for one in self.server_state.connections if isinstance(one, _Protocol) and one.is_silent]
        if not silent:
            return False
        min(silent, key=lambda one: one.since).drop()
        return True


class _Protocol(H11Protocol):
    """A connection with a deadline for the headers and the body of each request: uvicorn waits for them for ever.

    How long an answer may take is not limited.
    """

    _phase: object = None  # h11's state of the client
    _timer: asyncio.TimerHandle | None = None
    since = 0.0  # when that began

    @property
    def is_silent(self) -> bool:
        """Whether the client has not sent the headers of a request, at all or since the last one."""
        return self._phase is h11.IDLE

    def drop(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)  # `connection_lost` comes later
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        super().connection_lost(exc)

    def _set_deadline(self) -> None:
        """One for each phase, from its beginning: a byte now and then does not move it."""
        phase = self.conn.their_state
        if phase is self._phase or self.transport.is_closing():
            return
        self._phase, self.since = phase, self.loop.time()
        self._clear_deadline()
        within_s = {h11.IDLE: HEADERS_S, h11.SEND_BODY: BODY_S}.get(phase)
        if within_s is not None:
            self._timer = self.loop.call_later(within_s, self.drop)

    def _clear_deadline(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _shut_down_when_cancelled(web: uvicorn.Server) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        web.should_exit = True


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # With the protocol named, asyncio switches Nagle's algorithm off: 45 ms a call otherwise.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(128)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise SidecarError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listening
