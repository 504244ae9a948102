"""Calls that start a run: the run outlives the request and the connection; a request only waits for it.

While it waits, it sends progress, and the run's questions to the person at the client. In the stateless era the answer
comes with a later request, which finds the call again by a token.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp.types import (
    ClientCapabilities,
    ElicitRequest,
    ElicitRequestFormParams,
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
from sidecar.mcp_server import offers
from sidecar.mcp_server.connections import connection_of
from sidecar.mcp_server.progress import HEARTBEAT_S, ExpectedSteps, ProgressNote, ProgressSender, RunProgress
from sidecar.model import ulid
from sidecar.model.events import RunEvent
from sidecar.service.owners import in_thread

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from mcp.types import CallToolRequestParams

    from sidecar.mcp_server.connections import Connection, Context
    from sidecar.mcp_server.offers import Kind
    from sidecar.service.driving import Driving

Json = dict[str, Any]
# Called on the event loop, and never slow: what a run emits must not wait for a client.
OnEvent = Callable[[RunEvent], None]
# Asks the person at the client: the question, and what was wrong with the last answer. None where the person does not
# answer: the run then pauses.
Ask = Callable[[Json, str | None], Awaitable[str | None]]
logger = logging.getLogger("sidecar.mcp")
LOGGER = "sidecar.run"
ANSWER_WITHIN_S = 3600.0  # a person who has not answered by then is not there: the run pauses
FIELD = "answer"
_MOST_OPEN = 1024
_FORM_TYPES = ("string", "number", "integer", "boolean")


@dataclass(frozen=True, slots=True)
class Site:
    """Where calls are served: the project, its use cases, and the run whose agents they come from, if any."""

    service: Driving
    root: str
    run_id: str | None = None


@dataclass(slots=True)
class Question:
    """What a run asks, and where the answer goes."""

    question: Json
    problem: str | None
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: str | None = None

    def give(self, answer: str | None) -> None:
        """Answer it; None: nobody does. The first answer counts."""
        if not self.answered.is_set():
            self.answer = answer
            self.answered.set()


class Call:
    """What is known of a run that a client started here."""

    def __init__(self, progress: RunProgress, *, detached: bool, on_event: OnEvent) -> None:
        self.progress = progress
        self.detached = detached
        self.sender: ProgressSender | None = None  # of the request that attends now
        self.result: Json | None = None
        self.error: Exception | None = None
        self.question: Question | None = None
        self._on_event = on_event
        self._turn = anyio.Event()
        self._over = False
        self._attended = True
        self._known = anyio.Event()  # the run's id, or that there will be none

    async def perform(self, start: Callable[[OnEvent, Ask], Awaitable[Json]]) -> None:
        """Wait for the run, whoever else does; an error is kept for the request."""
        try:
            self.result = await start(self.on_event, self.ask)
        except Exception as error:
            self.error = error
        finally:
            self._over = True
            self._known.set()
            self._turn.set()

    def on_event(self, event: RunEvent) -> None:
        """An event of the run. Nothing here waits."""
        notes = self.progress.notes(event)
        self._known.set()
        self._on_event(event)
        if self.sender is not None:
            self.sender.add(notes)

    async def ask(self, question: Json, problem: str | None) -> str | None:
        """The person's answer; None where none comes, and the run then pauses."""
        if not self._attended:
            return None
        self.question = asked = Question(question, problem)
        self._turn.set()
        with anyio.move_on_after(ANSWER_WITHIN_S):
            await asked.answered.wait()
        if self.question is asked:
            self.question = None
        return asked.answer

    async def wait_question(self) -> Question | None:
        """Wait until the run asks something or is over (None)."""
        self._attended = True
        while not self._over:
            if self.question is not None and not self.question.answered.is_set():
                return self.question
            self._turn = anyio.Event()
            await self._turn.wait()
        return None

    def leave(self) -> None:
        """Nobody attends any more: a question that is open, or will be, gets no answer here."""
        self._attended = False
        if self.question is not None:
            self.question.give(None)

    async def abort(self, abort: Callable[[str, str | None], Awaitable[Json]], reason: str) -> None:
        """End the run: the caller took the call back. Where it has not told its id yet, as soon as it does."""
        await self._known.wait()
        if self._over or self.progress.run_id is None:
            return
        try:
            await abort(reason, self.progress.run_id)
        except REPORTED as error:
            logger.warning("cannot abort run %s for its caller: %s", self.progress.run_id, error)


