"""The MCP servers that a run has open: opened for the first call that needs them, kept, opened again when they died."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import anyio

from sidecar.engine.mcp_client.connection import Connection, Opening
from sidecar.engine.mcp_client.servers import PROJECT_FILE, Servers, nearest
from sidecar.errors import ConfigError, StepFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from sidecar.agents.agent import Agent
    from sidecar.agents.launch import Launch
    from sidecar.config import Settings
    from sidecar.model.agent import EndReason


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
