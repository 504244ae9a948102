"""Seed 004, to the letter: what its examples read and write, through the tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
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


@pytest.fixture(scope="module", autouse=True)
def _workflows(house: House) -> None:
    house.project.workflow("asking", QUESTION, state_schema={"raw": {"user_choice": "string"}})


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
