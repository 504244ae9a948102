"""The MCP server of a project: any number of connections, and both eras of the protocol on each of them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.runner import serve_dual_era_loop
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.types import (
    CancelledNotificationParams,
    EmptyResult,
    JSONRPCError,
    JSONRPCResponse,
    NotificationParams,
    SetLevelRequestParams,
)

from sidecar import __version__
from sidecar.catalog import naming
from sidecar.mcp_server import offers, tools
from sidecar.mcp_server.calls import RunCalls
from sidecar.mcp_server.connections import Connection, Context, HttpConnections, Lists, connection_of
from sidecar.mcp_server.progress import HEARTBEAT_S
from sidecar.mcp_server.streams import MessageStream
from sidecar.model import events as kinds
from sidecar.service.owners import client_lock, in_thread

if TYPE_CHECKING:
    from anyio.abc import ByteReceiveStream, ByteSendStream, TaskGroup
    from mcp.types import (
        CallToolRequestParams,
        CallToolResult,
        CompleteRequestParams,
        CompleteResult,
        GetPromptRequestParams,
        GetPromptResult,
        InputRequiredResult,
        JSONRPCMessage,
        ListPromptsResult,
        ListResourcesResult,
        ListResourceTemplatesResult,
        ListToolsResult,
        PaginatedRequestParams,
        ReadResourceRequestParams,
        ReadResourceResult,
        RequestId,
        SubscribeRequestParams,
        UnsubscribeRequestParams,
    )

    from sidecar.mcp_server.calls import Site
    from sidecar.model.events import RunEvent

INSTRUCTIONS = (
    "Runs AI coding agents and YAML workflows, supervised. `flow` runs a workflow to its end; `workflow_start` and "
    "`workflow_get_next_step` let you carry one out yourself. `abort` ends work now, `stop` at the next boundary."
)
_GATHER_S = 0.2  # changes within this time are announced together
_REPLY_S = 2.0
_CHANGED: dict[Lists, Callable[[], ServerEvent]] = {
    "tools": ToolsListChanged,
    "prompts": PromptsListChanged,
    "resources": ResourcesListChanged,
}
# The catalog is polled: a few dozen `stat`s, late by a second at most, and reliable on any file system.
CATALOG_POLL_S = 1.0
_LISTS: dict[str, set[Lists]] = {"workflows": {"tools"}, "agents": {"tools"}, "prompts": {"tools", "prompts"}}
_SUFFIXES = (".yaml", ".yml", ".md")


@asynccontextmanager
async def serving(
    site: Site, *, heartbeat_s: float = HEARTBEAT_S, catalog_poll_s: float = CATALOG_POLL_S
) -> AsyncIterator[McpServer]:
    """A server, with the tasks that belong to it and not to a connection."""
    async with anyio.create_task_group() as tasks:
        server = McpServer(site, tasks, heartbeat_s)
        tasks.start_soon(server.announce)
        tasks.start_soon(server.watch_catalog, catalog_poll_s)
        try:
            yield server
        finally:
            tasks.cancel_scope.cancel()


class McpServer:
    """The use cases of one project, served. Made by `serving`."""

    def __init__(self, site: Site, tasks: TaskGroup, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._site = site
        # Of calls that may come from an agent that is about to be ended; and of all others, such as those that wait
        # for a run.
        self._urgent_replies, self._other_replies = PendingReplies(), PendingReplies()
        self._calls = RunCalls(site, tasks, self.on_event, heartbeat_s)
        self._connections: set[Connection] = set()
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus)
        self._lists: set[Lists] = set()
        self._resources: set[str] = set()
        self._changed = anyio.Event()
        self._protocol = self._new_protocol()

    async def serve(self, source: ByteReceiveStream, sink: ByteSendStream) -> None:
        """Serve one client over the bytes of the stdio transport, until it goes away."""
        connection = Connection()

        def on_written(message: JSONRPCMessage) -> None:
            if isinstance(message, JSONRPCResponse | JSONRPCError):
                for replies in (self._urgent_replies, self._other_replies):
                    replies.sent((id(connection), message.id))

        messages = MessageStream(source, sink, on_written, connection.ended.set)
        self._connections.add(connection)
        try:
            async with anyio.create_task_group() as tasks:

                async def write() -> None:
                    await messages.write()
                    tasks.cancel_scope.cancel()  # a client that cannot be written to is gone, even if it still sends

                tasks.start_soon(connection.run)
                tasks.start_soon(write)
                await serve_dual_era_loop(self._protocol, messages, messages.outgoing, lifespan_state=connection)
                await messages.finish()
                tasks.cancel_scope.cancel()
        finally:
            self._connections.discard(connection)
            self._calls.open.leave(connection.tokens)
            for replies in (self._urgent_replies, self._other_replies):
                replies.forget(id(connection))

    def http_protocol(self, tasks: TaskGroup) -> Server[Any]:
        """The protocol for the SDK's streamable HTTP, whose connections are requests and sessions, not streams."""

        @asynccontextmanager
        async def lifespan(_: Server[Any]) -> AsyncIterator[HttpConnections]:
            yield HttpConnections(tasks, self._connections)

        return self._new_protocol(lifespan=lifespan)

    def on_event(self, event: RunEvent) -> None:
        """An event of any run of the project: the resources that it changes are announced to their subscribers."""
        if event.kind == kinds.RUN_STARTED:
            self._lists.add("resources")
        self._resources |= offers.changed_resources(event)
        self._changed.set()

    async def wait_urgent_replies(self, within_s: float = _REPLY_S) -> bool:
        """Wait until the replies that an agent has to get before it is ended are written."""
        return await self._urgent_replies.wait_all(within_s)

    async def wait_other_replies(self, within_s: float = _REPLY_S) -> bool:
        """Wait until all other replies are written: for a process that has ended all of its runs."""
        return await self._other_replies.wait_all(within_s)

    async def announce(self) -> None:
        """Announce to clients what changed, until cancelled."""
        while True:
            await self._changed.wait()
            await anyio.sleep(_GATHER_S)
            self._changed = anyio.Event()
            lists, self._lists = self._lists, set()
            changed, self._resources = self._resources, set()
            for connection in list(self._connections):
                connection.announce(lists, changed)
            for name in lists:
                await self._bus.publish(_CHANGED[name]())
            for uri in changed:
                await self._bus.publish(ResourceUpdated(uri))

    async def watch_catalog(self, poll_s: float) -> None:
        """Announce the lists that change because workflows, agents or prompts do, until cancelled."""
        before = _definition_files(self._site.root)
        while True:
            await anyio.sleep(poll_s)
            now = _definition_files(self._site.root)
            changed = {name for kind, lists in _LISTS.items() if now[kind] != before[kind] for name in lists}
            before = now
            if changed:
                self._lists |= changed
                self._changed.set()

    def _new_protocol(self, **more: Any) -> Server[Any]:
        server = _Protocol(
            "sidecar",
            version=__version__,
            title="sidecar",
            instructions=INSTRUCTIONS,
            # Called on the loop, for headers that none of our arguments has: without the names, which are in files.
            get_tool_input_schema=tools.declared_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_resource_templates,
            on_read_resource=self._read_resource,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_subscriptions_listen=self._listen,
            on_completion=self._complete,
            **more,
        )
        server.middleware.clear()  # its tracing is not collected here
        # Registered by method: the constructor's argument for it warns that the stateless era has no such request.
        server.add_request_handler("logging/setLevel", SetLevelRequestParams, self._set_level)
        server.add_notification_handler("notifications/initialized", NotificationParams, self._initialized)
        server.add_notification_handler("notifications/cancelled", CancelledNotificationParams, self._cancelled)
        return server

    async def _list_tools(self, _: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return await in_thread(tools.listed, self._site)

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        key = (id(context.lifespan_context), context.request_id)
        is_urgent = tools.comes_before_an_end(self._site, params.name)
        replies = self._urgent_replies if is_urgent else self._other_replies
        if isinstance(context.lifespan_context, Connection):
            replies.expect(key)
        client_lock.set(connection_of(context).thread_lock)
        try:
            return await tools.call(self._site, self._calls, context, params)
        except BaseException:  # cancelled: there will be no reply
            replies.sent(key)
            raise

    async def _list_prompts(self, _: Context, __: PaginatedRequestParams | None) -> ListPromptsResult:
        return await in_thread(offers.list_prompts, self._site.root)

    async def _get_prompt(self, _: Context, params: GetPromptRequestParams) -> GetPromptResult:
        return await in_thread(offers.get_prompt, self._site.root, params)

    async def _list_resources(self, _: Context, __: PaginatedRequestParams | None) -> ListResourcesResult:
        return await offers.list_resources(self._site.service)

    async def _list_resource_templates(
        self, _: Context, __: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        return offers.list_resource_templates()

    async def _read_resource(self, _: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        return await offers.read_resource(self._site.service, self._site.root, str(params.uri))

    async def _subscribe(self, context: Context, params: SubscribeRequestParams) -> EmptyResult:
        connection_of(context).subscriptions.add(str(params.uri))
        return EmptyResult()

    async def _unsubscribe(self, context: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        connection_of(context).subscriptions.discard(str(params.uri))
        return EmptyResult()

    async def _complete(self, _: Context, params: CompleteRequestParams) -> CompleteResult:
        return await offers.complete(self._site.service, self._site.root, params)

    async def _set_level(self, context: Context, params: SetLevelRequestParams) -> EmptyResult:
        connection_of(context).log_level = params.level
        return EmptyResult()

    async def _initialized(self, context: Context, _: NotificationParams) -> None:
        connection_of(context).session = context.session

    async def _cancelled(self, context: Context, params: CancelledNotificationParams) -> None:
        if params.request_id is not None:
            self._calls.cancel(connection_of(context), params.request_id, params.reason)


class PendingReplies:
    """The calls that have begun and whose reply is not written: an agent that called a tool gets the reply before it
    is ended."""

    def __init__(self) -> None:
        self._pending: set[tuple[int, RequestId | None]] = set()  # the connection, and the request on it
        self._none = anyio.Event()
        self._none.set()

    def expect(self, call: tuple[int, RequestId | None]) -> None:
        """A call has begun."""
        self._pending.add(call)
        if self._none.is_set():
            self._none = anyio.Event()

    def sent(self, call: tuple[int, RequestId | None]) -> None:
        """Its reply is written, or never will be. Ignored for a call that was not expected here."""
        self._pending.discard(call)
        if not self._pending:
            self._none.set()

    def forget(self, connection: int) -> None:
        """A connection is gone: there will be no replies on it."""
        for call in [call for call in self._pending if call[0] == connection]:
            self.sent(call)

    async def wait_all(self, within_s: float) -> bool:
        """Wait until all are written; False where that took too long."""
        with anyio.move_on_after(within_s):
            await self._none.wait()
        return not self._pending


class _Protocol(Server[Any]):
    """The SDK's server, whose handshake promises announcements: its HTTP asks here, and takes no options."""

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *more: Any, **named: Any
    ) -> InitializationOptions:
        return super().create_initialization_options(
            notification_options or NotificationOptions(True, True, True), *more, **named
        )


def _definition_files(root: str) -> dict[str, set[tuple[str, int, int, int]]]:
    """Every file that may be a definition, by kind, with what changes when it does."""
    return {
        kind: {
            file
            # What is built in changes with the program only.
            for _, directory in naming.directories(root, kind)
            for file in _files_in(directory)
        }
        for kind in _LISTS
    }


def _files_in(directory: str) -> list[tuple[str, int, int, int]]:
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if not entry.name.endswith(_SUFFIXES):
                    continue
                try:
                    status = entry.stat()
                except OSError:  # gone meanwhile, or a link to nowhere
                    continue
                found.append((entry.path, status.st_ino, status.st_mtime_ns, status.st_size))
    except OSError:
        pass
    return found