class OpenCalls:
    """The calls whose question a client is answering now, in the stateless era: by token, the oldest go first."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, Call] = OrderedDict()

    def keep(self, call: Call) -> str:
        """A token that finds the call again, and says which run it is of should the server not be the same any more."""
        token = f"{secrets.token_urlsafe(18)}.{call.progress.run_id or ''}"
        self._calls[token] = call
        while len(self._calls) > _MOST_OPEN:
            self._calls.popitem(last=False)[1].leave()
        return token

    def take(self, token: str) -> Call | None:
        """The call of a token, once."""
        return self._calls.pop(token, None)

    def leave(self, tokens: set[str]) -> None:
        """The client that held these tokens is gone."""
        for token in tokens:
            call = self._calls.pop(token, None)
            if call is not None:
                call.leave()


def run_of(token: str) -> str | None:
    """The run that a token is of; None for one that no server gave."""
    run_id = token.rpartition(".")[2]
    return run_id if ulid.is_valid(run_id) else None


class RunCalls:
    """Starts runs for clients, in the server's scope, and attends to them in the requests'."""

    def __init__(self, site: Site, tasks: TaskGroup, on_event: OnEvent, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._site = site
        self._tasks = tasks
        self._on_event = on_event
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
        name = offers.definition_name(given[f"{kind}_name"])
        parameters = given.get("parameters", {})
        plan = await in_thread(self._expected, kind, given[f"{kind}_name"], parameters)
        detached = given.get("detach", False)
        call = Call(RunProgress(plan), detached=detached, on_event=self._on_event)
        asks = given.get("interactive", False) and not detached and can_ask(context.session.client_capabilities)
        service = self._site.service
        launch = {"flow": service.flow, "agent": service.agent, "prompt": service.prompt}[kind]

        async def begin(on_event: OnEvent, ask: Ask) -> Json:
            return await launch(
                name,
                parameters,
                on_event=on_event,
                ask=ask if asks else None,
                dry_run=given.get("dry_run", False),
                workspace=given.get("workspace"),
                detach=detached,
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
                call.sender = sender = self._sender(call, given, context, connection)
                tasks.start_soon(sender.run)
                to_ask = await self._questions(call, context, connection)
                await sender.flush()
                tasks.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            call.leave()
            raise
        finally:
            call.sender = None
        if request_id is not None:
            connection.calls.pop(request_id, None)
        if to_ask is None and call.error is not None:
            raise call.error
        return to_ask or call.result or {}

    async def _questions(self, call: Call, context: Context, connection: Connection) -> InputRequiredResult | None:
        """None: the run is over."""
        while (question := await call.wait_question()) is not None:
            if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
                token = self.open.keep(call)
                connection.tokens.add(token)
                request = question_form(question.question, question.problem)
                return InputRequiredResult(input_requests={FIELD: request}, request_state=token)
            question.give(await _elicited(question, context, connection.ended))
        return None

    def _sender(self, call: Call, given: dict[str, Any], context: Context, connection: Connection) -> ProgressSender:
        token = (context.meta or {}).get("progress_token")
        sends: list[Callable[[ProgressNote], Awaitable[None]]] = []
        if token is not None:
            sends.append(partial(_send_progress, context, token))
        if connection.wants_log("emergency", context):
            sends.append(partial(_send_log, context, connection))
        return ProgressSender(call.progress, sends, quiet=given.get("quiet", False), heartbeat_s=self._heartbeat_s)

    async def _answer_late(self, token: str, answer: str | None) -> Json:
        """The question was asked by a server that is no more, or was given up: the run itself may still wait."""
        run_id = run_of(token)
        if run_id is None or answer is None:
            raise SidecarError("this question is closed; workflow_status shows the run")
        return await self._site.service.answer(run_id, answer)

    def _expected(self, kind: Kind, given: str, parameters: Json) -> ExpectedSteps:
        """What a run will go through, where that is known beforehand; an error where nothing has that name."""
        name = offers.definition_name(given)
        if given not in offers.tool_names(self._site.root, kind):
            offers.check_definition(self._site.root, kind, name)
        states: dict[str, str] = {}
        if kind == "flow":
            try:
                definition = workflows.find(self._site.root, name)
            except REPORTED:  # the use case says what is wrong with it
                return ExpectedSteps(name, parameters, states)
            states = {step.id: step.description or "" for step in definition.workflow.steps or ()}
        return ExpectedSteps(name, parameters, states)


async def _elicited(question: Question, context: Context, ended: anyio.Event) -> str | None:
    """The person's answer. None: there is none, and the run pauses until somebody answers it another way."""
    params = question_form(question.question, question.problem).params
    assert params.mode == "form"
    answer: str | None = None

    async def give_up() -> None:
        await ended.wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(give_up)
        try:
            result = await context.session.elicit_form(params.message, params.requested_schema, context.request_id)
            answer = answer_text(result)
        except MCPError:  # the client cannot after all
            pass
        tasks.cancel_scope.cancel()
    return answer


