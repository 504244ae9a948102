"""Seed 004, to the letter: what its examples read and write, through the tools."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
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

COMPOSITION = """\
# shared/check-standards.yaml
workflow:
  name: "shared:check-standards"

  state_schema:
    raw:
      files: array
      typescript_results: object
      lint_results: object

    computed:
      files_with_errors:
        from: ["raw.typescript_results", "raw.lint_results"]
        transform: |
          Object.keys(input[0])
            .filter(f => input[0][f].errors > 0 || input[1][f].errors > 0)

      total_issues:
        from: ["raw.typescript_results", "raw.lint_results"]
        transform: |
          Object.values(input[0]).reduce((sum, r) => sum + r.errors, 0) +
          Object.values(input[1]).reduce((sum, r) => sum + r.errors, 0)

  steps:
    - id: "check_typescript"
      type: "foreach"
      items: "{{ inputs.files }}"
      steps:
        - type: "mcp_call"
          mcp:
            method: "check_typescript"
            params:
              files: ["{{ item }}"]
          state_update:
            path: "raw.typescript_results.{{ item }}"
            value: "{{ result }}"

    - id: "check_lint"
      type: "foreach"
      items: "{{ inputs.files }}"
      steps:
        - type: "mcp_call"
          mcp:
            method: "lint_project"
            params:
              target_files: "{{ item }}"
          state_update:
            path: "raw.lint_results.{{ item }}"
            value: "{{ result }}"

# main-workflow.yaml
imports:
  - "shared/check-standards.yaml"

steps:
  - id: "run_checks"
    type: "include_workflow"
    workflow: "shared:check-standards"
    inputs:
      files: "{{ valid_files }}"
    # Computed state from included workflow is available
"""
# What the example leaves to its reader: where the files come from, and what is made of the result.
AROUND_COMPOSITION = """
  - type: user_message
    message: "{{ run_checks.total_issues }} in {{ run_checks.files_with_errors.join() }} of {{ run_checks.files }}"
default_state:
  raw:
    valid_files: [src/a.ts, src/b.ts]
