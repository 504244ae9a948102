"""`parallel_foreach` whose tasks cannot begin, since their inputs cannot be computed: the step ends all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kit import Project

GOOD: Any = {"x": {"y": "good"}}
BAD: Any = {}
ITEMS = {"first": [BAD, GOOD, GOOD], "last": [GOOD, GOOD, BAD], "all": [BAD, BAD, BAD], "two": [BAD, BAD, GOOD]}
CASES = [(1, "first"), (1, "last"), (2, "all"), (2, "two")]


def each(flows: Project, strategy: str, max_parallel: int, items: list[Any], **more: Any) -> None:
    flows.workflow(
        "each",
        {
            "id": "each",
            "type": "parallel_foreach",
            "items": "{{ items }}",
            "max_parallel": max_parallel,
            "sub_agent_task": "one",
            "on_sub_agent_error": {"strategy": strategy, "max_retries": 2},
            **more,
        },
        {"id": "after", "type": "user_message", "message": "went on"},
        default_state={"raw": {"items": items}},
        state_schema={"raw": {"items": "array"}},
        sub_agent_tasks={
            "one": {
                "description": "",
                "inputs": {"value": "{{ item.x.y }}"},
                "steps": [{"id": "say", "type": "shell_command", "command": "echo {{ value }} >> done"}],
            }
        },
    )


@pytest.mark.parametrize(("max_parallel", "which"), CASES)
def test_a_task_that_cannot_begin_counts_as_failed_and_the_others_are_done(
    flows: Project, max_parallel: int, which: str
) -> None:
    items = ITEMS[which]
    each(flows, "continue", max_parallel, items)
    code, out, err = flows.run("flow", "run", "each")
    assert (code, err) == (0, ""), out
    assert "went on" in out
    done = flows.lines("done") if (flows.root / "done").exists() else []
    assert done == ["good"] * items.count(GOOD)
    run = flows.journalled()[0]
    failed = [event for event in flows.events(run.run_id) if event.kind == "task_ended" and event.data["error"]]
    assert len(failed) == items.count(BAD)


@pytest.mark.parametrize(("max_parallel", "which"), CASES)
def test_a_task_that_cannot_begin_is_tried_again_so_often_and_then_fails_the_step(
    flows: Project, max_parallel: int, which: str
) -> None:
    each(flows, "retry_failed", max_parallel, ITEMS[which])
    code, out, err = flows.run("flow", "run", "each")
    assert code == 2, (out, err)
    assert "cannot read property 'y' of undefined" in err
    tries: dict[str, int] = {}
    for event in flows.events(flows.journalled()[0].run_id):
        if event.kind == "task_ended" and event.data["error"]:
            tries[event.data["task"]] = tries.get(event.data["task"], 0) + 1
    assert max(tries.values()) == 3


def test_tasks_that_nobody_waits_for_begin_behind_one_that_cannot(flows: Project) -> None:
    each(flows, "continue", 1, [BAD, BAD, GOOD], wait_for_all=False)
    code, out, err = flows.run("flow", "run", "each")
    assert (code, err) == (0, ""), out
    assert flows.lines("done") == ["good"]
