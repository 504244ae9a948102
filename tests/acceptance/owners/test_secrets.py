"""The value of a secret is in nothing that a run tells, whoever put it there; the run still computes with it."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mcp import Client

    from tests.kit import Project

SECRET = "sk-ant-0123456789-never-seen"
MASKED = "********"


@pytest.fixture
def project(project: Project) -> Project:
    project.environment["ANTHROPIC_API_KEY"] = SECRET
    return project


def is_nowhere(project: Project, *shown: str) -> None:
    """Not in what was shown, not in what every command shows, and in no file of the project's own, open or not."""
    told = [*shown, project.output("status", "--json"), project.output("status")]
    for run in project.runs():
        told += [project.output(*words, run["run_id"]) for words in (("logs", "--json"), ("logs",), ("status",))]
    assert not [text for text in told if SECRET in text]
    files = [path for path in project.state.rglob("*") if path.is_file()]
    assert "sidecar.db" in {path.name for path in files}
    assert not [str(path) for path in files if SECRET.encode() in path.read_bytes()]


async def called(client: Client, told: list[str], name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    told.append(result.model_dump_json())
    return result.structured_content or {}


@pytest.mark.anyio
async def test_what_an_agent_outside_says_is_told_without_it(project: Project) -> None:
    project.workflow(
        "driven",
        {"id": "a", "type": "agent", "prompt": "do", "on_error": "continue"},
        {"id": "b", "type": "agent", "prompt": "do more"},
    )
    told: list[str] = []
    async with project.client("legacy") as client:
        run_id = (await called(client, told, "workflow_start", workflow="driven"))["workflow_id"]
        await called(client, told, "workflow_get_next_step", workflow_id=run_id)
        failed = {"step_id": "a", "status": "failed", "error": f"{SECRET} was refused"}
        await called(client, told, "workflow_step_complete", workflow_id=run_id, **failed)
        await called(client, told, "workflow_get_next_step", workflow_id=run_id)
        gate = {"stage": f"with {SECRET}", "output": f"the key is {SECRET}"}
        await called(client, told, "stage_gate", run_id=run_id, **gate)
        paused = await called(client, told, "workflow_status", workflow_id=run_id)
        assert MASKED in json.dumps(paused["runs"][0]["needs"])
        is_nowhere(project, *told)  # while the database is open, its log beside it
        await called(client, told, "workflow_resume", workflow_id=run_id, feedback=f"do not print {SECRET}")
        step = await called(client, told, "workflow_get_next_step", workflow_id=run_id)
        assert f"do not print {MASKED}" in json.dumps(step)
        await called(client, told, "abort", run_id=run_id, reason=f"it printed {SECRET}")
        over = await called(client, told, "workflow_get_next_step", workflow_id=run_id)
        assert (over["status"], over["reason"]) == ("aborted", f"it printed {MASKED}")
    is_nowhere(project, *told)
    receipt = json.loads((project.state / "runs" / run_id / ".abort.receipt.json").read_text())
    assert receipt["reason"] == f"it printed {MASKED}"


@pytest.mark.parametrize("kind", ["stop", "abort"])
def test_the_reason_of_a_signal_is_told_without_it_everywhere(project: Project, kind: str) -> None:
    waiting = "touch begun; until [ -e go ]; do sleep 0.02; done"
    project.workflow(
        "work",
        {"id": "a", "type": "shell_command", "command": waiting},
        {"id": "b", "type": "shell_command", "command": "true"},
    )
    process = project.start("flow", "run", "work")
    project.until((project.root / "begun").exists)
    target = ["--all"] if kind == "stop" else []
    project.output(kind, *target, "--reason", f"because of {SECRET}")
    (project.root / "go").touch()
    out, err = process.communicate(timeout=120)
    assert process.returncode == (0 if kind == "stop" else 2)
    assert project.only_run()["reason"] == f"because of {MASKED}"
    is_nowhere(project, out, err, project.output("resume", project.only_run()["run_id"], "--dry-run", code=2))
    assert json.loads((project.state / f".{kind}.receipt.json").read_text())["reason"] == f"because of {MASKED}"


def test_messages_and_questions_show_it_masked_and_the_state_has_it(project: Project) -> None:
    project.workflow(
        "ask",
        {"id": "a", "type": "user_message", "message": "it is {{ inputs.key }}"},
        {"id": "b", "type": "user_input", "prompt": "is it {{ inputs.key }}?", "state_update": {"path": "raw.said"}},
        {"id": "c", "type": "shell_command", "command": 'test {{ said }} = "$ANTHROPIC_API_KEY"'},
        inputs={"key": {"type": "string"}},
        state_schema={"raw": {"said": "string"}},
    )
    shown = project.output("flow", "run", "ask", "-p", f"key={SECRET}")
    run_id = project.only_run()["run_id"]
    assert f"it is {MASKED}" in shown
    assert project.only_run()["needs"]["prompt"] == f"is it {MASKED}?"
    shown += project.output("answer", run_id, SECRET)
    assert project.only_run()["status"] == "completed"
    shown += project.output("status", "--json") + project.output("logs", "--json", run_id)
    assert SECRET not in shown
    assert [data["value"] for data in project.data(run_id, "answered")] == [MASKED]


@pytest.mark.anyio
async def test_the_trail_of_computed_fields_shows_it_masked(project: Project) -> None:
    header = {"from": "raw.key", "transform": "'key=' + input"}
    project.workflow(
        "compute",
        {"id": "a", "type": "shell_command", "command": 'test {{ header }} = "key=$ANTHROPIC_API_KEY"'},
        {"id": "b", "type": "agent", "prompt": "more"},
        inputs={"key": {"type": "string"}},
        default_state={"raw": {"key": "{{ inputs.key }}"}},
        state_schema={"raw": {"key": "string"}, "computed": {"header": header}},
    )
    told: list[str] = []
    async with project.client("legacy") as client:
        run_id = (await called(client, [], "workflow_start", workflow="compute", inputs={"key": SECRET}))["workflow_id"]
        next_step = await called(client, told, "workflow_get_next_step", workflow_id=run_id)
        assert next_step["step"]["id"] == "b"
        trail = await called(client, told, "workflow_trace_transformations", workflow_id=run_id)
    (trace,) = trail["traces"]
    assert (trace["field"], trace["input"], trace["output"]) == ("header", MASKED, f"key={MASKED}")
    assert SECRET not in "".join(told)


def test_a_run_that_computes_with_it_goes_on_with_the_right_value_after_a_crash(project: Project) -> None:
    check = 'test {{ item }} = "$ANTHROPIC_API_KEY-{{ index }}" && echo {{ index }} >> right; touch at-{{ index }}'
    work = {"id": "w", "type": "shell_command", "command": f"{check}; until [ -e go ]; do sleep 0.02; done"}
    each = {"id": "each", "type": "foreach", "items": "{{ [inputs.key + '-0', inputs.key + '-1'] }}", "body": [work]}
    project.workflow("loop", each, inputs={"key": {"type": "string"}})
    process = project.start("flow", "run", "loop", "-p", f"key={SECRET}")
    project.until((project.root / "at-0").exists)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(120)
    (project.root / "go").touch()
    run_id = project.only_run()["run_id"]
    project.output("resume", run_id)
    assert (project.root / "right").read_text().split() == ["0", "0", "1"]
    assert SECRET not in project.output("logs", "--json", run_id)
    assert f"{MASKED}-1" in json.dumps(project.data(run_id, "evaluated"))
