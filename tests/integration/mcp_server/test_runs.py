"""Runs that clients start: progress, signs of life, cancellation, questions, and clients that go away."""

from __future__ import annotations

import fcntl
import json
import struct
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.abc import ByteReceiveStream, SocketAttribute, SocketStream
from mcp.types import ElicitRequestFormParams, ElicitResult, TextContent

from sidecar.mcp_server import streams
from sidecar.mcp_server.calls import Site
from sidecar.mcp_server.server import McpServer, serving
from tests.kit import DEADLINE_S, eventually

if TYPE_CHECKING:
    from anyio.abc import SocketStream

    from tests.integration.mcp_server.conftest import Served

ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Raw:
    """A client that speaks the bytes itself, so that nothing between it and the server hides anything."""

    def __init__(self, stream: SocketStream, era: str) -> None:
        self.stream = stream
        self.era = era
        self.heard: list[dict[str, Any]] = []
        self._rest = b""

    async def send(self, method: str, params: dict[str, Any], request_id: int | None = None) -> None:
        if self.era != "legacy" and request_id is not None:
            params = {**params, "_meta": {**ENVELOPE, **params.get("_meta", {})}}
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if request_id is not None:
            message["id"] = request_id
        await self.stream.send(json.dumps(message).encode() + b"\n")

    async def hello(self) -> Raw:
        if self.era == "legacy":
            about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": ENVELOPE_INFO}
            await self.send("initialize", about, 1)
            await self.until(lambda message: message.get("id") == 1)
            await self.send("notifications/initialized", {})
        return self

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        with anyio.fail_after(DEADLINE_S):
            while True:
                while b"\n" not in self._rest:
                    self._rest += await self.stream.receive()
                line, _, self._rest = self._rest.partition(b"\n")
                message = json.loads(line)
                self.heard.append(message)
                if wanted(message):
                    return dict(message)

    async def answer(self, request_id: int) -> dict[str, Any]:
        return await self.until(lambda message: message.get("id") == request_id)

    def notified(self, method: str) -> list[dict[str, Any]]:
        return [message["params"] for message in self.heard if message.get("method") == method]


ENVELOPE_INFO = {"name": "test", "version": "1"}