def _answer_in(params: CallToolRequestParams) -> str | None:
    response = (params.input_responses or {}).get(FIELD)
    return answer_text(response) if isinstance(response, ElicitResult) else None


async def _send_progress(context: Context, token: str | int, note: ProgressNote) -> None:
    params = ProgressNotificationParams(
        progress_token=token, progress=note.progress, total=100.0, message=note.message, _meta=note.metadata
    )
    await context.session.send_notification(ProgressNotification(params=params), context.request_id)


async def _send_log(context: Context, connection: Connection, note: ProgressNote) -> None:
    level: LoggingLevel = "error" if note.failed else "info"
    if note.kind == "heartbeat" or not connection.wants_log(level, context):
        return
    data = {"message": note.message, "progress": note.progress, **note.metadata}
    params = LoggingMessageNotificationParams(level=level, logger=LOGGER, data=data)
    await context.session.send_notification(LoggingMessageNotification(params=params), context.request_id)


# --- a question as a form that clients show, and the answer as the text that a run takes


def can_ask(capabilities: ClientCapabilities | None) -> bool:
    """Whether the client can show a form. Without a word about kinds it can: forms came first."""
    elicitation = capabilities.elicitation if capabilities is not None else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def question_form(question: Json, problem: str | None) -> ElicitRequest:
    """The question; `problem`: what was wrong with the last answer."""
    prompt = str(question["prompt"])
    message = f"{prompt}\n\n{problem}" if problem else prompt
    schema = {"type": "object", "properties": {FIELD: _field(question)}, "required": [FIELD]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def answer_text(result: ElicitResult) -> str | None:
    """The answer as it would have been typed; None where the person gave none."""
    if result.action != "accept":
        return None
    value = (result.content or {}).get(FIELD)
    return value if isinstance(value, str) or value is None else json.dumps(value)


def _field(question: Json) -> Json:
    kind = question.get("type") if question.get("type") in _FORM_TYPES else "string"
    choices, default = question.get("choices"), question.get("default")
    field: Json = {"type": kind, "title": "Answer"}
    if choices is not None:
        field = {"type": "string", "title": "Answer", "enum": [_typed(choice) for choice in choices]}
    elif kind != question.get("type", "string"):
        field["description"] = f"As JSON: an {question['type']}."
    if default is not None:
        field["default"] = _typed(default) if field["type"] == "string" else default
    return field


def _typed(value: Any) -> str:
    """A value as a person types it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
