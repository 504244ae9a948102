"""Seed 004, to the letter: what its examples read and write, through the tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from mcp.types import ElicitResult

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, ElicitRequestFormParams

    from tests.acceptance.mcp.conftest import House

SAID = "Please provide a valid option"
QUESTION: dict[str, Any] = {
    "id": "ask",
    "type": "user_input",
    "prompt": "What files do you want to process?\nOptions: branch <name>, commit <guid>, file-path <path>, or HEAD\n",
    "validation": {
        "pattern": "^(branch .+|commit [a-f0-9]{7,40}|file-path .+|HEAD)$",
        "error_message": SAID,
    },
    "state_update": {"path": "raw.user_choice"},
}

ERROR_TRACKING = """
default_state:
  raw:
    steps_completed: []
    steps_failed: []
    retry_counts: {}
    last_error: null
    workflow_errors: []

state_schema:
  raw:
    steps_completed: array
    steps_failed: array
    retry_counts: object
    last_error: object
    workflow_errors: array

  computed:
    can_retry:
      from: ["raw.steps_failed", "raw.retry_counts"]
      transform: |
        input[0].some(step =>
          (input[1][step] || 0) < 3
        )

    error_summary:
      from: ["raw.steps_failed", "raw.workflow_errors"]
      transform: |
        {
          failed_count: input[0].length,
          error_types: [...new Set(input[1].map(e => e.type))],
          first_error: input[1][0]
        }
"""


@pytest.fixture(scope="module", autouse=True)
def _workflows(house: House) -> None:
    house.project.workflow("asking", QUESTION, state_schema={"raw": {"user_choice": "string"}})
    failing = [
        {"id": "exits", "type": "shell_command", "command": "exit 3"},
        {"id": "exits_too", "type": "shell_command", "command": "exit 4"},
        {"id": "late", "type": "shell_command", "command": "sleep 600", "timeout": "100ms"},
        {"id": "throws", "type": "state_update", "path": "raw.retry_counts", "value": "{{ last_error.no.such }}"},
        {"id": "reported", "type": "agent", "prompt": "try"},
    ]
    steps = [{**step, "on_error": "continue"} for step in failing]
    house.project.workflow("failing", *steps, **yaml.safe_load(ERROR_TRACKING))


def _text(result: CallToolResult) -> str:
    return str(getattr(result.content[0], "text", None))


async def _called(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, _text(result)
    return dict(result.structured_content or {})


# --- a failed pattern says the author's words and nothing else


@pytest.mark.anyio
async def test_a_wrong_answer_in_a_form_is_told_in_the_authors_words(house: House, era: str) -> None:
    asked: list[ElicitRequestFormParams] = []

    async def elicit(_: Any, params: Any) -> ElicitResult:
        asked.append(params)
        return ElicitResult(action="accept", content={"answer": "no idea" if len(asked) == 1 else "HEAD"})

    async with house.client(era, elicitation_callback=elicit) as client:
        run = await _called(client, "flow", flow_name="asking", interactive=True)
    assert (run["status"], run["state"]["user_choice"]) == ("completed", "HEAD")
    assert [params.message for params in asked] == [QUESTION["prompt"], f"{QUESTION['prompt']}\n\n{SAID}"]


@pytest.mark.anyio
async def test_a_wrong_answer_at_a_resume_is_refused_in_the_authors_words_and_changes_nothing(
    house: House, era: str
) -> None:
    async with house.client(era) as client:
        run = await _called(client, "flow", flow_name="asking")
        assert run["status"] == "paused"
        refused = await client.call_tool("workflow_resume", {"workflow_id": run["run_id"], "answer": "no idea"})
        assert (refused.is_error, _text(refused)) == (True, SAID)
        (status,) = (await _called(client, "workflow_status", workflow_id=run["run_id"]))["runs"]
        assert status["status"] == "paused"
        assert house.project.events(run["run_id"], "run_resumed") == []
        await _called(client, "workflow_resume", workflow_id=run["run_id"], answer="branch main")
        await house.until(lambda: house.project.events(run["run_id"], "run_ended")[-1]["status"] == "completed")
        state = await _called(client, "workflow_state_read", workflow_id=run["run_id"])
    assert state["user_choice"] == "branch main"


@pytest.mark.anyio
async def test_a_wrong_answer_that_an_agent_reports_is_refused_in_the_authors_words(house: House, era: str) -> None:
    async with house.client(era) as client:
        run_id = (await _called(client, "workflow_start", workflow="asking"))["workflow_id"]
        step = (await _called(client, "workflow_get_next_step", workflow_id=run_id))["step"]
        assert step["definition"]["validation"]["error_message"] == SAID
        report = {"workflow_id": run_id, "step_id": step["id"]}
        refused = await client.call_tool("workflow_step_complete", {**report, "result": "no idea"})
        assert (refused.is_error, _text(refused)) == (True, SAID)
        await _called(client, "workflow_step_complete", **report, result="HEAD")
        state = await _called(client, "workflow_state_read", workflow_id=run_id)
    assert state["user_choice"] == "HEAD"


# --- errors


@pytest.mark.anyio
async def test_every_error_that_is_kept_has_a_type_as_the_seeds_summary_reads_it(house: House, era: str) -> None:
    async with house.client(era) as client:
        run_id = (await _called(client, "workflow_start", workflow="failing"))["workflow_id"]
        before = await _called(client, "workflow_state_read", workflow_id=run_id)
        assert before["error_summary"] == {"failed_count": 0, "error_types": []}
        step = (await _called(client, "workflow_get_next_step", workflow_id=run_id))["step"]
        report = {"workflow_id": run_id, "step_id": step["id"], "status": "failed", "error": "it cannot be done"}
        await _called(client, "workflow_step_complete", **report)
        state = await _called(client, "workflow_state_read", workflow_id=run_id)
    assert state["steps_failed"] == ["exits", "exits_too", "late", "throws", "reported"]
    assert [error["step"] for error in state["workflow_errors"]] == state["steps_failed"]
    assert state["error_summary"]["error_types"] == ["command", "timeout", "TemplateError", "failed"]
    assert state["error_summary"]["first_error"] == state["workflow_errors"][0]
    assert state["last_error"]["type"] == "failed"
