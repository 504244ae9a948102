"""What is remembered of one client: the runs it started, what it wants to hear, and what is still to be announced."""

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
    """One client. `session` is there in the handshake era only: what is announced goes through it."""

    calls: dict[RequestId, Any] = field(default_factory=dict)  # `calls.Call`
    tokens: set[str] = field(default_factory=set)  # of questions that the client was handed to answer
    subscriptions: set[str] = field(default_factory=set)
    session: ServerSession | None = None
    turn: anyio.Lock = field(default_factory=anyio.Lock)  # for a thread: a client has one at a time
    ended: anyio.Event = field(default_factory=anyio.Event)  # it will send nothing more, no answer of a person either
    _level: str = "info"
    _lists: set[Lists] = field(default_factory=set)
    _resources: set[str] = field(default_factory=set)
    _news: anyio.Event = field(default_factory=anyio.Event)

    def set_level(self, level: str) -> None:
        """From now on, only messages of this level or a graver one."""
        self._level = level

    def wants_log(self, level: str, context: Context) -> bool:
        """Whether a message of this level may be sent for this request. The stateless era asks in each request."""
        asked = self._level if self.session is not None else (context.meta or {}).get(LOG_LEVEL_META_KEY)
        return asked in _LEVELS and _LEVELS.index(level) >= _LEVELS.index(str(asked))

    def announce(self, lists: set[Lists], resources: set[str]) -> None:
        """Tell the client that these changed, sometime soon. What it has not heard yet is told once, not often."""
        if self.session is not None:
            self._lists |= lists
            self._resources |= resources & self.subscriptions
            self._news.set()

    async def run(self) -> None:
        """Announce until cancelled, at the client's pace: one that does not read holds up nobody else."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            session = self.session
            while session is not None and (self._lists or self._resources):
                if self._lists:
                    await _announce(session, self._lists.pop())
                else:
                    await session.send_resource_updated(self._resources.pop())


async def _announce(session: ServerSession, changed: Lists) -> None:
    if changed == "tools":
        await session.send_tool_list_changed()
    elif changed == "prompts":
        await session.send_prompt_list_changed()
    else:
        await session.send_resource_list_changed()


class HttpConnections:
    """The clients behind one HTTP endpoint: sessions of the handshake era by their id, and all others."""

    def __init__(self, tasks: TaskGroup, everybody: set[Connection]) -> None:
        self._tasks = tasks
        self._everybody = everybody
        self._sessions: OrderedDict[str, tuple[Connection, anyio.CancelScope]] = OrderedDict()

    def of(self, session_id: str | None) -> Connection:
        """Whoever sends this; a stateless request is a client of its own."""
        if session_id is None:
            return Connection()
        if session_id not in self._sessions:
            connection, scope = Connection(), anyio.CancelScope()
            self._sessions[session_id] = (connection, scope)
            self._everybody.add(connection)
            self._tasks.start_soon(self._run, connection, scope)
            # Nobody says when a session ends, so the one that was silent the longest makes room.
            while len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)[1][1].cancel()
        self._sessions.move_to_end(session_id)
        return self._sessions[session_id][0]

    async def _run(self, connection: Connection, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await connection.run()
        finally:
            self._everybody.discard(connection)


Context = ServerRequestContext[Connection | HttpConnections, Any]


def connection_of(context: Context) -> Connection:
    """The client that a request or a notification comes from."""
    place = context.lifespan_context
    if isinstance(place, Connection):
        return place
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return place.of(None)  # whatever its headers say: that era has no sessions
    headers = getattr(context.request, "headers", {})
    return place.of(headers.get("mcp-session-id"))
