"""Every tool through the SDK's client, against the real daemon: the good case and the bad ones, in both eras."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import anyio
import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.types import TextContent

from tests.kit import new_id
from tests.kit.mcp_client import tools

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

    from tests.acceptance.mcp.conftest import House

Json = dict[str, Any]
# Where a tool takes what names a run, a step or a workflow, in the words of its schema.
RUN_NAMES = ("workflow_id", "run_id")
STATE: Json = {
    "default_state": {"raw": {"count": 0, "last": ""}},
    "state_schema": {
        "raw": {"count": "number", "last": "string"},
        "computed": {"twice": {"from": "raw.count", "transform": "input * 2"}},
    },
}


@pytest.fixture(scope="module", autouse=True)
def _definitions(house: House) -> None:
    house.project.workflow(
        "driven",
        {"id": "one", "type": "agent", "prompt": "do {{ inputs.what }}", "state_update": {"path": "raw.last"}},
        {"id": "two", "type": "agent", "prompt": "and check it"},
        inputs={"what": {"type": "string", "required": False, "default": "it"}},
        **STATE,
    )
    house.project.workflow("quick", {"id": "a", "type": "shell_command", "command": "echo done"})
    house.project.agent("echoing", "cat")
    prompt = "---\ndescription: Greets.\nparameters:\n  - {name: who, type: string}\n---\nGreet {{ who }}.\n"
    (house.state / "prompts").mkdir()
    (house.state / "prompts" / "greet.md").write_text(prompt)
    (house.state / "workspaces" / "ws").mkdir(parents=True)
    (house.state / "config.yaml").write_text("kill_after_s: 0.3\ndefault_agent: echoing\n")
    house.daemon.process.send_signal(1)
    house.daemon.until_printed("read the settings")


@pytest.fixture(scope="module")
def schemas(house: House) -> dict[str, Json]:
    """What each tool takes."""
    return {name: tool["inputSchema"] for name, tool in tools(house.root).items()}


def text_of(result: CallToolResult) -> str:
    content = result.content[0]
    assert isinstance(content, TextContent)
    return content.text


async def _called(client: Client, tool: str, arguments: Json) -> Json:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, (tool, arguments, text_of(result))
    return dict(result.structured_content or {})


async def _started(client: Client) -> str:
    run_id: str = (await _called(client, "workflow_start", {"workflow": "driven"}))["workflow_id"]
    return run_id


async def _handed_out(client: Client) -> tuple[str, str]:
    run_id = await _started(client)
    step = (await _called(client, "workflow_get_next_step", {"workflow_id": run_id}))["step"]
    return run_id, step["id"]


# The arguments of a good call of each tool, and what has to be in its result.
Good = Callable[["Client"], Awaitable[tuple[Json, Json]]]


def _fixed(arguments: Json, **wanted: Any) -> Good:
    async def give(_: Client) -> tuple[Json, Json]:
        return arguments, wanted

    return give


def _with_run(wanted: Json | None = None, **more: Any) -> Good:
    async def give(client: Client) -> tuple[Json, Json]:
        run_id, _ = await _handed_out(client)
        return {"workflow_id": run_id, **more}, wanted or {}

    return give


async def _step_complete(client: Client) -> tuple[Json, Json]:
    run_id, step_id = await _handed_out(client)
    return {"workflow_id": run_id, "step_id": step_id, "result": "all well"}, {"success": True}


async def _gate(client: Client) -> tuple[Json, Json]:
    run_id, _ = await _handed_out(client)
    return {"stage": "design", "output": "the plan", "run_id": run_id}, {"allowed": False, "pause_required": True}


async def _abort(client: Client) -> tuple[Json, Json]:
    run_id, _ = await _handed_out(client)
    return {"reason": "not this one", "run_id": run_id}, {"success": True}


async def _resume(client: Client) -> tuple[Json, Json]:
    arguments, _ = await _gate(client)
    await _called(client, "stage_gate", arguments)
    return {"workflow_id": arguments["run_id"], "feedback": "good"}, {"workflow_id": arguments["run_id"]}


GOOD: dict[str, Good] = {
    "abort": _abort,
    "stop": _fixed({"workspace": "ws", "cancel": True}, success=True),
    "stage_gate": _gate,
    "flow": _fixed({"flow_name": "quick"}, status="completed"),
    "agent": _fixed({"agent_name": "echoing", "parameters": {"prompt": "hello"}}, status="completed"),
    "prompt": _fixed({"prompt_name": "greet", "parameters": {"who": "you"}}, status="completed"),
    "workflow_get_info": _fixed({"workflow": "driven"}, name="driven"),
    "workflow_start": _fixed({"workflow": "driven", "inputs": {"what": "that"}, "workspace": "ws"}),
    "workflow_get_next_step": _with_run(),
    "workflow_step_complete": _step_complete,
    "workflow_resume": _resume,
    "workflow_load_definition": _fixed({"workflow": "driven"}, name="driven"),
    "workflow_checkpoint": _with_run(reason="full"),
    "workflow_complete": _with_run({"success": True, "status": "failed"}, status="failed"),
    "workflow_list": _fixed({}),
    "workflow_status": _fixed({}),
    "workflow_state_read": _with_run({"raw.count": 0, "twice": 0}, paths=["raw.count", "twice"]),
    "workflow_state_update": _with_run(
        {"success": True, "changed": {"twice": 8}}, updates=[{"path": "raw.count", "value": 4}]
    ),
    "workflow_state_dependencies": _with_run({"direct_deps": ["raw.count"]}, field="twice"),
    "workflow_trace_transformations": _with_run(include_timing=True),
    "workflow_debug_info": _with_run(),
    "workflow_test_transformation": _fixed({"transform": "input + 1", "input": 1}, success=True, output=2),
    "workflow_explain_plan": _fixed({"workflow": "driven"}),
}


@pytest.mark.anyio
async def test_a_good_call_of_every_tool_gives_what_its_schema_says_and_the_same_as_text(
    house: House, era: str, way: str
) -> None:
    async with house.client(era, way) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed) == set(GOOD)
        for name, good in GOOD.items():
            arguments, wanted = await good(client)
            jsonschema.validate(arguments, listed[name].input_schema)
            result = await client.call_tool(name, arguments)
            assert not result.is_error, (name, text_of(result))
            assert result.structured_content is not None
            assert json.loads(text_of(result)) == result.structured_content, name
            jsonschema.validate(result.structured_content, listed[name].output_schema or {})
            assert {key: result.structured_content.get(key) for key in wanted} == wanted, name


# --- the bad ones


def _wrong(schema: Json) -> Any:
    return {"string": 5, "boolean": "yes", "object": [], "array": {}, "integer": "one"}[schema["type"]]


def _bad(schema: Json, arguments: Json) -> Iterator[tuple[str, Json, str]]:
    """What can be wrong with a good call, as its schema tells it, and what has to be said of that."""
    for name, inner in schema["properties"].items():
        if "type" in inner:
            yield "wrong type", {**arguments, name: _wrong(inner)}, f"{name} has to be"
        if inner.get("enum"):
            yield "no choice", {**arguments, name: "neither"}, "one of|available: "
    for name in schema.get("required", ()):
        yield "missing", {key: value for key, value in arguments.items() if key != name}, f"{name} is required"
    yield "extra", {**arguments, "nonsense": 1}, "unknown argument 'nonsense'"
    for name in (*RUN_NAMES, "workflow", "flow_name", "agent_name", "prompt_name", "workspace"):
        if name in schema["properties"]:
            other = {key: value for key, value in arguments.items() if key not in (*RUN_NAMES, "workspace")}
            yield "path", {**other, name: "../../etc/passwd"}, ""
            yield (
                "unknown",
                {**other, name: new_id() if name in RUN_NAMES else "nobody-made-this"},
                "no such|not found",
            )


@pytest.mark.anyio
async def test_a_bad_call_of_any_tool_is_a_tool_error_in_words(
    house: House, era: str, schemas: dict[str, Json]
) -> None:
    async with house.client(era) as client:
        await client.list_tools()
        wrong = []
        for tool, good in GOOD.items():
            arguments, _ = await good(client)
            for what, bad, said in _bad(schemas[tool], arguments):
                result = await client.call_tool(tool, bad)
                text = text_of(result)
                told = any(word in text for word in said.split("|"))
                if not (result.is_error and told) or "Traceback" in text or "inside the sidecar" in text:
                    wrong.append((tool, what, bad, text))
    assert wrong == []


@pytest.mark.anyio
async def test_the_receipts_of_a_run_are_those_of_its_workspace_too(house: House, era: str) -> None:
    workspace = house.state / "workspaces" / f"receipts-{era}"  # its own: no other open run there takes the stop
    workspace.mkdir()
    async with house.client(era) as client:
        (workspace / ".stop").touch()
        stopped = await _called(client, "flow", {"flow_name": "quick", "workspace": workspace.name})
        other = await _called(client, "flow", {"flow_name": "quick", "workspace": workspace.name})
        assert (stopped["status"], other["status"]) == ("stopped", "completed")
        told = {}
        for run_id in (stopped["run_id"], other["run_id"]):
            read = await client.read_resource(f"sidecar://runs/{run_id}/receipts")
            told[run_id] = json.loads(read.contents[0].text)["receipts"]  # type: ignore[union-attr]
    (receipt,) = told[stopped["run_id"]]
    assert receipt["runs"] == [{"run_id": stopped["run_id"], "status": "stopped"}]
    assert told[other["run_id"]] == []


@pytest.mark.anyio
async def test_a_stop_where_nothing_is_executed_says_whom_it_will_stop(house: House, era: str) -> None:
    name = f"idle-{era}"  # its own: an open run there would take the stop
    (house.state / "workspaces" / name).mkdir()
    async with house.client(era) as client:
        lies_there = await _called(client, "stop", {"workspace": name})
        assert "the next one to begin there is stopped" in lies_there["message"]
        assert (await _called(client, "stop", {"workspace": name, "cancel": True}))["cancelled"]
        run = await _called(client, "flow", {"flow_name": "quick", "workspace": name})
    assert run["status"] == "completed"


@pytest.mark.anyio
async def test_a_stop_that_a_dead_owner_left_aside_is_taken_back_too(house: House, era: str) -> None:
    name = f"aside-{era}"  # its own: an open run there would take the stop
    directory = house.state / "workspaces" / name
    directory.mkdir()
    (directory / ".stop.taken").touch()
    async with house.client(era) as client:
        assert (await _called(client, "stop", {"workspace": name, "cancel": True}))["cancelled"]
        assert not (await _called(client, "stop", {"workspace": name, "cancel": True}))["cancelled"]
        run = await _called(client, "flow", {"flow_name": "quick", "workspace": name})
    assert run["status"] == "completed"


@pytest.mark.anyio
async def test_a_finished_run_is_read_and_never_changed(house: House, era: str, schemas: dict[str, Json]) -> None:
    async with house.client(era) as client:
        done = await _called(client, "flow", {"flow_name": "quick"})
        run_id = done["run_id"]
        for tool, good in GOOD.items():
            names = [name for name in RUN_NAMES if name in schemas[tool]["properties"]]
            if not names or tool in ("abort", "stop"):  # those leave a file, whatever the run is: see below
                continue
            arguments = {**(await good(client))[0], names[0]: run_id}
            result = await client.call_tool(tool, arguments)
            assert "inside the sidecar" not in text_of(result), (tool, text_of(result))
            if tool in ("stage_gate", "workflow_state_update", "workflow_state_dependencies"):
                assert result.is_error, tool
        step = await _called(client, "workflow_get_next_step", {"workflow_id": run_id})
        assert (step["step"], step["status"]) == (None, "completed")
        (status,) = (await _called(client, "workflow_status", {"workflow_id": run_id}))["runs"]
    assert status["status"] == "completed"
    assert len(house.project.data(run_id, "run_ended")) == 1


@pytest.mark.anyio
async def test_an_increment_without_a_value_adds_one_and_any_other_update_needs_one(house: House, era: str) -> None:
    async with house.client(era) as client:
        schema = {tool.name: tool for tool in (await client.list_tools()).tools}["workflow_state_update"].input_schema
        run_id = await _started(client)
        add = {"workflow_id": run_id, "updates": [{"path": "raw.count", "operation": "increment"}]}
        jsonschema.validate(add, schema)
        assert (await _called(client, "workflow_state_update", add))["changed"] == {"twice": 2}
        for operation in ({}, {"operation": "set"}, {"operation": "append"}, {"operation": "merge"}):
            updates = [{"path": "raw.count", "value": 5}, {"path": "raw.last", **operation}]
            result = await client.call_tool("workflow_state_update", {"workflow_id": run_id, "updates": updates})
            assert result.is_error
            assert "updates[1]: `value` is missing: only `increment` does without" in text_of(result)
        state = await _called(client, "workflow_state_read", {"workflow_id": run_id})
    assert (state["count"], state["last"]) == (1, "")


@pytest.mark.anyio
async def test_five_megabytes_in_any_tool_are_refused_in_words(
    house: House, era: str, way: str, schemas: dict[str, Json]
) -> None:
    large = "x" * 5_000_000
    # Once over each way; every tool has the same check before it is looked at.
    tools = ["abort", "workflow_state_update"] if way == "stdio" else ["workflow_step_complete", "flow", "stage_gate"]
    async with house.client(era, way) as client:
        await client.list_tools()
        for tool in tools:
            arguments, _ = await GOOD[tool](client)
            first = next(name for name, inner in schemas[tool]["properties"].items() if inner["type"] == "string")
            result = await client.call_tool(tool, {**arguments, first: large})
            assert result.is_error
            assert "larger than 4 MiB" in text_of(result)
        assert (await _called(client, "workflow_test_transformation", {"transform": "input", "input": 1}))[
            "output"
        ] == 1


@pytest.mark.anyio
async def test_concurrent_calls_on_one_run_lose_nothing_and_hand_out_one_step(house: House, era: str) -> None:
    async with house.client(era) as first, house.client(era, "stdio") as second:
        run_id, step_id = await _handed_out(first)
        steps: list[str] = []
        told: list[Json] = []
        add = {"path": "raw.count", "operation": "increment", "value": 1}

        async def work(client: Client, number: int) -> None:
            await _called(client, "workflow_state_update", {"workflow_id": run_id, "updates": [add]})
            steps.append((await _called(client, "workflow_get_next_step", {"workflow_id": run_id}))["step"]["id"])
            done = {"workflow_id": run_id, "step_id": step_id, "result": f"by {number}"}
            told.append(await _called(client, "workflow_step_complete", done))

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(work, (first, second)[number % 2], number)
        state = await _called(first, "workflow_state_read", {"workflow_id": run_id})
    assert (state["count"], state["twice"]) == (20, 40)
    assert set(steps) <= {step_id, "two"}
    assert all(one["success"] for one in told)
    completed = [event["step"] for event in house.project.data(run_id, "step_completed")]
    assert completed.count("one") == 1
    assert state["last"] in {f"by {number}" for number in range(20)}


# --- anything at all

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
# Names of runs are left out where a call would start one for real, or end those of the other tests.
NAMES = {"flow_name": ["list", "quick"], "agent_name": ["list", "nobody"], "prompt_name": ["list", "nobody"]}


@st.composite
def _calls(draw: st.DrawFn, schemas: dict[str, Json]) -> Json:
    tool = draw(st.sampled_from(sorted(set(schemas) - {"abort", "stop"})))
    properties = schemas[tool]["properties"]
    given_ = {name: draw(_value(name, inner)) for name, inner in properties.items() if draw(st.integers(0, 4))}
    if not draw(st.integers(0, 9)):
        given_[draw(st.text(max_size=8))] = draw(JSON)
    return {"method": "tools/call", "params": {"name": tool, "arguments": given_}}


def _value(name: str, schema: Json) -> st.SearchStrategy[Any]:
    fitting: dict[str, st.SearchStrategy[Any]] = {
        "string": st.sampled_from(NAMES.get(name) or schema.get("enum") or ["", "driven", new_id(), "\ud800", "\0"]),
        "boolean": st.booleans(),
        "object": st.dictionaries(st.text(max_size=8), JSON, max_size=3),
        "array": st.lists(JSON, max_size=3),
    }
    right = fitting.get(schema.get("type", ""), JSON)
    return right if name in NAMES else st.one_of(right, right, JSON)


ANY_METHOD = st.fixed_dictionaries(
    {
        "method": st.sampled_from(
            [
                *("tools/call", "tools/list", "prompts/get", "resources/read", "completion/complete", "ping"),
                *("resources/subscribe", "logging/setLevel", "initialize", "nothing/known", ""),
            ]
        ),
        "params": JSON,
    }
)


def test_whatever_is_asked_every_request_has_one_answer_and_the_server_goes_on(
    house: House, schemas: dict[str, Json]
) -> None:
    numbers = iter(range(1, 1_000_000))
    with house.connected() as by_hand:
        by_hand.hello()

        @settings(max_examples=150)
        @given(_calls(schemas) | ANY_METHOD)
        def asked(request: Json) -> None:
            number, after = next(numbers), next(numbers)
            by_hand.received.clear()
            by_hand.send({"jsonrpc": "2.0", "id": number, **request})
            # What cannot be read has no id that could be answered: the next request shows that it was passed over.
            by_hand.call(after, "workflow_test_transformation", {"transform": "input", "input": after})
            assert by_hand.answer(after)["result"]["structuredContent"]["output"] == after
            answers = [message for message in by_hand.received if message.get("id") == number]
            while not answers and not any("id" in message and message["id"] is None for message in by_hand.received):
                answers = [by_hand.answer(number)]
            assert len(answers) <= 1
            assert "Traceback" not in json.dumps(answers)
            assert "inside the sidecar" not in json.dumps(answers), (request, answers)

        asked()
    assert "Traceback" not in house.daemon.printed
