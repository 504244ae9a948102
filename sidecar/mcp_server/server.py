"""The server: one for a project, any number of connections, both eras of the protocol on each of them."""

from __future__ import annotations

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
from sidecar.mcp_server import catalog_watch, completion, prompts, resources, tools
from sidecar.mcp_server.calls import RunCalls
from sidecar.mcp_server.connections import Connection, Context, HttpConnections, Lists, connection_of
from sidecar.mcp_server.progress import HEARTBEAT_S
from sidecar.mcp_server.replies import Replies
from sidecar.mcp_server.wire import Wire
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
_CHANGED: dict[Lists, Callable[[], ServerEvent]] = {
    "tools": ToolsListChanged,
    "prompts": PromptsListChanged,
    "resources": ResourcesListChanged,
}


class _Announcing(Server[Any]):
    """Every handshake promises what is announced: the SDK's HTTP asks here for what it says, and takes no options."""

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *more: Any, **named: Any
    ) -> InitializationOptions:
        return super().create_initialization_options(
            notification_options or NotificationOptions(True, True, True), *more, **named
        )


class McpServer:
    """The use cases of one project, served. Get one from `serving`."""

    def __init__(self, site: Site, tasks: TaskGroup, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._site = site
        self._replies = Replies()  # of calls that may be those of an agent that is about to be ended
        self._results = Replies()  # of all others, above all of those that wait for a run
        self._runs = RunCalls(site, tasks, self.on_event, heartbeat_s)
        self._everybody: set[Connection] = set()
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus)
        self._lists: set[Lists] = set()
        self._updated: set[str] = set()
        self._news = anyio.Event()
        self._duplex = self._protocol()

    async def serve(self, source: ByteReceiveStream, sink: ByteSendStream) -> None:
        """Serve one client over the bytes of the stdio transport, until it goes away."""
        connection = Connection()

        def written(message: JSONRPCMessage) -> None:
            if isinstance(message, JSONRPCResponse | JSONRPCError):
                for owed in (self._replies, self._results):
                    owed.settle((id(connection), message.id))

        wire = Wire(source, sink, written, connection.ended.set)
        self._everybody.add(connection)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(connection.run)
                tasks.start_soon(self._write, wire, tasks.cancel_scope)
                await serve_dual_era_loop(self._duplex, wire.incoming, wire.outgoing, lifespan_state=connection)
                await wire.finish()
                tasks.cancel_scope.cancel()
        finally:
            self._everybody.discard(connection)
            self._runs.open.leave(connection.tokens)
            for owed in (self._replies, self._results):
                owed.forget(id(connection))

    def http_protocol(self, tasks: TaskGroup) -> Server[Any]:
        """The protocol for the SDK's streamable HTTP, whose connections are requests and sessions, not streams."""

        @asynccontextmanager
        async def lifespan(_: Server[Any]) -> AsyncIterator[HttpConnections]:
            yield HttpConnections(tasks, self._everybody)

        return self._protocol(lifespan=lifespan)

    def on_event(self, event: RunEvent) -> None:
        """An event of any run of the project: who subscribed to its resources hears that they changed."""
        if event.kind == kinds.RUN_STARTED:
            self._lists.add("resources")
        self._updated |= resources.changed_by(event)
        self._news.set()

    def changed(self, lists: set[Lists]) -> None:
        """These lists are different now."""
        self._lists |= lists
        self._news.set()

    async def replies_out(self, within_s: float = 2.0) -> bool:
        """Wait until the replies that an agent has to get before it is ended are written."""
        return await self._replies.out(within_s)

    async def results_out(self, within_s: float = 2.0) -> bool:
        """Wait until all other replies are written, too: for a process that has ended all of its runs."""
        return await self._results.out(within_s)

    async def announce(self) -> None:
        """Tell clients what changed, until cancelled; what changes often is told now and then."""
        while True:
            await self._news.wait()
            await anyio.sleep(_GATHER_S)
            self._news = anyio.Event()
            lists, self._lists = self._lists, set()
            updated, self._updated = self._updated, set()
            for connection in list(self._everybody):
                connection.announce(lists, updated)
            for name in lists:
                await self._bus.publish(_CHANGED[name]())
            for uri in updated:
                await self._bus.publish(ResourceUpdated(uri))

    async def _write(self, wire: Wire, scope: anyio.CancelScope) -> None:
        """A client that takes nothing any more is gone, even if it still sends."""
        await wire.write()
        scope.cancel()

    def _protocol(self, **more: Any) -> Server[Any]:
        server = _Announcing(
            "sidecar",
            version=__version__,
            title="sidecar",
            instructions=INSTRUCTIONS,
            # Asked on the loop, for headers that no argument of ours has: without the names, which are in files.
            get_tool_input_schema=tools.declared_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_subscriptions_listen=self._listen,
            on_completion=self._complete,
            **more,
        )
        server.middleware.clear()  # tracing that nobody collects here
        # Registered by method: the constructor's argument for it warns that the stateless era has no such request.
        server.add_request_handler("logging/setLevel", SetLevelRequestParams, self._set_level)
        server.add_notification_handler("notifications/initialized", NotificationParams, self._initialized)
        server.add_notification_handler("notifications/cancelled", CancelledNotificationParams, self._cancelled)
        return server

    async def _list_tools(self, _: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return await in_thread(tools.listed, self._site)

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        key = (id(context.lifespan_context), context.request_id)
        owed = self._replies if tools.comes_before_an_end(self._site, params.name) else self._results
        if isinstance(context.lifespan_context, Connection):
            owed.owe(key)
        client_lock.set(connection_of(context).turn)
        try:
            return await tools.call(self._site, self._runs, context, params)
        except BaseException:  # cancelled: there will be no reply
            owed.settle(key)
            raise

    async def _list_prompts(self, _: Context, __: PaginatedRequestParams | None) -> ListPromptsResult:
        return await in_thread(prompts.listed, self._site.root)

    async def _get_prompt(self, _: Context, params: GetPromptRequestParams) -> GetPromptResult:
        return await in_thread(prompts.rendered, self._site.root, params)

    async def _list_resources(self, _: Context, __: PaginatedRequestParams | None) -> ListResourcesResult:
        return await resources.listed(self._site)

    async def _list_templates(self, _: Context, __: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        return resources.templates()

    async def _read_resource(self, _: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        return await resources.read(self._site, str(params.uri))

    async def _subscribe(self, context: Context, params: SubscribeRequestParams) -> EmptyResult:
        connection_of(context).subscriptions.add(str(params.uri))
        return EmptyResult()

    async def _unsubscribe(self, context: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        connection_of(context).subscriptions.discard(str(params.uri))
        return EmptyResult()

    async def _complete(self, _: Context, params: CompleteRequestParams) -> CompleteResult:
        return await completion.complete(self._site, params)

    async def _set_level(self, context: Context, params: SetLevelRequestParams) -> EmptyResult:
        connection_of(context).set_level(params.level)
        return EmptyResult()

    async def _initialized(self, context: Context, _: NotificationParams) -> None:
        connection_of(context).session = context.session

    async def _cancelled(self, context: Context, params: CancelledNotificationParams) -> None:
        if params.request_id is not None:
            self._runs.cancel(connection_of(context), params.request_id, params.reason)


@asynccontextmanager
async def serving(
    site: Site, *, heartbeat_s: float = HEARTBEAT_S, look_every_s: float = catalog_watch.TICK_S
) -> AsyncIterator[McpServer]:
    """A server, with the tasks that belong to it and to no connection."""
    async with anyio.create_task_group() as tasks:
        server = McpServer(site, tasks, heartbeat_s)
        tasks.start_soon(server.announce)
        tasks.start_soon(catalog_watch.watch, site.root, server.changed, look_every_s)
        try:
            yield server
        finally:
            tasks.cancel_scope.cancel()