def _flow(parameters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": "flow", "arguments": {"flow_name": "build", "parameters": parameters or {}, **more}}


@pytest.mark.anyio
async def test_progress_tells_the_events_of_the_seed_and_never_falls(served: Served, era: str) -> None:
    async with await anyio.connect_unix(served.path) as stream:
        raw = await Raw(stream, era).hello()
        meta = {"progressToken": "p", "io.modelcontextprotocol/logLevel": "info"}
        await raw.send("tools/call", {**_flow({"target": "all"}), "_meta": meta}, 7)
        answer = await raw.answer(7)
    told = [note for note in raw.notified("notifications/progress") if note["_meta"]["event"] != "heartbeat"]
    run_id = answer["result"]["structuredContent"]["run_id"]
    assert [(note["_meta"]["event"], note["progress"], note["message"]) for note in told] == [
        ("flow_start", 0, "Starting workflow: build"),
        ("state_start", 0, "Entering state: first"),
        ("state_complete", 50, "Completed state: first"),
        ("state_start", 50, "Entering state: second"),
        ("state_complete", 99, "Completed state: second"),
        ("flow_complete", 100, "Completed workflow: build"),
    ]
    assert {(note["progressToken"], note["total"]) for note in told} == {("p", 100)}
    metadata = [note["_meta"] for note in told]
    assert {(one["run_id"], one["flow_name"]) for one in metadata} == {(run_id, "build")}
    assert metadata[0]["parameters"] == {"target": "all"}
    assert metadata[0]["initial_state"] == "first"
    assert metadata[2]["next_state"] == "second"
    assert (metadata[-1]["status"], metadata[-1]["final_state"]) == ("completed", "second")
    logged = raw.notified("notifications/message")
    assert [entry["data"]["event"] for entry in logged] == [one["event"] for one in metadata]
    assert {(entry["logger"], entry["level"]) for entry in logged} == {("sidecar.run", "info")}


@pytest.mark.anyio
async def test_a_silent_run_gives_signs_of_life_and_a_quiet_one_nothing_else(served: Served, era: str) -> None:
    async with await anyio.connect_unix(served.path) as stream:
        raw = await Raw(stream, era).hello()
        await raw.send("tools/call", {**_flow({"hold": True}, quiet=True), "_meta": {"progressToken": 3}}, 7)
        await raw.until(lambda _: len(raw.notified("notifications/progress")) == 2)
        (served.root / "release").touch()
        await raw.answer(7)
    assert {note["_meta"]["event"] for note in raw.notified("notifications/progress")} == {"heartbeat"}


@pytest.mark.anyio
async def test_without_a_token_there_is_no_progress_and_without_asking_no_log(served: Served) -> None:
    async with await anyio.connect_unix(served.path) as stream:
        raw = await Raw(stream, "2026-07-28").hello()
        await raw.send("tools/call", _flow(), 7)
        await raw.answer(7)
    assert len(raw.heard) == 1


@pytest.mark.anyio
async def test_a_client_that_set_a_graver_level_hears_no_lesser_one(served: Served) -> None:
    async with await anyio.connect_unix(served.path) as stream:
        raw = await Raw(stream, "legacy").hello()
        await raw.send("logging/setLevel", {"level": "error"}, 2)
        await raw.answer(2)
        await raw.send("tools/call", _flow({"fail": "x"}), 7)
        await raw.answer(7)
    assert [entry["data"]["event"] for entry in raw.notified("notifications/message")] == ["flow_error"]


@pytest.mark.anyio
async def test_a_request_that_the_client_cancels_aborts_the_run_it_started(served: Served, era: str) -> None:
    async with await anyio.connect_unix(served.path) as stream:
        raw = await Raw(stream, era).hello()
        await raw.send("tools/call", _flow({"hold": True}), 7)
        await eventually(lambda: bool(served.service.runs))
        await raw.send("notifications/cancelled", {"requestId": 7, "reason": "changed my mind"})
        await eventually(lambda: bool(served.service.called("abort")))
        await raw.send("tools/call", {"name": "workflow_status", "arguments": {}}, 8)
        assert "result" in await raw.answer(8), "the connection goes on"
    (abort,) = served.service.called("abort")
    (run_id,) = served.service.runs
    said = "cancelled by the client: changed my mind"
    assert abort == {"reason": said, "run_id": run_id, "workspace": None, "asker": None}
    await eventually(lambda: served.service.runs[run_id].status == "aborted")


@pytest.mark.anyio
async def test_a_cancellation_that_comes_before_the_run_has_an_id_still_aborts_it(served: Served, era: str) -> None:
    async with await anyio.connect_unix(served.path) as stream:
        raw = await Raw(stream, era).hello()
        await raw.send("tools/call", _flow({"hold": True}), 7)
        await raw.send("notifications/cancelled", {"requestId": 7})
    # The connection is gone as well, by now.
    await eventually(lambda: bool(served.service.called("abort")) or not served.service.called("launch"))


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["closed", "reset"])
async def test_a_lost_connection_ends_no_run_and_status_finds_it(served: Served, era: str, how: str) -> None:
    stream = await anyio.connect_unix(served.path)
    raw = await Raw(stream, era).hello()
    await raw.send("tools/call", {**_flow({"hold": True}), "_meta": {"progressToken": 1}}, 7)
    await raw.until(lambda message: message.get("method") == "notifications/progress")
    if how == "closed":
        await stream.send_eof()  # it asks no more, but may still listen; then it does not any more either
    await stream.aclose()
    async with served.client(era) as client:
        (run_id,) = served.service.runs
        status = await client.call_tool("workflow_status", {"workflow_id": run_id})
        assert (status.structured_content or {})["runs"][0]["status"] == "running"
        (served.root / "release").touch()
        await eventually(lambda: served.service.runs[run_id].status == "completed")
    assert served.service.called("abort") == []


