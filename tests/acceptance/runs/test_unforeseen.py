"""Whatever goes wrong inside, a start has one end: the step fails, `on_error` applies, and people read one line."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kit import Project

PRINT_DEEP = f"{sys.executable} -c \"print('[' * 800 + ']' * 800)\""
# One line that is longer than what is kept of it in memory, and then no file to read it from.
LOSE_LOG = "head -c 1500000 /dev/zero | tr '\\0' x; rm -r .swissarmyhammer/runs/$SIDECAR_RUN_ID/agents"
DEEP = "(() => { let x = []; for (let i = 0; i < 600; i++) x = [x]; return x })()"
TOO_DEEP = "nested more than 200 levels deep"
STEPS: dict[str, tuple[dict[str, Any], str]] = {
    "JSON into the state": (
        {
            "type": "shell_command",
            "command": PRINT_DEEP,
            "output_format": "json",
            "state_update": {"path": "raw.found"},
        },
        TOO_DEEP,
    ),
    "JSON for nobody": ({"type": "shell_command", "command": PRINT_DEEP, "output_format": "json"}, TOO_DEEP),
    "a deep value": ({"type": "state_update", "path": "raw.found", "value": f"{{{{ {DEEP} }}}}"}, TOO_DEEP),
    "a NUL in working_dir": (
        {"type": "shell_command", "command": "true", "working_dir": "{{ 'a\\u0000b' }}"},
        "working_dir 'a\\x00b' holds a NUL byte",
    ),
    "half a character as argument": (
        {"type": "agent", "agent": "argument", "prompt": "say {{ '\\ud800' }}"},
        "the prompt contains half a surrogate pair",
    ),
    "half a character on stdin": (
        {"type": "agent", "agent": "stdin", "prompt": "say {{ '\\ud800' }}"},
        "the prompt contains half a surrogate pair",
    ),
    "a log that is gone": ({"type": "shell_command", "command": LOSE_LOG}, "unexpected FileNotFoundError"),
}


@pytest.fixture
def project(flows: Project) -> Project:
    for via in ("argument", "stdin"):
        flows.agent(via, "", command=["echo"], prompt_via=via)
    return flows


def define(flows: Project, step: dict[str, Any], **more: Any) -> None:
    after = {"id": "after", "type": "user_message", "message": "went on"}
    flows.workflow("odd", {"id": "odd", **step}, after, state_schema={"raw": {"found": "array"}}, **more)


def told(out: str) -> list[tuple[str, dict[str, Any]]]:
    return [(event["kind"], event["data"]) for event in map(json.loads, out.splitlines()) if "kind" in event]


def ends(flows: Project) -> list[tuple[str, str | None]]:
    """What the journal has of the last run's ends."""
    events = flows.events(flows.journalled()[0].run_id)
    return [(event.data["status"], event.data["reason"]) for event in events if event.kind == "run_ended"]


@pytest.mark.parametrize("what", STEPS)
def test_on_error_applies_to_whatever_fails_a_step(project: Project, what: str) -> None:
    step, said = STEPS[what]
    define(project, {**step, "on_error": "continue"})
    code, out, err = project.run("flow", "run", "odd", "--json-events")
    assert (code, err) == (0, "")
    events = told(out)
    (failed,) = [data for kind, data in events if kind == "step_failed"]
    assert said in failed["error"]["message"]
    assert "\n" not in failed["error"]["message"]
    assert [data["status"] for kind, data in events if kind == "run_ended"] == ["completed"]
    assert [data["text"] for kind, data in events if kind == "message"] == ["went on"]
    assert ends(project) == [("completed", "")]


@pytest.mark.parametrize("what", STEPS)
def test_without_on_error_the_run_fails_with_one_line(project: Project, what: str) -> None:
    step, said = STEPS[what]
    define(project, step)
    code, out, err = project.run("flow", "run", "odd", "-q")
    assert (code, err.count("\n")) == (2, 1), (out, err)
    assert said in err
    assert "Traceback" not in out + err
    ((status, reason),) = ends(project)
    assert status == "failed"
    assert said in (reason or "")
    assert project.json("status", "--json")["runs"][0]["status"] == "failed"


def test_the_traceback_of_what_nobody_foresaw_is_in_the_runs_log(project: Project) -> None:
    step, _ = STEPS["a log that is gone"]
    define(project, step)
    code, _, err = project.run("flow", "run", "odd")
    assert code == 2
    assert "(run.log has the traceback)" in err
    log = (project.directory(project.journalled()[0].run_id) / "run.log").read_text()
    assert "Traceback (most recent call last)" in log
    assert "FileNotFoundError" in log.splitlines()[-2]
    assert log.splitlines()[-1].partition(" ")[2].startswith("failed: unexpected FileNotFoundError")


