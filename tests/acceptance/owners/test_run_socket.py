"""The socket of a run: its agents call back through `sidecar serve`, whoever owns the run."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kit import Project


OWNERS = ["a terminal", "a detached owner", "a daemon"]


@pytest.fixture(params=["a terminal", "a daemon"])
def begin(request: pytest.FixtureRequest, project: Project) -> Any:
    """Starts a workflow under each kind of owner, and does not wait for its end."""

    def start(workflow: str) -> None:
        if request.param == "a terminal":
            project.start("flow", "run", workflow)
            return
        if request.param == "a daemon":
            project.daemon()
        project.output("flow", "run", workflow, "--detach")

    return start


@pytest.mark.parametrize("begin", OWNERS, indirect=True)
def test_an_agent_that_aborts_has_its_answer_before_it_is_ended(project: Project, begin: Any) -> None:
    project.calling_agent("caller", "call", "answer", ("abort", {"reason": "this leads nowhere"}))
    project.workflow("work", {"id": "a", "type": "agent", "agent": "caller", "prompt": "go", "on_error": "continue"})
    begin("work")
    answer = json.loads(project.until_file("answer").read_text())
    assert answer["structuredContent"]["success"] is True
    run_id = project.runs()[0]["run_id"]
    assert project.until_status(run_id, "aborted")["reason"] == "this leads nowhere"
    # Its own run, not the project.
    assert os.path.dirname(answer["structuredContent"]["path"]) == str(project.state / "runs" / run_id)
    assert [ended["reason"] for ended in project.data(run_id, "agent_ended")] == ["abort"]
    project.until(lambda: not (project.state / "runs" / run_id / "mcp.sock").exists())


def test_a_stage_is_submitted_and_the_run_pauses_with_the_answer_delivered(project: Project, begin: Any) -> None:
    (project.state / "config.yaml").write_text("kill_after_s: 1\n")
    submits = ("stage_gate", {"stage": "design", "output": "two columns"})
    project.calling_agent("caller", "call", "answer", submits)
    project.workflow(
        "work",
        {"id": "a", "type": "agent", "agent": "caller", "prompt": "go"},
        {"id": "b", "type": "shell_command", "command": "echo later > later"},
    )
    begin("work")
    answer = json.loads(project.until_file("answer").read_text())
    run_id = project.runs()[0]["run_id"]
    assert answer["structuredContent"] == {"allowed": False, "pause_required": True, "run_id": run_id}
    paused = project.until_status(run_id, "paused")
    assert paused["needs"]["output"] == "two columns"
    ended = project.data(run_id, "agent_ended")
    assert [(each["reason"], each["survivors"]) for each in ended] == [("stage_gate", 0)]
    project.calling_agent("caller", "once", "again", ("workflow_status", {}))
    project.output("resume", run_id, "--feedback", "three columns, please")
    assert project.until_status(run_id, "completed")
    assert (project.root / "later").read_text() == "later\n"


def test_the_agents_of_tasks_do_the_steps_of_the_run_that_is_open(project: Project, begin: Any) -> None:
    project.calling_agent("worker", "tasks", "notes")
    project.workflow(
        "work",
        {
            "id": "all",
            "type": "parallel_foreach",
            "items": "{{ ['x', 'y', 'z'] }}",
            "max_parallel": 2,
            "agent": "worker",
            "sub_agent_task": "one",
        },
        {"id": "after", "type": "shell_command", "command": "echo {{ done.length }} > after"},
        state_schema={"raw": {"done": "array"}},
        default_state={"raw": {"done": []}},
        sub_agent_tasks={
            "one": {
                "description": "does one",
                "steps": [
                    {"id": "first", "type": "shell_command", "command": "echo here >> shell"},
                    {
                        "id": "second",
                        "type": "agent",
                        "prompt": "do {{ item }}",
                        "state_update": {"path": "raw.done", "operation": "append"},
                    },
                    {"id": "third", "type": "agent", "prompt": "check {{ item }}"},
                ],
            }
        },
    )
    begin("work")
    project.until_file("after")
    assert (project.root / "after").read_text() == "3\n"
    assert (project.root / "shell").read_text() == "here\n" * 3
    noted = [json.loads(line) for line in (project.root / "notes").read_text().splitlines()]
    assert all(each["same"] and not each["told"].get("isError") for each in noted if "step" in each)
    assert sorted(each["task"] for each in noted if "over" in each) == ["all.0", "all.1", "all.2"]
    assert len([each for each in noted if "step" in each]) == 6
    run_id = project.runs()[0]["run_id"]
    project.until_status(run_id, "completed")
    assert sorted(each["task"] for each in project.data(run_id, "task_ended")) == ["all.0", "all.1", "all.2"]
    assert len(project.data(run_id, "run_ended")) == 1


@pytest.mark.parametrize("with_others", [True, False], ids=["beside steps for the task's agent", "alone"])
def test_a_step_of_a_task_is_done_by_the_agent_that_it_names(
    project: Project, begin: Any, *, with_others: bool
) -> None:
    project.calling_agent("worker", "tasks", "notes")
    for name in ("reviewer", "hinter"):
        content = {"description": "", "adapter": "command", "command": ["sh", "-c", f"cat >> {name}; echo of {name}"]}
        (project.state / "agents" / f"{name}.yaml").write_text(json.dumps(content))
    kept = {"state_update": {"path": "raw.done", "operation": "append"}}
    named = [
        {"id": "review", "type": "agent", "agent": "{{ 'reviewer' }}", "prompt": "review {{ item }}.", **kept},
        {"id": "hint", "type": "apply_hints", "agent": "hinter", "file": "f", "hints": ["h"], "on_error": "continue"},
    ]
    first, last = ({"id": name, "type": "agent", "prompt": f"{name} {{{{ item }}}}", **kept} for name in "ab")
    project.workflow(
        "work",
        {
            "id": "all",
            "type": "parallel_foreach",
            "items": ["x", "y"],
            "agent": "worker",
            "sub_agent_task": "one",
        },
        {"id": "after", "type": "shell_command", "command": "echo {{ JSON.stringify(done) }} > after"},
        state_schema={"raw": {"done": "array"}},
        default_state={"raw": {"done": []}},
        sub_agent_tasks={
            "one": {"description": "does one", "steps": [first, *named, last] if with_others else named},
        },
    )
    begin("work")
    project.until_file("after")
    run_id = project.runs()[0]["run_id"]
    project.until_status(run_id, "completed")
    started = sorted(each["name"] for each in project.data(run_id, "agent_started"))
    own = ["worker", "worker"] if with_others else []
    assert started == ["after", "hinter", "hinter", "reviewer", "reviewer", *own]
    assert sorted((project.root / "reviewer").read_text().split(".")) == ["", "review x", "review y"]
    others = ["all.0 did it"] * 2 + ["all.1 did it"] * 2 if with_others else []
    assert sorted(json.loads((project.root / "after").read_text())) == [*others, "of reviewer", "of reviewer"]


def test_an_agent_writes_the_state_of_its_own_run_and_is_refused_its_steps(project: Project, begin: Any) -> None:
    writes = ("workflow_state_update", {"workflow_id": "$RUN", "updates": [{"path": "raw.found", "value": 7}]})
    reads = ("workflow_state_read", {"workflow_id": "$RUN"})
    asks = ("workflow_get_next_step", {"workflow_id": "$RUN"})
    project.calling_agent("writer", "once", "answers", writes, reads, asks)
    project.workflow(
        "work",
        {"id": "a", "type": "agent", "agent": "writer", "prompt": "go"},
        {"id": "b", "type": "shell_command", "command": "echo {{ found }} > found"},
        state_schema={"raw": {"found": "number"}},
    )
    begin("work")
    assert project.until_file("found").read_text() == "7\n"
    wrote, read, asked = [json.loads(line) for line in (project.root / "answers").read_text().splitlines()]
    assert wrote["structuredContent"]["success"] is True
    assert read["structuredContent"]["found"] == 7
    assert asked["isError"]
    assert "executed by the sidecar itself" in asked["content"][0]["text"]


def test_the_socket_is_bound_for_its_user_alone_and_costs_no_import_until_somebody_connects(project: Project) -> None:
    look = "stat -c %a .swissarmyhammer/runs/$SIDECAR_RUN_ID/mcp.sock > mode"
    project.workflow("work", {"id": "a", "type": "shell_command", "command": look})
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sidecar", "flow", "run", "work"],
        cwd=project.root,
        env=project.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (project.root / "mode").read_text() == "600\n"
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "sidecar.mcp_server.endpoints" in imported
    assert not {"mcp", "mcp.types", "starlette", "uvicorn", "sidecar.mcp_server.server"} & imported


def test_claude_is_told_of_a_server_that_leads_to_its_run(project: Project) -> None:
    fake = project.root / "claude"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > arguments\ncat > /dev/null\necho "{}"\n')
    fake.chmod(0o755)
    project.environment["SIDECAR_CLAUDE"] = str(fake)
    project.workflow("work", {"id": "a", "type": "agent", "agent": "claude", "prompt": "go", "on_error": "continue"})
    project.start("flow", "run", "work").communicate(timeout=120)
    words = (project.root / "arguments").read_text().splitlines()
    server = json.loads(words[words.index("--mcp-config") + 1])["mcpServers"]["sidecar"]
    assert [server["command"], *server["args"]] == [sys.executable, "-P", "-m", "sidecar", "serve"]
    run_id = project.runs()[0]["run_id"]
    assert server["env"] == {"SIDECAR_PROJECT": str(project.root), "SIDECAR_RUN_ID": run_id}


def test_a_run_goes_on_where_its_socket_cannot_be_bound(project: Project) -> None:
    project.workflow("stuck", {"id": "a", "type": "user_input", "prompt": "which?"})
    project.output("flow", "run", "stuck")
    run_id = project.only_run()["run_id"]
    (project.state / "runs" / run_id / "mcp.sock").mkdir()
    process = project.start("answer", run_id, "that")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "cannot call back" in err
    assert stat.S_ISDIR((project.state / "runs" / run_id / "mcp.sock").stat().st_mode)