@pytest.mark.anyio
async def test_a_question_is_asked_through_the_client_and_answered(served: Served, era: str) -> None:
    asked: list[ElicitRequestFormParams] = []

    async def elicit(_: Any, params: Any) -> ElicitResult:
        asked.append(params)
        return ElicitResult(action="accept", content={"answer": 3 if len(asked) == 1 else "blue"})

    questions = [
        {"prompt": "How many?", "type": "integer", "choices": None, "default": 2, "pattern": None},
        {"prompt": "Which?", "type": "string", "choices": ["red", "blue"], "default": None, "pattern": None},
    ]
    arguments = {"flow_name": "build", "interactive": True, "parameters": {"questions": questions}}
    async with served.client(era, elicitation_callback=elicit) as client:
        result = await client.call_tool("flow", arguments)
    assert (result.structured_content or {})["status"] == "completed"
    assert [call["answer"] for call in served.service.called("answered")] == ["3", "blue"]
    assert [params.message for params in asked] == ["How many?", "Which?"]
    fields = [params.requested_schema["properties"]["answer"] for params in asked]
    assert fields == [
        {"type": "integer", "title": "Answer", "default": 2},
        {"type": "string", "title": "Answer", "enum": ["red", "blue"]},
    ]
    assert len(served.service.called("launch")) == 1, "an answer starts no second run"


@pytest.mark.anyio
@pytest.mark.parametrize("case", ["declined", "no elicitation", "not interactive"])
async def test_a_run_whose_question_nobody_answers_pauses(served: Served, era: str, case: str) -> None:
    async def decline(_: Any, __: Any) -> ElicitResult:
        return ElicitResult(action="decline")

    more = {} if case == "no elicitation" else {"elicitation_callback": decline}
    parameters = {"questions": [{"prompt": "Sure?", "type": "boolean"}]}
    async with served.client(era, **more) as client:
        arguments = {"flow_name": "build", "parameters": parameters, "interactive": case != "not interactive"}
        result = await client.call_tool("flow", arguments)
    assert not result.is_error
    assert (result.structured_content or {})["status"] == "paused"
    (launch,) = served.service.called("launch")
    assert launch["asks"] is (case == "declined")


@pytest.mark.anyio
async def test_a_client_that_leaves_while_it_is_asked_leaves_a_paused_run(served: Served, era: str) -> None:
    parameters = {"questions": [{"prompt": "Sure?", "type": "boolean"}]}
    async with await anyio.connect_unix(served.path) as stream:
        raw = await Raw(stream, era).hello()
        ability: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
        if era == "legacy":
            # A handshake with the ability, on a connection of its own.
            about = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": ENVELOPE_INFO}
            raw = Raw(await anyio.connect_unix(served.path), era)
            await raw.send("initialize", about, 1)
            await raw.answer(1)
            await raw.send("notifications/initialized", {})
        await raw.send("tools/call", {**_flow(parameters, interactive=True), "_meta": ability}, 7)
        await raw.until(lambda message: "inputRequests" in json.dumps(message) or "elicitation/create" in str(message))
        await raw.stream.aclose()
    await eventually(lambda: any(run.status == "paused" for run in served.service.runs.values()))


@pytest.mark.anyio
async def test_an_answer_that_comes_to_another_server_reaches_the_run_all_the_same(served: Served) -> None:
    run_id = "01JC0000000000000000000000"
    async with await anyio.connect_unix(served.path) as stream:
        raw = await Raw(stream, "2026-07-28").hello()
        response = {"answer": {"action": "accept", "content": {"answer": "yes"}}}
        await raw.send("tools/call", {**_flow(), "requestState": f"gone.{run_id}", "inputResponses": response}, 7)
        answer = await raw.answer(7)
        assert answer["result"]["structuredContent"] == {"run_id": run_id, "status": "running"}
        await raw.send("tools/call", {**_flow(), "requestState": "nonsense", "inputResponses": response}, 8)
        refused = await raw.answer(8)
    assert served.service.called("answer") == [{"workflow_id": run_id, "value": "yes"}]
    assert refused["result"]["isError"]
    assert "this question is closed" in refused["result"]["content"][0]["text"]