@pytest.mark.parametrize("count", ["1/0", "0/0", "'x'", "null", "[1]"])
def test_a_workflow_whose_retries_cannot_be_counted_fails_with_what_failed_it(flows: Project, count: str) -> None:
    flows.workflow(
        "odd",
        {"id": "odd", "type": "shell_command", "command": "exit 3"},
        error_handling={"on_error": "retry_workflow", "retry_count": f"{{{{ {count} }}}}"},
    )
    code, out, err = flows.run("flow", "run", "odd", "--json-events")
    assert (code, err.count("\n")) == (2, 1), (out, err)
    assert [data["reason"] for kind, data in told(out) if kind == "run_ended"] == ["the command ended with exit code 3"]
    (warning,) = [data["text"] for kind, data in told(out) if kind == "warning"]
    assert warning.startswith("it is not known how often the workflow is to be retried")


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"max_duration": "{{ 1/0 }}"}, "limits: max_duration: inf is not a duration"),
        ({"max_iterations": "{{ 'many' }}"}, "limits: max_iterations has to be a number, not 'many'"),
        ({"max_transitions": "{{ [1] }}"}, "limits: max_transitions has to be a number, not [1]"),
    ],
)
def test_a_run_whose_limits_make_no_sense_begins_and_ends(flows: Project, limits: dict[str, str], said: str) -> None:
    define(flows, {"type": "shell_command", "command": "true"}, limits=limits)
    code, out, err = flows.run("flow", "run", "odd", "--json-events")
    assert (code, err.count("\n")) == (2, 1), (out, err)
    assert said in err
    assert [kind for kind, _ in told(out)] == ["run_started", "run_ended"]


def test_a_state_that_grows_deeper_with_each_round_fails_in_words_and_can_be_read(flows: Project) -> None:
    flows.workflow(
        "odd",
        {
            "id": "loop",
            "type": "while",
            "condition": "{{ true }}",
            "max_iterations": 1000,
            "body": [{"id": "grow", "type": "state_update", "path": "raw.found", "value": "{{ [found] }}"}],
        },
        state_schema={"raw": {"found": "array"}},
        default_state={"raw": {"found": []}},
    )
    run = flows.json("flow", "run", "odd", "--json", code=2)
    assert run["status"] == "failed"
    assert TOO_DEEP in run["reason"]
    depth, found = 0, run["state"]["found"]
    while found:
        depth, found = depth + 1, found[0]
    assert depth > 100


def test_a_task_that_falls_over_fails_and_its_siblings_are_done(flows: Project) -> None:
    flows.workflow(
        "odd",
        {
            "id": "each",
            "type": "parallel_foreach",
            "items": ["bad", "good"],
            "sub_agent_task": "one",
            "on_sub_agent_error": {"strategy": "continue"},
        },
        sub_agent_tasks={
            "one": {
                "description": "",
                "steps": [
                    {
                        "id": "which",
                        "type": "conditional",
                        "condition": "{{ item == 'bad' }}",
                        "then": [{"id": "lose", "type": "shell_command", "command": LOSE_LOG}],
                        "else": [{"id": "do", "type": "shell_command", "command": "touch done"}],
                    }
                ],
            }
        },
    )
    code, out, err = flows.run("flow", "run", "odd")
    assert (code, err) == (0, ""), out
    assert (flows.root / "done").exists()
    failed = [event.data for event in flows.events(flows.journalled()[0].run_id) if event.kind == "task_ended"]
    assert sum("unexpected FileNotFoundError" in str(data["error"]) for data in failed) == 1


# --- the same for an agent that drives the run


@pytest.mark.parametrize("what", [name for name, (step, _) in STEPS.items() if step["type"] != "agent"])
@pytest.mark.parametrize("on_error", ["continue", "fail"])
def test_a_run_that_an_agent_drives_has_its_end_too(project: Project, what: str, on_error: str) -> None:
    step, said = STEPS[what]
    define(project, {**step, "on_error": on_error})
    with project.serve() as client:
        run_id = client.hello().use("workflow_start", workflow="odd")["workflow_id"]
        got = client.use("workflow_get_next_step", workflow_id=run_id)
        if on_error == "continue":
            assert got["step"]["definition"]["message"] == "went on"
            client.use("workflow_step_complete", workflow_id=run_id, step_id=got["step"]["id"])
            got = client.use("workflow_get_next_step", workflow_id=run_id)
    assert got["step"] is None
    assert got["status"] == ("completed" if on_error == "continue" else "failed")
    (failed,) = [event.data for event in project.events(run_id) if event.kind == "step_failed"]
    assert said in failed["error"]["message"]
    assert len(ends(project)) == 1
    if "unexpected" in said:
        assert "Traceback" in (project.directory(run_id) / "run.log").read_text()
