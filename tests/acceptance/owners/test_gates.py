"""A stage that was submitted: who lets it pass, who sends it back, and what the next agent is told."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.kit.project import CALLER

if TYPE_CHECKING:
    from tests.kit import Project

# Keeps its prompt. Without the word it submits what it has, and waits to be ended.
SUBMITS = """
n=$(ls | grep -c '^prompt'); cat > .prompt; mv .prompt prompt.$n
grep -q ENOUGH prompt.$n && exit 0
exec {python} {caller} call answer '{calls}'
"""
DEAF = "trap '' TERM; (" + SUBMITS.replace("exec ", "").replace("call answer", "once answer") + ") & wait; sleep 600"


def agent(project: Project, name: str, script: str) -> None:
    calls = json.dumps([["stage_gate", {"stage": "design", "output": "two columns"}]])
    script = script.format(python=sys.executable, caller=CALLER, calls=calls)
    content = {"description": name, "adapter": "command", "command": ["sh", "-c", script], "prompt_via": "stdin"}
    (project.state / "agents" / f"{name}.yaml").write_text(yaml.safe_dump(content))


def prompt(project: Project, number: int) -> str:
    return project.until_file(f"prompt.{number}").read_text()


def at_a_gate(project: Project) -> str:
    """A run that waits for approval; its id."""
    (project.state / "config.yaml").write_text("kill_after_s: 1\n")
    agent(project, "submits", SUBMITS)
    project.workflow(
        "work",
        {"id": "plan", "type": "agent", "agent": "submits", "prompt": "go"},
        {"id": "later", "type": "shell_command", "command": "echo later > later"},
    )
    project.output("flow", "run", "work")
    run_id = str(project.only_run()["run_id"])
    assert project.only_run()["status"] == "paused"
    return run_id


def journalled(project: Project, run_id: str) -> tuple[Any, int]:
    (run,) = project.journalled()
    return run, len(project.events(run_id))


async def call(project: Project, arguments: dict[str, Any], **environment: str) -> tuple[bool, str]:
    """Of `workflow_resume`: whether it was refused, and its text."""
    async with project.client("2026-07-28", **environment) as client:
        told = await client.call_tool("workflow_resume", arguments)
        return bool(told.is_error), str(told.content)


@pytest.mark.parametrize("options", [[], ["--with-changes", "--detach"]])
def test_a_bare_resume_at_a_gate_is_refused_and_changes_nothing(project: Project, options: list[str]) -> None:
    run_id = at_a_gate(project)
    before = journalled(project, run_id)
    (said,) = project.output("resume", run_id, *options, code=2).splitlines()
    assert "'design'" in said
    assert "--approve" in said
    assert "--feedback" in said
    assert journalled(project, run_id) == before
    assert not (project.root / "prompt.1").exists()


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_approval_lets_the_run_go_on(project: Project, detach: list[str]) -> None:
    run_id = at_a_gate(project)
    agent(project, "submits", SUBMITS.replace("ENOUGH", "'was approved'"))
    project.output("resume", run_id, "--approve", *detach)
    project.until_status(run_id, "completed")
    assert prompt(project, 1).startswith("go\n\nYou submitted 'design' for approval. The answer: It was approved.")
    assert (project.root / "later").exists()
    assert project.data(run_id, "run_resumed")[0]["approved"] is True


def test_feedback_alone_sends_the_stage_back_and_the_next_answer_replaces_it(project: Project) -> None:
    run_id = at_a_gate(project)
    project.output("resume", run_id, "--approve")
    assert "It was approved" in prompt(project, 1)
    project.output("resume", run_id, "--feedback", "three columns")
    assert project.only_run()["status"] == "paused"
    sent_back = prompt(project, 2)
    assert "The answer: three columns" in sent_back
    assert "It was not approved" in sent_back
    assert "It was approved" not in sent_back
    project.output("resume", run_id, "--approve", "--feedback", "ENOUGH of that")
    project.until_status(run_id, "completed")
    approved = prompt(project, 3)
    assert "It was approved" in approved
    assert "ENOUGH of that" in approved
    assert "three columns" not in approved
    assert "not approved" not in approved


def test_an_agent_of_the_run_cannot_approve_on_the_command_line(project: Project) -> None:
    run_id = at_a_gate(project)
    before = journalled(project, run_id)
    project.environment["SIDECAR_RUN_ID"] = run_id
    assert "cannot approve" in project.output("resume", run_id, "--approve", code=2)
    assert journalled(project, run_id) == before


@pytest.mark.anyio
@pytest.mark.parametrize("daemon", [False, True])
async def test_the_same_holds_for_workflow_resume(project: Project, daemon: bool) -> None:
    run_id = at_a_gate(project)
    if daemon:
        project.daemon()
    before = journalled(project, run_id)
    refused = [
        await call(project, {"workflow_id": run_id}),
        await call(project, {"workflow_id": run_id, "answer": 4}),
        await call(project, {"workflow_id": run_id, "approve": True}, SIDECAR_RUN_ID=run_id),
        await call(project, {"workflow_id": run_id, "feedback": "  "}),
    ]
    assert [is_error for is_error, _ in refused] == [True] * 4
    assert "approve" in refused[0][1]
    assert "cannot approve" in refused[2][1]
    assert journalled(project, run_id) == before
    assert not (await call(project, {"workflow_id": run_id, "feedback": "-x columns"}))[0]
    assert "The answer: -x columns" in prompt(project, 1)
    project.until_status(run_id, "paused")
    assert not (await call(project, {"workflow_id": run_id, "feedback": "ENOUGH", "approve": True}))[0]
    project.until_status(run_id, "completed")
    assert (await call(project, {"workflow_id": run_id, "approve": True}))[0]


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_feedback_without_a_gate_reaches_the_next_prompt_and_no_other(project: Project, detach: list[str]) -> None:
    agent(project, "keeps", SUBMITS.replace("grep -q ENOUGH prompt.$n && ", ""))
    project.workflow(
        "work",
        {"id": "before", "type": "shell_command", "command": "echo before"},
        {"id": "one", "type": "agent", "agent": "keeps", "prompt": "first"},
        {"id": "two", "type": "agent", "agent": "keeps", "prompt": "second"},
    )
    (project.state / ".stop").touch()
    project.output("flow", "run", "work")
    run_id = project.only_run()["run_id"]
    project.output("resume", run_id, "--feedback=-x marks the spot", *detach)
    project.until_status(run_id, "completed")
    assert prompt(project, 0) == "first\n\n-x marks the spot"
    assert prompt(project, 1) == "second"


def test_feedback_is_still_there_for_the_step_that_is_done_again(project: Project) -> None:
    waiting = SUBMITS.replace("grep -q ENOUGH prompt.$n && exit 0", "test -e go && exit 0; exec sleep 600")
    agent(project, "keeps", waiting)
    project.workflow("work", {"id": "one", "type": "agent", "agent": "keeps", "prompt": "first"})
    (project.state / ".stop").touch()
    project.output("flow", "run", "work")
    run_id = project.only_run()["run_id"]
    owner = project.start("resume", run_id, "--feedback", "be quick")
    assert prompt(project, 0) == "first\n\nbe quick"
    owner.kill()
    owner.wait()
    (project.root / "go").touch()
    project.output("resume", run_id)
    assert prompt(project, 1) == "first\n\nbe quick"


@pytest.mark.anyio
async def test_feedback_to_a_run_that_an_agent_drives_is_in_the_step_that_it_gets_next(project: Project) -> None:
    project.workflow(
        "driven",
        {"id": "one", "type": "agent", "prompt": "first"},
        {"id": "two", "type": "agent_shell_command", "command": "make", "reason": "so"},
        {"id": "three", "type": "agent", "prompt": "third"},
    )
    async with project.client("2026-07-28") as client:

        async def asked(tool: str, **arguments: Any) -> dict[str, Any]:
            told = await client.call_tool(tool, arguments)
            assert not told.is_error, told
            return dict(told.structured_content or {})

        run = (await asked("workflow_start", workflow="driven"))["workflow_id"]
        first = (await asked("workflow_get_next_step", workflow_id=run))["step"]
        assert "workflow_resume with feedback" in project.output("redirect", run, "use tabs", code=2)
        await asked("workflow_resume", workflow_id=run, feedback="use tabs")
        again = (await asked("workflow_get_next_step", workflow_id=run))["step"]
        assert (again["id"], again["definition"]["prompt"]) == (first["id"], "first\n\nuse tabs")
        assert (await asked("workflow_get_next_step", workflow_id=run))["step"] == again
        await asked("workflow_resume", workflow_id=run, feedback="and no spaces")
        await asked("workflow_step_complete", workflow_id=run, step_id=first["id"], result="done")
        second = (await asked("workflow_get_next_step", workflow_id=run))["step"]
        assert second["definition"]["notes"] == ["and no spaces"]
        assert "definition.notes" in second["instructions"]
        await asked("workflow_step_complete", workflow_id=run, step_id=second["id"], result="done")
        third = (await asked("workflow_get_next_step", workflow_id=run))["step"]
        assert third["definition"]["prompt"] == "third"
        await asked("stage_gate", stage="design", output="x", run_id=run)
        assert (await client.call_tool("workflow_resume", {"workflow_id": run})).is_error
        await asked("workflow_resume", workflow_id=run, approve=True, feedback="well done")
        third = (await asked("workflow_get_next_step", workflow_id=run))["step"]
        assert "It was approved" in third["definition"]["prompt"]
        assert third["definition"]["prompt"].endswith("well done")


def test_what_was_submitted_is_shown_at_once_and_a_deaf_agent_is_ended_within_one_grace(project: Project) -> None:
    (project.state / "config.yaml").write_text("kill_after_s: 4\n")
    agent(project, "deaf", DEAF)
    project.workflow("work", {"id": "plan", "type": "agent", "agent": "deaf", "prompt": "go"})
    owner = project.start("flow", "run", "work")
    run = project.until(lambda: next((one for one in project.runs() if one["needs"]), None))
    assert run["needs"]["output"] == "two columns"
    assert run["agents"], "the agent is still to be ended"
    assert "two columns" in project.output("status", run["run_id"])
    owner.communicate(timeout=120)
    at = {event.kind: event.at for event in project.events(run["run_id"])}
    assert at["agent_ended"] - at["gate"] < 7  # it was twice the grace
    assert project.only_run()["status"] == "paused"
    assert project.only_run()["needs"] == run["needs"]
    assert os.path.exists(project.root / "answer")
