"""`sidecar status`: what is known of runs, whoever executes them."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from tests.kit import journal

if TYPE_CHECKING:
    from tests.kit import Project


def test_without_any_run_it_says_so_and_makes_no_database(flows: Project) -> None:
    assert flows.json("status", "--json") == {"runs": []}
    code, out, _ = flows.run("status")
    assert (code, "no runs yet" in out) == (0, True)
    code, _, err = flows.run("status", "01ABCDEF")
    assert (code, "no such run: 01ABCDEF" in err) == (2, True)
    assert not (flows.state / "sidecar.db").exists()


def test_a_run_of_another_process_is_shown_with_its_agents_and_signals(flows: Project) -> None:
    process = flows.start("flow", "run", "counting", "-q")
    flows.until_exists("at-0")
    (flows.state / ".stop").write_text("lunch")
    run = flows.json("status", "--json")["runs"][0]
    assert (run["status"], run["step"], run["iteration"]) == ("running", "loop[0]/work", 1)
    assert [signal["reason"] for signal in run["signals"]] == ["lunch"]
    (agent,) = run["agents"]
    assert os.path.exists(f"/proc/{agent['pid']}") or sys.platform != "linux"
    assert agent["name"] == "work"
    code, out, _ = flows.run("status", run["run_id"][:24])
    assert code == 0
    for told in (f"pid {agent['pid']}", "stop since", "lunch", "last events:", "step loop[0]/work: shell_command"):
        assert told in out
    flows.touch("go")
    flows.finished(process)
    code, out, _ = flows.run("status")
    heading, row = out.splitlines()
    assert heading.split() == ["RUN", "STATUS", "WORKFLOW", "STEP", "ITERATION", "AGE", "REASON"]
    assert row.split()[:3] == [run["run_id"], "stopped", "counting"]


def test_the_step_and_the_iteration_are_known_however_many_tasks_have_run(flows: Project) -> None:
    waiting = "touch at-last; until [ -e go ]; do sleep 0.02; done; false"
    wait = {"id": "wait", "type": "shell_command", "command": waiting}
    work = {"id": "if", "type": "conditional", "condition": "{{ item == 299 }}", "then": [wait]}
    each = {"id": "all", "type": "parallel_foreach", "items": "{{ [...Array(300).keys()] }}", "sub_agent_task": "work"}
    flows.workflow(
        "many",
        {"id": "loop", "type": "while", "condition": "{{ true }}", "body": [each]},
        sub_agent_tasks={"work": {"steps": [work]}},
    )
    process = flows.start("flow", "run", "many", "-q")
    flows.until_exists("at-last")
    run = flows.json("status", "--json")["runs"][0]
    assert (run["status"], run["step"], run["iteration"]) == ("running", "loop[0]/all", 1)
    flows.touch("go")
    assert flows.finished(process)[0] == 2
    run = flows.json("status", "--json")["runs"][0]
    assert (run["status"], run["step"], run["iteration"]) == ("failed", "loop[0]/all", 1)


def test_programs_get_at_most_200_runs_unless_they_ask_for_more(flows: Project) -> None:
    flows.workflow("short", {"type": "user_message", "message": "done"})
    flows.output("flow", "run", "short")
    journal.repeat_newest_run(flows.root, 202)

    def count(*options: str) -> int:
        return len(flows.json("status", "--json", *options)["runs"])

    assert [count(), count("--all"), count("--limit", "201"), count("--limit", "2")] == [200, 203, 201, 2]
    assert len(flows.output("status").splitlines()) == 1 + 20 + 1  # a heading, rows for a screen, how to see the others


def test_watching_one_run_ends_with_it(flows: Project) -> None:
    process = flows.start("flow", "run", "counting", "-q")
    flows.until_exists("at-0")
    watching = flows.start_into("watched", "status", flows.journalled()[0].run_id, "--watch", "--json")
    flows.until(lambda: flows.lines("watched"))
    flows.touch("go")
    assert flows.finished(process)[0] == 0
    assert flows.finished(watching)[0] == 0
    seen = [json.loads(line)["runs"][0]["status"] for line in flows.lines("watched")]
    assert (seen[0], seen[-1]) == ("running", "completed")


def test_a_run_is_named_by_its_id_a_part_of_it_its_workspace_or_as_the_last(flows: Project) -> None:
    flows.workflow("echoing", {"id": "one", "type": "shell_command", "command": "true"})
    (flows.state / "workspaces" / "mine").mkdir(parents=True)
    run_ids = []
    for workspace in ("mine", "mine", None):
        named = ["--workspace", workspace] if workspace else []
        run_ids.append(flows.json("flow", "run", "echoing", "--json", *named)["run_id"])

    def shown(text: str) -> str:
        found: str = flows.json("status", text, "--json")["runs"][0]["run_id"]
        return found

    assert shown(run_ids[0]) == shown(run_ids[0].lower()) == shown(run_ids[0][-8:]) == run_ids[0]
    assert (shown("mine"), shown("last")) == (run_ids[1], run_ids[2])
    both = flows.output("status", run_ids[0][:4], code=2)
    assert run_ids[0] in both
    assert run_ids[1] in both


def test_without_a_run_logs_take_the_live_one_and_resume_the_newest_that_can_be_resumed(flows: Project) -> None:
    flows.workflow("failing", {"id": "one", "type": "shell_command", "command": "test -e go"})
    flows.workflow("slow", {"id": "one", "type": "shell_command", "command": "until test -e go; do sleep 0.05; done"})
    flows.workflow("echoing", {"id": "one", "type": "shell_command", "command": "true"})
    assert "no run has been started" in flows.output("logs", code=2)
    failed = flows.json("flow", "run", "failing", "--json", code=2)["run_id"]
    slow = flows.detached("slow")
    completed = flows.json("flow", "run", "echoing", "--json")["run_id"]
    assert f"run {slow} (slow)" in flows.run("logs")[2]
    flows.touch("go")
    flows.until_status(slow, "completed")
    assert f"run {completed} (echoing)" in flows.run("logs")[2]
    code, out, err = flows.run("resume", "-q")
    assert (code, f"run {failed} (failing)" in err) == (0, True)
    assert out.startswith(f"completed {failed}")
    assert "no run was named, and none fits" in flows.output("resume", code=2)
    assert "too short" in flows.output("answer", "01", "x", code=2)