"""
# `twice` is computed at the start and after each write of `count`, `big` only where `twice` has another value.
COUNTING: dict[str, Any] = {
    "state": {
        "default_state": {"raw": {"count": 0}},
        "state_schema": {
            "raw": {"count": "number"},
            "computed": {
                "twice": {"from": "raw.count", "transform": "input * 2"},
                "big": {"from": "computed.twice", "transform": "input > 2"},
            },
        },
    },
    "steps": [
        {"id": "one", "type": "state_update", "path": "raw.count", "operation": "increment"},
        {"id": "ask", "type": "user_input", "prompt": "Go on?", "answer_type": "boolean"},
        {"id": "two", "type": "state_update", "path": "raw.count", "operation": "increment"},
    ],
}


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
    house.project.workflow("counting", *COUNTING["steps"], **COUNTING["state"])
    house.project.workflow(
        "fragile",
        {"type": "agent", "prompt": "write raw.text"},
        state_schema={
            "raw": {"text": "string"},
            "computed": {"parsed": {"from": "raw.text", "transform": "JSON.parse(input)"}},
        },
    )
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
        assert house.project.data(run["run_id"], "run_resumed") == []
        await _called(client, "workflow_resume", workflow_id=run["run_id"], answer="branch main")
        await house.until(lambda: house.project.data(run["run_id"], "run_ended")[-1]["status"] == "completed")
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


# --- the audit trail of transformations


def _seen(traces: list[dict[str, Any]]) -> list[tuple[str, str, Any, Any]]:
    return [(one["field"], one["trigger"], one["input"], one["output"]) for one in traces]


START = [("twice", "raw.count", 0, 0), ("big", "computed.twice", 0, False)]
FIRST = [("twice", "raw.count", 1, 2), ("big", "computed.twice", 2, False)]
SECOND = [("twice", "raw.count", 2, 4), ("big", "computed.twice", 4, True)]


async def _trail(client: Client, run_id: str, **more: Any) -> tuple[list[dict[str, Any]], int]:
    traces = (await _called(client, "workflow_trace_transformations", workflow_id=run_id, **more))["traces"]
    debug = await _called(client, "workflow_debug_info", workflow_id=run_id)
    return traces, debug["state_size"]["total_transformations"]


@pytest.mark.anyio
async def test_transformations_are_told_with_their_time_after_every_owner_of_the_run_is_gone(
    house: House, era: str
) -> None:
    begun = datetime.now(UTC)
    run_id = json.loads(house.project.output("flow", "run", "counting", "--json"))["run_id"]
    async with house.client(era) as client:  # the daemon, which never had the run
        paused, total = await _trail(client, run_id, include_timing=True)
        assert (_seen(paused), total) == ([*START, *FIRST], 4)
        house.project.output("answer", run_id, "yes")
        ended, total = await _trail(client, run_id, include_timing=True)
        of_field, _ = await _trail(client, run_id, field="big")
        assert (await _trail(client, run_id, field="computed.big"))[0] == of_field
        debug = await _called(client, "workflow_debug_info", workflow_id=run_id)
    assert (_seen(ended), total) == ([*START, *FIRST, *SECOND], 6)
    assert ended[:4] == paused, "what was computed is told as it was then, not as somebody computed it again"
    times = [datetime.fromisoformat(one["timestamp"]) for one in ended]
    assert times == sorted(times)
    assert begun - timedelta(milliseconds=1) <= times[0] <= times[-1] <= datetime.now(UTC)
    assert all(one["duration_ms"] > 0 and one["error"] is None for one in ended)
    assert _seen(of_field) == [START[1], FIRST[1], SECOND[1]]
    assert "duration_ms" not in of_field[0]
    assert debug["performance"]["avg_transformation_time"] > 0
    assert {one["field"] for one in debug["performance"]["slowest_transformations"]} == {"twice", "big"}


@pytest.mark.anyio
async def test_transformations_of_a_run_that_an_agent_drives_survive_its_end(house: House, era: str) -> None:
    async with house.client(era) as client:
        run_id = (await _called(client, "workflow_start", workflow="counting"))["workflow_id"]
        assert (_seen((await _trail(client, run_id))[0])) == START
        step = (await _called(client, "workflow_get_next_step", workflow_id=run_id))["step"]
        await _called(client, "workflow_step_complete", workflow_id=run_id, step_id=step["id"], result=True)
        assert (await _called(client, "workflow_get_next_step", workflow_id=run_id))["step"] is None
        traces, total = await _trail(client, run_id)
        wrong = {"workflow_id": run_id, "updates": [{"path": "raw.count", "value": 5}]}
        assert (await client.call_tool("workflow_state_update", wrong)).is_error
        assert (traces, total) == await _trail(client, run_id)
    assert (_seen(traces), total) == ([*START, *FIRST, *SECOND], 6)
    assert all(one["timestamp"] for one in traces)


@pytest.mark.anyio
async def test_a_transformation_that_was_undone_is_told_and_not_counted(house: House, era: str) -> None:
    async with house.client(era) as client:
        run_id = (await _called(client, "workflow_start", workflow="fragile"))["workflow_id"]
        wrong = {"workflow_id": run_id, "updates": [{"path": "raw.text", "value": "{"}]}
        assert (await client.call_tool("workflow_state_update", wrong)).is_error
        updates = [{"path": "raw.text", "value": "[1]"}]
        await _called(client, "workflow_state_update", workflow_id=run_id, updates=updates)
        await _called(client, "workflow_complete", workflow_id=run_id, status="failed")
        traces, total = await _trail(client, run_id)
    assert [(one["input"], one["output"], one["applied"]) for one in traces] == [("{", None, False), ("[1]", [1], True)]
    assert "SyntaxError" in traces[0]["error"]
    assert total == 1


# --- composition


@pytest.mark.anyio
async def test_an_included_workflow_has_the_values_that_it_is_given_as_inputs_and_as_raw_fields(
    house: House, era: str
) -> None:
    shared, main = COMPOSITION.split("# main-workflow.yaml\n")
    (house.state / "workflows" / "shared").mkdir(exist_ok=True)
    (house.state / "workflows" / "shared" / "check-standards.yaml").write_text(shared)
    (house.state / "workflows" / "main-workflow.yaml").write_text(main + AROUND_COMPOSITION)
    server = {"command": sys.executable, "args": [str(Path(__file__).parent / "programs" / "standards.py")]}
    (house.root / ".mcp.json").write_text(json.dumps({"mcpServers": {"standards": server}}))
    for file in ("main-workflow.yaml", "shared/check-standards.yaml"):
        checked = json.loads(house.project.output("validate", str(house.state / "workflows" / file), "--json"))
        assert checked["findings"] == []
    async with house.client(era) as client:
        planned = await _called(client, "flow", flow_name="main-workflow", dry_run=True)
        assert "unknown" not in json.dumps(planned)
        run = await _called(client, "flow", flow_name="main-workflow")
        assert run["status"] == "completed"
        assert run["messages"] == ['5 in src/b.ts of ["src/a.ts", "src/b.ts"]']
        traces, _ = await _trail(client, run["run_id"], field="total_issues")
    assert {one["included_by"][0] for one in traces} == {"run_checks"}
    assert traces[-1]["output"] == 5