@pytest.mark.anyio
async def test_an_abort_from_elsewhere_is_the_callers_tool_error(served: Served, era: str) -> None:
    results: list[Any] = []
    async with served.client(era) as client, anyio.create_task_group() as tasks:

        async def call() -> None:
            results.append(await client.call_tool("flow", {"flow_name": "build", "parameters": {"hold": True}}))

        tasks.start_soon(call)
        await eventually(lambda: bool(served.service.runs))
        async with served.client(era) as other:
            await other.call_tool("abort", {"reason": "tests are red"})
    (result,) = results
    assert result.is_error
    assert result.content == [TextContent(text="aborted: tests are red")]


@pytest.mark.anyio
async def test_a_dry_run_gives_the_plan_and_runs_nothing(served: Served, era: str) -> None:
    async with served.client(era) as client:
        result = await client.call_tool("flow", {"flow_name": "build", "dry_run": True})
    assert result.structured_content == {"plan": ["build"]}
    assert served.service.runs == {}


@asynccontextmanager
async def serving_at(served: Served, run_id: str | None) -> AsyncIterator[tuple[McpServer, str]]:
    """A server for the agents of a run, or for anybody, and where it is."""
    path = str(served.root / "another.sock")
    async with (
        serving(Site(served.service, str(served.root), run_id)) as server,  # type: ignore[arg-type]
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(streams.listen, path, server.serve)
        yield server, path
        tasks.cancel_scope.cancel()


STAGE_GATE = ("stage_gate", {"stage": "s", "output": "o"})
STATE_READ = ("workflow_state_read", {"workflow_id": "w"})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("run_id", "call", "comes_first"),
    [
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", STATE_READ, True),
        (None, STAGE_GATE, True),
        (None, ("abort", {"reason": "enough"}), True),
        (None, STATE_READ, False),  # else any client could delay an abort
    ],
    ids=["any of a run's agent", "a gate", "an abort", "any other"],
)
async def test_an_agent_gets_its_answer_before_it_is_ended_and_nobody_else_delays_that(
    served: Served,
    run_id: str | None,
    call: tuple[str, dict[str, Any]],
    comes_first: bool,
) -> None:
    tool, arguments = call
    async with serving_at(served, run_id) as (server, path), await anyio.connect_unix(path) as stream:
        raw = await Raw(stream, "legacy").hello()
        assert await server.wait_urgent_replies(0.01)
        for request_id in range(2, 60):  # not read: the reply of the next call cannot be written yet
            await raw.send("tools/list", {}, request_id)
        await _filled(stream)
        await raw.send("tools/call", {"name": tool, "arguments": arguments}, 1000)
        await eventually(lambda: bool(served.service.called(tool.removeprefix("workflow_"))))
        assert await server.wait_urgent_replies(0.05) is not comes_first
        await raw.answer(1000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read_on, stream)  # answers go out in batches: what comes behind is read, too
            assert await server.wait_urgent_replies(DEADLINE_S)
            await stream.send_eof()


async def _filled(stream: SocketStream) -> None:
    """Wait until nothing more fits between the server and a client that does not read."""
    own = stream.extra(SocketAttribute.raw_socket).fileno()
    before, now = -1, 0
    while now != before or now < 50_000:
        before = now
        await anyio.sleep(0.1)
        now = struct.unpack("i", fcntl.ioctl(own, termios.FIONREAD, bytes(4)))[0]


async def _read_on(stream: ByteReceiveStream) -> None:
    async for _ in stream:
        pass
