"""Calls that start a run: attending to it until it is over or asks something, telling its progress meanwhile."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp.types import (
    ElicitResult,
    InputRequiredResult,
    LoggingLevel,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    ProgressNotification,
    ProgressNotificationParams,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from sidecar.catalog import workflows
from sidecar.errors import REPORTED, SidecarError
from sidecar.mcp_server import elicitation, listing
from sidecar.mcp_server.calls import Call, OpenCalls, Question, run_of
from sidecar.mcp_server.connections import connection_of
from sidecar.mcp_server.progress import HEARTBEAT_S, Note, Plan, Sender, Story, sending
from sidecar.service.owners import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskGroup
    from mcp.types import CallToolRequestParams

    from sidecar.mcp_server.connections import Connection, Context
    from sidecar.mcp_server.listing import Kind
    from sidecar.mcp_server.port import Ask, Json, Tell
    from sidecar.mcp_server.tool import Site
    from sidecar.model.events import RunEvent

LOGGER = "sidecar.run"


class Runs:
    """Starts runs for clients, in the server's scope, and attends to them in the requests'."""

    def __init__(
        self, site: Site, tasks: TaskGroup, heard: Callable[[RunEvent], None], heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self._site = site
        self._tasks = tasks
        self._heard = heard
        self._heartbeat_s = heartbeat_s
        self.open = OpenCalls()

    async def call(
        self, kind: Kind, given: dict[str, Any], context: Context, params: CallToolRequestParams
    ) -> Json | InputRequiredResult:
        """What became of the run, or what the client has to ask its person first."""
        connection = connection_of(context)
        if params.request_state is not None:
            call = self.open.take(params.request_state)
            connection.tokens.discard(params.request_state)
            answer = _answer_in(params)
            if call is None:
                return await self._answer_late(params.request_state, answer)
            if call.question is not None:
                call.question.give(answer)
        else:
            call = await self._start(kind, given, context)
        return await self._attend(call, given, context, connection)

    def cancel(self, connection: Connection, request_id: Any, reason: str | None) -> None:
        """The client took a request back: the run that it started is aborted, unless it was to live on its own."""
        call = connection.calls.pop(request_id, None)
        if call is not None and not call.detached:
            why = f"cancelled by the client: {reason}" if reason else "cancelled by the client"
            # In the server's scope: the client may be gone before the abort is written.
            self._tasks.start_soon(call.abort, self._site.service.abort, why)

    async def _start(self, kind: Kind, given: dict[str, Any], context: Context) -> Call:
        name = listing.meant(given[f"{kind}_name"])
        parameters = given.get("parameters", {})
        plan = await in_thread(self._looked, kind, given[f"{kind}_name"], parameters)
        detached = given.get("detach", False)
        call = Call(Story(plan), detached=detached, heard=self._heard)
        interactive = given.get("interactive", False)
        asks = interactive and not detached and elicitation.offered(context.session.client_capabilities)
        service = self._site.service
        launch = {"flow": service.flow, "agent": service.agent, "prompt": service.prompt}[kind]

        async def begin(tell: Tell, ask: Ask) -> Json:
            return await launch(
                name,
                parameters,
                format=given.get("format", "json"),
                verbose=given.get("verbose", False),
                interactive=interactive,
                dry_run=given.get("dry_run", False),
                quiet=given.get("quiet", False),
                workspace=given.get("workspace"),
                detach=detached,
                tell=tell,
                ask=ask if asks else None,
            )

        self._tasks.start_soon(call.perform, begin)
        return call

    async def _attend(
        self, call: Call, given: dict[str, Any], context: Context, connection: Connection
    ) -> Json | InputRequiredResult:
        request_id = context.request_id
        # Kept when this request is cancelled, and only then: the notification that says who cancelled comes after.
        if request_id is not None:
            connection.calls[request_id] = call
        try:
            async with anyio.create_task_group() as tasks:
                sender = self._sender(call, given, context, connection)
                call.sender = sender
                if sender is not None:
                    tasks.start_soon(sender.run)
                to_ask = await self._turns(call, context, connection)
                if sender is not None:
                    await sender.flush()
                tasks.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            call.left()
            raise
        finally:
            call.sender = None
        if request_id is not None:
            connection.calls.pop(request_id, None)
        if to_ask is None and call.error is not None:
            raise call.error
        return to_ask or call.result or {}

    async def _turns(self, call: Call, context: Context, connection: Connection) -> InputRequiredResult | None:
        """None: the run is over."""
        while (question := await call.turn()) is not None:
            if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
                token = self.open.keep(call)
                connection.tokens.add(token)
                request = elicitation.form(question.question, question.problem)
                return InputRequiredResult(input_requests={elicitation.FIELD: request}, request_state=token)
            question.give(await _elicited(question, context, connection.ended))
        return None

    def _sender(self, call: Call, given: dict[str, Any], context: Context, connection: Connection) -> Sender | None:
        token = (context.meta or {}).get("progress_token")
        progress = None if token is None else partial(_send_progress, context, token)
        log = partial(_send_log, context, connection) if connection.wants_log("emergency", context) else None
        send = sending(progress, log)
        if send is None:
            return None
        return Sender(call.story, send, quiet=given.get("quiet", False), heartbeat_s=self._heartbeat_s)

    async def _answer_late(self, token: str, answer: str | None) -> Json:
        """The question was asked by a server that is no more, or was given up: the run itself may still wait."""
        run_id = run_of(token)
        if run_id is None or answer is None:
            raise SidecarError("this question is not open any more; workflow_status tells how the run stands")
        return await self._site.service.answer(run_id, answer)

    def _looked(self, kind: Kind, given: str, parameters: Json) -> Plan:
        """What a run will go through, where that is known beforehand; an error where nothing has that name."""
        name = listing.meant(given)
        if given not in listing.names(self._site.root, kind):
            listing.check_name(self._site.root, kind, name)
        states: dict[str, str] = {}
        if kind == "flow":
            try:
                definition = workflows.find(self._site.root, name)
            except REPORTED:  # the use case says what is wrong with it
                return Plan(name, parameters, states)
            states = {step.id: step.description or "" for step in definition.workflow.steps or ()}
        return Plan(name, parameters, states)


async def _elicited(question: Question, context: Context, ended: anyio.Event) -> str | None:
    """The person's answer. None: there is none, and the run pauses until somebody answers it another way."""
    params = elicitation.form(question.question, question.problem).params
    assert params.mode == "form"
    answer: str | None = None

    async def give_up() -> None:
        await ended.wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(give_up)
        try:
            result = await context.session.elicit_form(params.message, params.requested_schema, context.request_id)
            answer = elicitation.text(result)
        except MCPError:  # the client cannot after all
            pass
        tasks.cancel_scope.cancel()
    return answer


def _answer_in(params: CallToolRequestParams) -> str | None:
    response = (params.input_responses or {}).get(elicitation.FIELD)
    return elicitation.text(response) if isinstance(response, ElicitResult) else None


async def _send_progress(context: Context, token: str | int, note: Note) -> None:
    params = ProgressNotificationParams(
        progress_token=token, progress=note.progress, total=100.0, message=note.message, _meta=note.metadata
    )
    await context.session.send_notification(ProgressNotification(params=params), context.request_id)


async def _send_log(context: Context, connection: Connection, note: Note) -> None:
    level: LoggingLevel = "error" if note.failed else "info"
    if note.kind == "heartbeat" or not connection.wants_log(level, context):
        return
    data = {"message": note.message, "progress": note.progress, **note.metadata}
    params = LoggingMessageNotificationParams(level=level, logger=LOGGER, data=data)
    await context.session.send_notification(LoggingMessageNotification(params=params), context.request_id)
