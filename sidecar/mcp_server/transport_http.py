"""Streamable HTTP: for clients that cannot start a program. Loopback, or a token; and no page of a browser gets in."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse

from sidecar.errors import ConfigError, SidecarError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from anyio.abc import TaskStatus
    from starlette.types import ASGIApp, Receive, Scope, Send

    from sidecar.mcp_server.server import McpServer

    Page = Callable[[], str | None]  # its text, as it is now; None: there is no such page now

PATH = "/mcp"
BODY_LIMIT = 4 * 1024 * 1024
_SHUTDOWN_S = 2


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
            # `Guard` looks at Host and Origin, for both eras alike.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        config = uvicorn.Config(
            Guard(_Beside(app, pages) if pages else app, host, token),
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        web = _Uvicorn(config)
        tasks.start_soon(_until_cancelled, web)
        task_status.started(actual)
        try:
            # Shielded: uvicorn ends by itself once it is told to, and closes what it opened.
            with anyio.CancelScope(shield=True):
                await web.serve(sockets=[listening])
        finally:
            listening.close()
            tasks.cancel_scope.cancel()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    name = host.strip("[]")
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: signals are the program's affair."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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
            return PlainTextResponse("this server has another name\n", 421)
        origins = given.get(b"origin", [])
        if any(origin.lower() not in (f"http://{host}", f"https://{host}") for origin in map(_text, origins)):
            return PlainTextResponse("no page from elsewhere may call this server\n", 403)
        # In constant time: how long a refusal takes must not tell how much of the token was right.
        token = given.get(b"authorization", [b""])
        if self._expected is not None and not (len(token) == 1 and hmac.compare_digest(token[0], self._expected)):
            return PlainTextResponse("a token is needed\n", 401, headers={"WWW-Authenticate": "Bearer"})
        return None

    def _is_ours(self, name: str) -> bool:
        return name in self._names or (self._any_address and _is_address(name))


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


def _name_in(authority: str) -> str:
    """The host in `host:port`, without the brackets of an IPv6 address."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


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
