"""Seed 001, success criteria 1 to 3, 13, 14 and 16 to 18: one `flow` tool, discovery, execution, notifications."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.acceptance.mcp.conftest import Heard, House

PLAN: dict[str, Any] = {
    "inputs": {"plan_filename": {"type": "string", "required": True, "description": "Specification to process"}},
    "default_state": {"raw": {"text": ""}},
    "state_schema": {"raw": {"text": "string"}},
}


@pytest.fixture(scope="module", autouse=True)
def _workflows(house: House) -> None:
    house.project.workflow(
        "make-plan",
        {
            "id": "parse",
            "type": "shell_command",
            "description": "Parse it",
            "command": "for n in $(seq 20); do echo line $n; done; echo {{ inputs.plan_filename }}",
            "state_update": {"path": "raw.text"},
        },
        {
            "id": "each",
            "type": "foreach",
            "items": "{{ [1, 2, 3, 4, 5] }}",
            "body": [{"id": "one", "type": "shell_command", "command": "echo {{ item }}"}],
        },
        **PLAN,
    )
    house.project.workflow(
        "fails",
        {"id": "good", "type": "shell_command", "command": "true"},
        {"id": "bad", "type": "shell_command", "command": "echo the disk is full >&2; exit 7"},
    )


def _by_name(found: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one for one in found["workflows"]}


def _told(found: dict[str, Any]) -> dict[str, Any]:
    """What the seed wants of each workflow; either list may tell more."""
    parameter = ("name", "type", "description", "required")
    return {
        name: {
            **{key: one[key] for key in ("description", "source")},
            "parameters": [{key: each.get(key) for key in parameter} for each in one["parameters"]],
        }
        for name, one in _by_name(found).items()
    }


@pytest.mark.anyio
async def test_criterion_1_one_flow_tool_is_listed(house: House, era: str, way: str) -> None:
    async with house.client(era, way) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
    assert names.count("flow") == 1
    assert not {"make-plan", "fails", "implement", "plan"} & set(names), "no workflow is a tool of its own"


@pytest.mark.anyio
async def test_criterion_2_flow_name_is_required_and_its_enum_is_list_and_every_workflow(
    house: House, era: str
) -> None:
    async with house.client(era) as client:
        (flow,) = [tool for tool in (await client.list_tools()).tools if tool.name == "flow"]
        listed = (await client.call_tool("flow", {"flow_name": "list"})).structured_content or {}
    assert flow.input_schema["required"] == ["flow_name"]
    names = flow.input_schema["properties"]["flow_name"]["enum"]
    assert names[0] == "list"
    assert sorted(names[1:]) == sorted(_by_name(listed))
    assert {"make-plan", "fails", "iterate", "plan"} <= set(names)


def test_criterion_3_the_command_lists_what_the_tool_lists(house: House) -> None:
    told = json.loads(house.project.output("flow", "list", "--format", "json"))
    with house.connected() as by_hand:
        by_hand.hello().call(1, "flow", {"flow_name": "list"})
        listed = by_hand.answer(1)["result"]["structuredContent"]
    assert _told(told) == _told(listed)
    assert _told(told)["make-plan"]["source"] == "project"


@pytest.mark.anyio
async def test_criterion_13_a_client_discovers_workflows_with_their_parameters(
    house: House, era: str, way: str
) -> None:
    async with house.client(era, way) as client:
        found = await client.call_tool("flow", {"flow_name": "list", "format": "json", "verbose": True})
    row = _by_name(found.structured_content or {})["make-plan"]
    assert (row["description"], row["source"]) == ("make-plan", "project")
    (parameter,) = row["parameters"]
    assert parameter["name"] == "plan_filename"
    assert parameter["required"] is True
    assert (parameter["type"], parameter["description"]) == ("string", "Specification to process")
    assert json.loads(found.content[0].text) == found.structured_content  # type: ignore[union-attr]


@pytest.mark.anyio
async def test_criterion_14_a_client_executes_a_workflow_by_its_name(house: House, era: str, way: str) -> None:
    asked = {"flow_name": "make-plan", "parameters": {"plan_filename": "it's $(a) spec.md"}}
    async with house.client(era, way) as client:
        done = await client.call_tool("flow", asked)
        without = await client.call_tool("flow", {"flow_name": "make-plan"})
        planned = await client.call_tool("flow", {**asked, "dry_run": True})
    assert not done.is_error
    run = done.structured_content or {}
    assert run["status"] == "completed"
    assert run["state"]["text"].splitlines()[-1] == "it's $(a) spec.md"
    assert without.is_error
    assert "plan_filename" in without.content[0].text  # type: ignore[union-attr]
    assert [step["step_id"] for step in (planned.structured_content or {})["steps"]][:2] == ["parse", "each"]


@pytest.mark.anyio
async def test_criterion_16_notifications_tell_start_states_and_completion(
    house: House, era: str, way: str, heard: Heard
) -> None:
    asked = {"flow_name": "make-plan", "parameters": {"plan_filename": "spec.md"}}
    async with house.client(era, way, message_handler=heard) as client:
        done = await client.call_tool("flow", asked, progress_callback=heard.progress)
    run_id = (done.structured_content or {})["run_id"]
    told = [note for note in heard.notes if note["_meta"]["event"] != "heartbeat"]
    assert [(note["_meta"]["event"], note["_meta"].get("state_id")) for note in told] == [
        ("flow_start", None),
        ("state_start", "parse"),
        ("state_complete", "parse"),
        ("state_start", "each"),
        ("state_complete", "each"),
        ("flow_complete", None),
    ]
    assert {note["_meta"]["run_id"] for note in told} == {run_id}
    progress = [note["progress"] for note in told]
    assert progress == sorted(progress)
    assert (progress[0], progress[-1], {note["total"] for note in told}) == (0, 100, {100})


@pytest.mark.anyio
async def test_criterion_16_a_failure_is_notified_as_the_error_that_ended_the_flow(
    house: House, era: str, heard: Heard
) -> None:
    async with house.client(era, message_handler=heard) as client:
        done = await client.call_tool("flow", {"flow_name": "fails"}, progress_callback=heard.progress)
    assert done.is_error
    (error,) = heard.of_kind("flow_error", "flow_complete")
    assert error["event"] == "flow_error"
    assert (error["status"], error["error_state"]) == ("failed", "bad")
    assert "exit code 7" in error["error"]
    assert error["run_id"] == (done.structured_content or {})["run_id"]
    assert heard.notes[-1]["_meta"] == error


@pytest.mark.anyio
async def test_criterion_17_notifications_say_which_flow_which_state_and_which_parameters(
    house: House, era: str, heard: Heard
) -> None:
    asked = {"flow_name": "make-plan", "parameters": {"plan_filename": "spec.md"}}
    async with house.client(era, message_handler=heard) as client:
        await client.call_tool("flow", asked, progress_callback=heard.progress)
    assert {note["_meta"]["flow_name"] for note in heard.notes} == {"make-plan"}
    (start,) = heard.of_kind("flow_start")
    assert (start["parameters"], start["initial_state"]) == ({"plan_filename": "spec.md"}, "parse")
    first, _ = heard.of_kind("state_start")
    assert (first["state_id"], first["state_description"]) == ("parse", "Parse it")
    assert heard.of_kind("state_complete")[0]["next_state"] == "each"
    (end,) = heard.of_kind("flow_complete")
    assert (end["status"], end["final_state"]) == ("completed", "each")
    assert "make-plan" in heard.notes[0]["message"]
    assert "parse" in heard.notes[1]["message"]


@pytest.mark.anyio
async def test_criterion_18_notifications_are_key_events_only(house: House, era: str, heard: Heard) -> None:
    asked = {"flow_name": "make-plan", "parameters": {"plan_filename": "spec.md"}}
    async with house.client(era, message_handler=heard) as client:
        done = await client.call_tool("flow", asked, progress_callback=heard.progress)
        quiet_from = len(heard.notes)
        await client.call_tool("flow", {**asked, "quiet": True}, progress_callback=heard.progress)
    run_id = (done.structured_content or {})["run_id"]
    log = (house.state / "runs" / run_id / "run.log").read_text()
    first = [note for note in heard.notes[:quiet_from] if note["_meta"]["event"] != "heartbeat"]
    # Two states, whatever happens inside of them: five iterations, and twenty lines of output.
    assert len(first) == 6
    assert len(first) < len(log.splitlines())
    assert not any("line 7" in json.dumps(note) for note in first)
    assert [note for note in heard.notes[quiet_from:] if note["_meta"]["event"] != "heartbeat"] == []
