"""`iterate`: the loop that works through a workspace until its `.status.json` says that it is done."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.iterate.conftest import WorkspaceProject


def test_it_works_until_the_status_says_complete(project: WorkspaceProject) -> None:
    process = project.iterate()
    project.report(progress={"completed": 1, "total": 3}, worked=True, summary="one")
    project.report(progress={"completed": 2, "total": 3}, worked=True)
    project.report(progress={"completed": 3, "total": 3}, worked=True, complete=True)
    code, out, _ = project.finished(process)
    assert code == 0
    assert (project.turns(), project.last().status) == (3, "completed")
    told = [event.data["text"] for event in project.last_events("message")]
    assert told[1:] == [
        "Iteration 1: progress 1 / 3 (one)",
        "Iteration 2: progress 2 / 3",
        "Iteration 3: progress 3 / 3",
    ]
    assert "loop: iteration 2 of 50" in out
    prompt = (project.root / "prompt").read_text()
    assert ".swissarmyhammer/workspaces/my-task/INSTRUCTIONS.md" in prompt
    assert "Do the next piece of work, only that" in prompt
    assert (project.root / "where").read_text().strip() == str(project.root.resolve())


def test_a_workspace_that_is_complete_costs_no_turn(project: WorkspaceProject) -> None:
    (project.workspace / ".status.json").write_text('{"complete": true}')
    code, out, _ = project.finished(project.iterate())
    assert (code, project.turns(), project.last().status) == (0, 0, "completed")
    assert "Nothing to do: .swissarmyhammer/workspaces/my-task/.status.json says that the work is complete." in out


@pytest.mark.parametrize("content", ['{"complete": false}', '{"complete": "true"}', "{", "[]"])
def test_an_old_status_that_does_not_say_complete_is_no_completion(project: WorkspaceProject, content: str) -> None:
    (project.workspace / ".status.json").write_text(content)
    process = project.iterate()
    project.report(complete=True)
    assert (project.finished(process)[0], project.turns()) == (0, 1)


def test_a_second_run_on_a_workspace_is_refused_while_the_first_has_it(project: WorkspaceProject) -> None:
    first = project.iterate()
    project.wait_for_turn()
    run_id = project.last().run_id
    for arguments in ([], ["--detach"], ["--json"]):
        code, out, err = project.finished(project.iterate(*arguments))
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert f"run {run_id}" in err
    assert project.last().run_id == run_id
    project.report(worked=True)
    project.tell(f"touch {project.workspace}/.stop")
    assert project.finished(first)[0] == 0
    assert project.last().status == "stopped"
    second = project.iterate()
    project.wait_for_turn()
    code, _, err = project.run("resume", run_id)
    assert code == 2
    assert f"run {project.last().run_id}" in err
    project.report(complete=True)
    assert project.finished(second)[0] == 0


def test_another_workspace_is_free_and_so_is_one_whose_run_was_interrupted(project: WorkspaceProject) -> None:
    first = project.iterate()
    project.wait_for_turn()
    other = project.workspace.with_name("other")
    other.mkdir()
    (other / "INSTRUCTIONS.md").write_text("Count.\n")
    (other / ".status.json").write_text('{"complete": true}')
    assert project.run("iterate", "other")[0] == 0
    first.kill()
    project.finished(first)
    project.until(lambda: not project.tagged())
    (project.workspace / ".status.json").write_text('{"complete": true}')
    assert project.finished(project.iterate())[0] == 0


def test_at_the_maximum_of_iterations_it_ends_with_exit_code_3(project: WorkspaceProject) -> None:
    process = project.iterate("-p", "max_iterations=2")
    project.report(worked=True)
    project.report(worked=True)
    code, _, err = project.finished(process)
    assert code == 3
    assert "iteration limit (2)" in err
    assert project.turns() == 2


def test_it_fails_when_nothing_was_done_for_some_iterations_in_a_row(project: WorkspaceProject) -> None:
    process = project.iterate("-p", "stagnation_threshold=2")
    project.report(worked=False)
    project.report(worked=True)
    project.report(worked=False)
    project.report(worked=False)
    code, _, err = project.finished(process)
    assert (code, project.turns()) == (2, 4)
    assert "Nothing was done in 2 iterations in a row" in err


def test_a_status_that_cannot_be_used_is_reported_and_is_no_completion(project: WorkspaceProject) -> None:
    unusable = [
        (None, "No such file"),
        ('{"complete": tr', "is not JSON"),
        ('{"complete": "true"}', 'has to be true or false, not "true"'),
        ('{"complete": 1}', "has to be true or false, not 1"),
        ('{"worked": true}', "has to be true or false, not missing"),
        ("[true]", "it is no JSON object"),
    ]
    process = project.iterate()
    for content, _ in unusable:
        project.tell(":" if content is None else f"printf %s '{content}' > {project.status}")
    project.report(complete=True)
    code, out, _ = project.finished(process)
    assert (code, project.turns()) == (0, len(unusable) + 1)
    told = [event.data["text"] for event in project.last_events("message")][1:]
    for number, (_, problem) in enumerate(unusable):
        assert told[number].startswith(f"Iteration {number + 1}: .status.json cannot be used: ")
        assert problem in told[number]
        assert told[number] in out


def test_an_agent_that_crashes_fails_the_run_which_can_be_resumed(project: WorkspaceProject) -> None:
    process = project.iterate()
    project.report(progress={"completed": 1, "total": 2})
    project.tell("echo 'out of luck' >&2; exit 7")
    code, _, err = project.finished(process)
    assert code == 2
    assert "it ended with exit code 7: out of luck" in err
    resumed = project.start("resume", project.last().run_id)
    project.report(complete=True)
    assert project.finished(resumed)[0] == 0
    worked = [event.data for event in project.last_events("step_started") if event.data["id"] == "work"]
    assert [(data["step"], data["attempt"]) for data in worked] == [
        ("loop[0]/work", 1),
        ("loop[1]/work", 1),
        ("loop[1]/work", 2),
    ]


def test_without_instructions_one_line_says_so_and_no_agent_starts(project: WorkspaceProject) -> None:
    instructions = project.workspace / "INSTRUCTIONS.md"
    instructions.unlink()
    code, _, err = project.finished(project.iterate())
    assert (code, project.turns(), len(err.splitlines())) == (2, 0, 1)
    assert ".swissarmyhammer/workspaces/my-task/INSTRUCTIONS.md is missing or empty: write the task into it" in err
    instructions.write_text("Now they are there.\n")
    resumed = project.start("resume", project.last().run_id)
    project.report(complete=True)
    assert project.finished(resumed)[0] == 0


def test_a_template_is_not_taken_for_instructions(project: WorkspaceProject) -> None:
    (project.workspace / "INSTRUCTIONS.md").unlink()
    assert project.run("workspace", "init", "my-task")[0] == 0
    code, _, err = project.finished(project.iterate())
    assert (code, project.turns()) == (2, 0)
    assert "INSTRUCTIONS.md is still the template" in err
    assert "Not written yet: delete this line" in (project.workspace / "INSTRUCTIONS.md").read_text()


def test_a_delay_that_is_no_time_is_refused_before_the_first_iteration(project: WorkspaceProject) -> None:
    code, _, err = project.run("flow", "run", "iterate", "my-task", "-p", "delay=soon")
    assert (code, project.turns()) == (2, 0)
    assert 'delay has to be a time such as 30s or 5m, not "soon"' in err


def test_a_workspace_of_claude_iterate_runs_unchanged(claude_iterate: WorkspaceProject) -> None:
    project = claude_iterate
    metadata = {
        "name": "my-task",
        "created": "2025-10-16T14:30:00.000Z",
        "status": "in_progress",
        "totalIterations": 3,
        "mode": "iterative",
        "maxIterations": 2,
        "delay": 0,
        "stagnationThreshold": 0,
        "notifyEvents": ["all"],
        "config": {"claude": {"args": ["--model", "opus"]}},
    }
    (project.workspace / ".metadata.json").write_text(json.dumps(metadata, indent=2))
    (project.workspace / "TODO.md").write_text("# TODO - my-task\n")
    (project.workspace / "working").mkdir()
    before = _content(project.workspace)
    process = project.start("flow", "run", "iterate", "my-task")
    project.report(worked=False)
    project.report(worked=False)
    code, _, err = project.finished(process)
    assert (code, project.turns()) == (3, 2), err
    told = project.last_events("message")[0].data["text"]
    assert told == (
        "At most 2 iterations, mode iterative, with 0s between two. Not used from .metadata.json: config.claude."
    )
    assert {name: text for name, text in _content(project.workspace).items() if name != ".status.json"} == before
    assert (project.root / "where").read_text().strip() == str(project.root.resolve())
    prompt = (project.root / "prompt").read_text()
    assert "claude-iterate/workspaces/my-task/INSTRUCTIONS.md" in prompt
    assert "as many pieces of work as you can" in prompt


def test_parameters_beat_what_the_workspace_says_and_a_broken_metadata_file_is_told(
    claude_iterate: WorkspaceProject,
) -> None:
    project = claude_iterate
    (project.workspace / ".metadata.json").write_text('{"mode": "iterative", "maxIterations": 2')
    process = project.iterate("-p", "max_iterations=1", "-p", "mode=loop")
    project.report(worked=True)
    assert project.finished(process)[0] == 3
    told = project.last_events("message")[0].data["text"]
    assert told.startswith("At most 1 iterations, mode loop, with 0s between two. The .metadata.json of the workspace")


def test_any_adapter_will_do(project: WorkspaceProject) -> None:
    answer = {"type": "result", "subtype": "success", "is_error": False, "result": "done", "total_cost_usd": 0.25}
    script = (
        f"cat > /dev/null; printf %s '{{\"complete\": true}}' > {project.status}; printf '%s\\n' '{json.dumps(answer)}'"
    )
    project.agent("like-claude", script, adapter="claude")
    code, _, err = project.finished(project.iterate("-p", "agent=like-claude"))
    assert (code, project.last().status) == (0, "completed"), err
    assert [event.data["cost_usd"] for event in project.last_events("usage")] == [0.25]


def test_the_text_abort_error_aborts_as_a_file_does_and_is_deprecated(project: WorkspaceProject) -> None:
    process = project.iterate()
    project.tell("echo 'I give up.'; echo 'ABORT ERROR: the disk is full.'; echo")
    code, out, err = project.finished(process)
    run = project.last()
    assert (code, run.status, run.reason) == (2, "aborted", "the disk is full")
    assert "sidecar: aborted: the disk is full" in err
    assert "warning: the agent's answer ends with ABORT ERROR" in out
    assert "deprecated" in out
    abort = project.state / "runs" / run.run_id / ".abort"
    receipt = json.loads(abort.with_name(".abort.receipt.json").read_text())
    assert (receipt["state"], receipt["reason"], receipt["removed"]) == ("applied", "the disk is full", True)
    assert not abort.exists()
    assert project.turns() == 1


@pytest.mark.parametrize(
    "answer",
    [
        "they mention ABORT ERROR as deprecated",
        r"ABORT ERROR: an example\nAll is well.",
        r"All is well, so I do not answer\n`ABORT ERROR: reason`",
    ],
)
def test_an_answer_that_only_mentions_abort_error_aborts_nothing(project: WorkspaceProject, answer: str) -> None:
    process = project.iterate()
    project.tell(f"printf '%b\\n' '{answer}'; printf %s '{{\"complete\": true}}' > {project.status}")
    code, out, err = project.finished(process)
    assert (code, project.last().status) == (0, "completed"), err
    assert "deprecated, agents have" not in out


def test_the_text_abort_error_aborts_also_in_the_very_last_step(project: WorkspaceProject) -> None:
    project.environment["SIDECAR_WATCHER"] = "polling"  # so that the step could complete before anybody has seen it
    only = {"description": "", "steps": [{"type": "agent", "prompt": "Do it.", "on_error": "continue"}]}
    (project.state / "workflows" / "only.yaml").write_text(json.dumps(only))
    process = project.start("only", "-q")
    project.tell("echo 'ABORT ERROR: never'")
    assert project.finished(process)[0] == 2
    assert (project.last().status, project.last().reason) == ("aborted", "never")


def test_a_workspace_that_is_not_there_is_told_with_how_to_make_it(project: WorkspaceProject) -> None:
    code, _, err = project.run("iterate", "my-tusk")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "Workspace not found: my-tusk (available: my-task); to make it: sidecar workspace init my-tusk" in err


def test_the_text_abort_error_is_a_text_like_any_other_where_the_setting_says_so(project: WorkspaceProject) -> None:
    project.environment["SIDECAR_LEGACY_ABORT_TEXT"] = "false"
    process = project.iterate()
    project.tell(f"echo 'ABORT ERROR: no'; printf %s '{{\"complete\": true}}' > {project.status}")
    code, out, _ = project.finished(process)
    assert (code, project.last().status) == (0, "completed")
    assert "deprecated" not in out


def _content(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir() if path.is_file()}
