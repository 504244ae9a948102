"""Streamable HTTP: for clients that cannot start a program. Loopback, or a token; and no page of a browser gets in."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import re
import resource
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import h11
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse, Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from sidecar.errors import ConfigError, SidecarError
from sidecar.mcp_server import wire
from sidecar.sockets import Acceptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from anyio.abc import TaskStatus
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from sidecar.mcp_server.server import McpServer

    Page = Callable[[], str | None]  # its text, as it is now; None: there is no such page now

logger = logging.getLogger(__name__)
PATH = "/mcp"
BODY_LIMIT = 4 * 1024 * 1024
MOST_CONNECTIONS = 256
HEADERS_S = 10.0
BODY_S = 60.0
_MOST_SESSIONS = 1024
_SHUTDOWN_S = 2
_SESSION_ID = b"mcp-session-id"
_AUTHORITY = re.compile(r"(?:\[(?P<address>[0-9a-f]*:[0-9a-f:.]*)\]|(?P<name>[^\[\]:]+))(?::[0-9]{1,5})?")


async def listen(
    server: McpServer,
    host: str,
    port: int,
    token: str | None = None,
    pages: Mapping[str, Page] | None = None,
    *,
    task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve at http://HOST:PORT/mcp until cancelled; tells the port, which is a free one for 0. `pages`: texts to be
    had there besides, by path, behind the same door."""
    if token is None and not is_loopback(host):
        raise ConfigError(f"HTTP on {host} needs a token: set http_token, or listen on 127.0.0.1")
    listening = _bound(host, port)
    actual = listening.getsockname()[1]
    async with anyio.create_task_group() as tasks:
        app = server.http_protocol(tasks).streamable_http_app(
            streamable_http_path=PATH,
            max_request_body_size=BODY_LIMIT,
            max_sessions=_MOST_SESSIONS,
            # `Guard` looks at Host and Origin, for both eras alike.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        config = uvicorn.Config(
            Guard(_Beside(_Established(_Messages(app)), pages or {}), host, token),
            http=_Protocol,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        web = _Uvicorn(config)
        tasks.start_soon(_until_cancelled, web)
        tasks.start_soon(web.accept, listening)
        task_status.started(actual)
        try:
            # Shielded: uvicorn ends by itself once it is told to, and closes what it opened.
            with anyio.CancelScope(shield=True):
                await web.serve(sockets=[])
        finally:
            listening.close()
            tasks.cancel_scope.cancel()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    name = host.strip("[]")
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers, which are the program's affair, and with an end to how many may connect.

    asyncio, which it leaves the accepting to, logs 2,048 errors a second when there are no descriptors left.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ready = anyio.Event()
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Of the descriptors that the process may have, some are left for runs and their agents.
        self._most = MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, files // 4)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()

    async def accept(self, listening: socket.socket) -> None:
        """Take connections until cancelled."""
        await self._ready.wait()
        loop = asyncio.get_running_loop()
        acceptor = Acceptor(listening, "HTTP")
        try:
            while True:
                connected = await acceptor.accept()
                if not self._has_room():
                    logger.warning("an HTTP connection was turned away: %d are being served", self._most)
                    connected.close()
                    continue
                connected.setblocking(False)
                try:
                    await loop.connect_accepted_socket(self._protocol, connected)
                except OSError:  # gone already
                    connected.close()
        finally:
            acceptor.close()

    def _protocol(self) -> _Protocol:
        return _Protocol(self.config, self.server_state, self.lifespan.state)

    def _has_room(self) -> bool:
        """Who has been silent for the longest makes room: a request that was never finished keeps nobody out."""
        if len(self.server_state.connections) < self._most:
            return True
        silent = [one for one in self.server_state.connections if isinstance(one, _Protocol) and one.is_silent]
        if not silent:
            return False
        min(silent, key=lambda one: one.since).end()
        return True


class _Protocol(H11Protocol):
    """A connection that has to send its requests in time: uvicorn itself waits for the rest of one as long as it takes.

    Nothing limits how long an answer may take.
    """

    _phase: object = None  # h11's word for what the client is doing
    _timer: asyncio.TimerHandle | None = None
    since = 0.0  # when that began

    @property
    def is_silent(self) -> bool:
        """Whether it has not sent the headers of a request, at all or since the last one."""
        return self._phase is h11.IDLE

    def end(self) -> None:
        """Drop the connection."""
        self.connections.discard(self)  # at once: the loop tells of the end later
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._follow()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _follow(self) -> None:
        """A deadline for each phase, from its beginning: a byte now and then does not move it."""
        phase = self.conn.their_state
        if phase is self._phase or self.transport.is_closing():
            return
        self._phase, self.since = phase, self.loop.time()
        self._disarm()
        within_s = {h11.IDLE: HEADERS_S, h11.SEND_BODY: BODY_S}.get(phase)
        if within_s is not None:
            self._timer = self.loop.call_later(within_s, self.end)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Guard:
    """Lets in who calls the server by its own name, comes from no other page, and has the token where there is one."""

    def __init__(self, app: ASGIApp, host: str, token: str | None) -> None:
        self._app = app
        self._names = {"localhost", "127.0.0.1", "::1", host.strip("[]").lower(), socket.gethostname().lower()}
        # A server on every address cannot know them all. An address is as good as a name here: what is kept out is
        # a foreign name that was made to lead to this machine.
        self._any_address = host in ("0.0.0.0", "::")  # noqa: S104 - nothing is bound here
        self._expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application around another."""
        refusal = self._refusal(scope["headers"]) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> PlainTextResponse | None:
        given: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            given.setdefault(name, []).append(value)
        host = _only(given.get(b"host"))
        if host is None or not self._is_ours(_name_in(host)):
            return _refused(421, "this server has another name")
        origins = given.get(b"origin", [])
        if any(origin.lower() not in (f"http://{host}", f"https://{host}") for origin in map(_text, origins)):
            return _refused(403, "no page from elsewhere may call this server")
        # In constant time: how long a refusal takes must not tell how much of the token was right.
        token = given.get(b"authorization", [b""])
        if self._expected is not None and not (len(token) == 1 and hmac.compare_digest(token[0], self._expected)):
            return _refused(401, "a token is needed", {"WWW-Authenticate": "Bearer"})
        return None

    def _is_ours(self, name: str | None) -> bool:
        return name is not None and (name in self._names or (self._any_address and _is_address(name)))


def _refused(status: int, why: str, headers: Mapping[str, str] | None = None) -> PlainTextResponse:
    """Whoever is refused does not keep a connection."""
    return PlainTextResponse(f"{why}\n", status, headers={**(headers or {}), "Connection": "close"})


class _Established:
    """An application that keeps no session for a handshake that it refused, as the SDK does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        opens = scope["type"] == "http" and scope["method"] == "POST" and _SESSION_ID not in dict(scope["headers"])
        if not opens:
            await self._app(scope, receive, send)
            return
        session_id, told, is_over = b"", bytearray(), False

        async def watch(message: Message) -> None:
            nonlocal session_id, is_over
            if message["type"] == "http.response.start":
                session_id = dict(message.get("headers", [])).get(_SESSION_ID, b"")
            elif session_id:  # only the answer to `initialize` has it here, and is small
                told.extend(message.get("body", b""))
                is_over = not message.get("more_body", False)
                if is_over and not _is_accepted(bytes(told)):
                    await self._end(scope, session_id)  # before the answer is over, so that nobody calls it meanwhile
            await send(message)

        await self._app(scope, receive, watch)
        if session_id and not is_over and not _is_accepted(bytes(told)):  # the client hung up
            await self._end(scope, session_id)

    async def _end(self, scope: Scope, session_id: bytes) -> None:
        """As a client ends its session."""
        headers = [(name, value) for name, value in scope["headers"] if name == b"mcp-protocol-version"]

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(_: Message) -> None:
            pass

        await self._app({**scope, "method": "DELETE", "headers": [*headers, (_SESSION_ID, session_id)]}, receive, send)


def _is_accepted(stream: bytes) -> bool:
    """Whether the events of an answer have the result of a request."""
    data = (line.removeprefix(b"data:") for line in stream.splitlines() if line.startswith(b"data:"))
    try:
        return any("result" in json.loads(one) for one in data if one.strip())
    except (ValueError, TypeError):
        return False


class _Messages:
    """An application that gets messages only: the SDK accepts a request whose id nobody can use, and never answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        parts: list[Message] = []
        body = b""
        more = True
        while more and len(body) <= BODY_LIMIT:  # beyond it the application refuses
            parts.append(await receive())
            body += parts[-1].get("body", b"")
            more = parts[-1].get("more_body", False)
        parts.reverse()

        async def replay() -> Message:
            return parts.pop() if parts else await receive()

        if not more and parts[0]["type"] == "http.request":
            try:
                wire.parse(body)
            except wire.NotAMessage as error:
                told = error.answer().model_dump_json(by_alias=True, exclude_unset=True)
                await Response(told, 400, media_type="application/json")(scope, receive, send)
                return
        await self._app(scope, replay, send)


class _Beside:
    """An application, and some pages that it knows nothing of."""

    def __init__(self, app: ASGIApp, pages: Mapping[str, Page]) -> None:
        self._app = app
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        page = self._pages.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        text = page() if page else None
        await (self._app if text is None else PlainTextResponse(text))(scope, receive, send)


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _only(values: list[bytes] | None) -> str | None:
    return _text(values[0]).lower() if values is not None and len(values) == 1 else None


def _name_in(authority: str) -> str | None:
    """The host in `host:port`, without the brackets of an IPv6 address; None where it is neither with nor without."""
    found = _AUTHORITY.fullmatch(authority)
    return found and (found["address"] or found["name"])


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _until_cancelled(web: uvicorn.Server) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        web.should_exit = True


def _bound(host: str, port: int) -> socket.socket:
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
