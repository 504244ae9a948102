"""The clients of a server: what each has started and subscribed to, and the announcements it has not got yet."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import anyio
from mcp.server.context import ServerRequestContext
from mcp.types import LOG_LEVEL_META_KEY, LoggingLevel, RequestId
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from mcp.server.session import ServerSession

Lists = Literal["tools", "prompts", "resources"]
_LEVELS: tuple[str, ...] = get_args(LoggingLevel)
_MOST_SESSIONS = 1024


@dataclass(eq=False, slots=True)
class Connection:
    """One client. `session` exists in the handshake era only: announcements go through it."""

    calls: dict[RequestId, Any] = field(default_factory=dict)  # `calls.Call`
    tokens: set[str] = field(default_factory=set)  # of questions that the client was handed to answer
    subscriptions: set[str] = field(default_factory=set)
    session: ServerSession | None = None
    thread_lock: anyio.Lock = field(default_factory=anyio.Lock)  # a client uses one thread at a time
    ended: anyio.Event = field(default_factory=anyio.Event)  # it will send nothing more, no person's answer either
    log_level: str = "info"
    _lists: set[Lists] = field(default_factory=set)
    _resources: set[str] = field(default_factory=set)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def wants_log(self, level: str, context: Context) -> bool:
        """Whether this request may be sent a message of this level. The stateless era asks in each request."""
        lowest = self.log_level if self.session is not None else (context.meta or {}).get(LOG_LEVEL_META_KEY)
        return lowest in _LEVELS and _LEVELS.index(level) >= _LEVELS.index(str(lowest))

    def announce(self, lists: set[Lists], resources: set[str]) -> None:
        """Announce soon that these changed. What changes again before that is announced once."""
        if self.session is not None:
            self._lists |= lists
            self._resources |= resources & self.subscriptions
            self._changed.set()

    async def run(self) -> None:
        """Send announcements until cancelled, at this client's pace: one that does not read delays no other."""
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            session = self.session
            while session is not None and (self._lists or self._resources):
                if self._lists:
                    send = {
                        "tools": session.send_tool_list_changed,
                        "prompts": session.send_prompt_list_changed,
                        "resources": session.send_resource_list_changed,
                    }
                    await send[self._lists.pop()]()
                else:
                    await session.send_resource_updated(self._resources.pop())


class HttpConnections:
    """The clients of one HTTP endpoint: sessions of the handshake era by their id, and all others."""

    def __init__(self, tasks: TaskGroup, connections: set[Connection]) -> None:
        self._tasks = tasks
        self._connections = connections  # of the server
        self._sessions: OrderedDict[str, tuple[Connection, anyio.CancelScope]] = OrderedDict()

    def get(self, session_id: str | None) -> Connection:
        """The client of a session; without one, each request is a client of its own."""
        if session_id is None:
            return Connection()
        if session_id not in self._sessions:
            connection, scope = Connection(), anyio.CancelScope()
            self._sessions[session_id] = (connection, scope)
            self._connections.add(connection)
            self._tasks.start_soon(self._run, connection, scope)
            # The end of a session is not announced, so the one that was silent the longest makes room.
            while len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)[1][1].cancel()
        self._sessions.move_to_end(session_id)
        return self._sessions[session_id][0]

    async def _run(self, connection: Connection, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await connection.run()
        finally:
            self._connections.discard(connection)


Context = ServerRequestContext[Connection | HttpConnections, Any]


def connection_of(context: Context) -> Connection:
    """The client that a request or a notification comes from."""
    connections = context.lifespan_context
    if isinstance(connections, Connection):
        return connections
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return connections.get(None)  # whatever its headers say: that era has no sessions
    headers = getattr(context.request, "headers", {})
    return connections.get(headers.get("mcp-session-id"))
