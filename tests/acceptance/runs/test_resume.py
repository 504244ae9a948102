"""Runs that end before their last step, and go on: stopped, aborted, dead, with a question, with another workflow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kit import Project

ASKING: list[dict[str, Any]] = [
    {"id": "before", "type": "shell_command", "command": "echo before >> ran"},
    {
        "id": "ask",
        "type": "user_input",
        "prompt": "How many?",
        "answer_type": "integer",
        "state_update": {"path": "raw.count"},
    },
    {"id": "after", "type": "shell_command", "command": "echo after {{ count }} >> ran"},
]


def one_after_the_other(flows: Project, second: str) -> None:
    flows.workflow(
        "pair",
        {"id": "first", "type": "shell_command", "command": "echo first >> ran"},
        {"id": "second", "type": "shell_command", "command": second},
    )


def test_a_stop_by_touch_ends_after_the_iteration_and_resume_does_the_rest(flows: Project) -> None:
    process = flows.start("flow", "run", "counting", "--json")
    flows.until_exists("at-0")
    (flows.state / ".stop").touch()
    flows.touch("go")
    code, out, err = flows.finished(process)
    run = json.loads(out)
    assert (code, run["status"], flows.lines("ran")) == (0, "stopped", ["0"])
    assert f"to continue: sidecar resume {run['run_id']}" in err
    assert not (flows.state / ".stop").exists()
    receipt = json.loads((flows.state / ".stop.receipt.json").read_text())
    assert receipt["runs"] == [{"run_id": run["run_id"], "status": "stopped"}]
    resumed = flows.json("resume", run["run_id"], "--json")
    assert (resumed["status"], resumed["state"]["n"], flows.lines("ran")) == ("completed", 3, ["0", "1", "2"])
    assert flows.run("resume", run["run_id"].lower()) == (
        0,
        f"run {run['run_id']} is already complete; nothing to do\n",
        "",
    )


def test_nothing_in_a_signals_reason_acts_on_the_terminal(flows: Project) -> None:
    flows.workflow("short", {"type": "user_message", "message": "hi"})
    (flows.state / ".stop").write_text("red \x1b[31malert\x07\nand a second line")
    _, *told = flows.run("flow", "run", "short", "-q")
    assert ["red alert and a second line" in text for text in told] == [True, True]
    assert [len(text.splitlines()) for text in told] == [1, 1]
    assert not {"\x1b", "\x07"} & set("".join(told))


def test_a_run_whose_owner_was_killed_is_interrupted_and_completes_when_resumed(flows: Project) -> None:
    flows.touch("go")
    flows.workflow(
        "stuck",
        {"id": "one", "type": "shell_command", "command": "echo one >> ran"},
        {
            "id": "two",
            "type": "shell_command",
            "command": "echo two >> ran; touch at; until [ -e on ]; do sleep 0.02; done",
        },
    )
    process = flows.start("flow", "run", "stuck")
    flows.until_exists("at")
    process.kill()
    flows.finished(process)
    flows.until(lambda: flows.tagged() == [])  # they die with their owner
    run = flows.json("status", "--json")["runs"][0]
    assert (run["status"], run["agents"]) == ("interrupted", [])
    flows.touch("on")
    assert flows.json("resume", run["run_id"], "--json")["status"] == "completed"
    assert flows.lines("ran") == ["one", "two", "two"]
    assert [event.data["status"] for event in flows.events(run["run_id"]) if event.kind == "run_ended"] == [
        "interrupted",
        "completed",
    ]


def test_a_question_pauses_the_run_and_its_answer_goes_on(flows: Project) -> None:
    flows.workflow("asking", *ASKING, state_schema={"raw": {"count": "number"}})
    code, out, err = flows.run("flow", "run", "asking")
    run_id = flows.journalled()[0].run_id
    assert code == 0
    assert "waits for an answer: How many?" in out
    assert f"sidecar answer {run_id} VALUE" in err
    code, out, err = flows.run("answer", run_id, "several")
    assert (code, out) == (2, "")
    assert err == "the answer has to be a whole number, such as 3\n"
    assert flows.journalled()[0].status == "paused"
    run = flows.json("answer", run_id[:20], "7", "--json")
    assert (run["status"], run["state"]["count"]) == ("completed", 7)
    assert flows.lines("ran") == ["before", "after 7"]
    code, _, err = flows.run("answer", run_id, "8")
    assert code == 2
    assert "is not waiting for an answer (status: completed)" in err


def test_a_redirect_has_the_step_done_again_with_the_text(flows: Project) -> None:
    flows.agent("worker", "cat > prompt; if [ ! -e once ]; then touch once; while :; do sleep 1; done; fi; cat prompt")
    flows.workflow(
        "working",
        {"id": "w", "type": "agent", "agent": "worker", "prompt": "Paint it.", "state_update": {"path": "raw.said"}},
        state_schema={"raw": {"said": "string"}},
    )
    process = flows.start("flow", "run", "working", "--json")
    flows.until_exists("once")
    run_id = flows.journalled()[0].run_id
    assert flows.run("redirect", run_id, "In blue.")[0] == 0
    code, out, err = flows.finished(process)
    assert (code, err) == (0, "")
    assert json.loads(out)["state"]["said"] == "Paint it.\n\nIn blue."
    ended = [event.data["reason"] for event in flows.events(run_id) if event.kind == "agent_ended"]
    assert ended == ["redirect", "exited"]
    code, _, err = flows.run("redirect", run_id, "In red.")
    assert code == 2
    assert err.endswith("is not active (status: completed)\n")


# --- a workflow that has changed


def test_a_changed_workflow_is_said_and_the_run_goes_on_as_it_began(flows: Project) -> None:
    one_after_the_other(flows, "exit 1")
    assert flows.run("flow", "run", "pair")[0] == 2
    run_id = flows.journalled()[0].run_id
    one_after_the_other(flows, "echo second >> ran")
    code, _, err = flows.run("resume", run_id, "-q")
    assert code == 2
    assert "has changed since the run started" in err
    code, _, err = flows.run("resume", run_id, "-q", "--with-changes")
    assert (code, err) == (0, "")
    assert flows.lines("ran") == ["first", "second"]
    assert [e.data.get("with_changes") for e in flows.events(run_id) if e.kind == "run_resumed"] == [None, True]


def test_what_was_taken_with_changes_is_kept_by_the_next_resume(flows: Project) -> None:
    one_after_the_other(flows, "exit 1")
    assert flows.run("flow", "run", "pair", "-q")[0] == 2
    run_id = flows.journalled()[0].run_id
    one_after_the_other(flows, "[ -e on ] && echo second >> ran")
    assert flows.run("resume", run_id, "-q", "--with-changes")[0] == 2
    flows.touch("on")
    code, _, err = flows.run("resume", run_id, "-q")
    assert (code, err, flows.lines("ran")) == (0, "", ["first", "second"])


def test_changes_are_refused_where_the_step_is_gone_at_which_the_run_stands(flows: Project) -> None:
    one_after_the_other(flows, "exit 1")
    assert flows.run("flow", "run", "pair", "-q")[0] == 2
    run_id = flows.journalled()[0].run_id
    flows.workflow("pair", {"id": "first", "type": "shell_command", "command": "echo first >> ran"})
    code, _, err = flows.run("resume", run_id, "--with-changes")
    assert (code, flows.journalled()[0].status) == (2, "failed")
    assert err.count("\n") == 1
    assert "second" in err


@pytest.mark.parametrize(
    "moved",
    [
        {"type": "shell_command", "command": "echo moved >> ran"},
        {"type": "foreach", "items": [1], "body": [{"type": "shell_command", "command": "echo moved >> ran"}]},
        {"type": "parallel_foreach", "items": [1], "sub_agent_task": "one"},
    ],
    ids=lambda moved: moved["type"],
)
def test_changes_are_refused_where_a_step_that_was_done_would_come_again(flows: Project, moved: dict[str, Any]) -> None:
    moved = {"id": "moved", **moved}
    tasks = {"one": {"steps": [{"type": "shell_command", "command": "echo moved >> ran"}]}}
    stuck = {"id": "stuck", "type": "shell_command", "command": "[ -e on ]"}
    flows.workflow("pair", moved, stuck, sub_agent_tasks=tasks)
    assert flows.run("flow", "run", "pair", "-q")[0] == 2
    run_id = flows.journalled()[0].run_id
    flows.touch("on")
    flows.workflow("pair", stuck, moved, sub_agent_tasks=tasks)
    code, _, err = flows.run("resume", run_id, "-q", "--with-changes")
    assert (code, flows.journalled()[0].status) == (2, "failed")
    assert "step 'moved', which the run has done, stands behind the step where the run is now" in err
    assert flows.run("resume", run_id, "-q")[0] == 0


def test_a_workflow_whose_file_is_gone_does_not_keep_a_run_from_going_on(flows: Project) -> None:
    one_after_the_other(flows, "[ -e on ] && echo second >> ran")
    assert flows.run("flow", "run", "pair", "-q")[0] == 2
    (flows.state / "workflows" / "pair.yaml").unlink()
    flows.touch("on")
    code, _, err = flows.run("resume", flows.journalled()[0].run_id, "-q")
    assert (code, flows.lines("ran")) == (0, ["first", "second"])
    assert "cannot be read any more" in err
