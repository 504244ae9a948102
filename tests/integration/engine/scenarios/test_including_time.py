"""The `timeout` of `include_workflow`: it ends what is inside, whatever that would do about an error."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.anyio
World = Any
SLEEPS: dict[str, Any] = {
    "id": "long",
    "type": "shell_command",
    "command": "echo $$ >> pids; exec sleep 600",
    "on_error": "continue",
}


def part(**more: Any) -> dict[str, Any]:
    return {"id": "part", "type": "include_workflow", "workflow": "part", "timeout": "300ms", **more}


def add(name: str) -> dict[str, Any]:
    return {"id": name, "type": "state_update", "path": "raw.n", "operation": "increment"}


@pytest.mark.parametrize("inside", ["a command", "a loop", "tasks"])
async def test_what_an_included_workflow_does_is_ended_when_its_time_is_over(world: World, inside: str) -> None:
    loop: dict[str, Any] = {
        "id": "loop",
        "type": "while",
        "condition": "true",
        "max_iterations": 1_000_000,
        "body": [add("turn")],
    }
    tasks: dict[str, Any] = {
        "id": "tasks",
        "type": "parallel_foreach",
        "items": [1, 2],
        "sub_agent_task": "nap",
        "on_error": "continue",
    }
    inner = {"a command": [SLEEPS], "a loop": [loop], "tasks": [tasks]}[inside]
    failed = [{"id": "tell", "type": "user_message", "message": "told {{ error.kind }}"}]
    content = {
        "default_state": {"raw": {"n": 0}},
        "steps": [*inner, add("never")],
        "sub_agent_tasks": {"nap": {"steps": [{**SLEEPS, "id": "nap"}]}},
        "error_handling": {"on_failure": failed},
    }
    world.workflow("part", content)
    update = {"path": "raw.why", "value": "{{ error.message }}"}
    after = {"id": "after", "type": "shell_command", "command": "touch after"}
    steps = [part(on_error="continue", error_state_update=update), after]
    run_id, ending = await world.run(world.workflow("waits", {"default_state": {"raw": {"why": ""}}, "steps": steps}))
    assert (ending.status, world.state(run_id)["why"]) == (
        "completed",
        "the included workflow was not done within 0.3 s",
    )
    assert world.living() == []
    told = world.compact(run_id)
    assert (told.count("! part"), told.count("say told timeout"), told[-3:]) == (
        1,
        1,
        ["> after", "+ after", "end completed"],
    )
    assert not any("never" in each for each in told)


async def test_the_process_of_a_step_is_ended_for_the_timeout_around_it(world: World) -> None:
    world.workflow("part", {"steps": [SLEEPS]})
    run_id, ending = await world.run(world.workflow("waits", {"steps": [part()]}))
    assert (ending.status, ending.reason) == ("failed", "the included workflow was not done within 0.3 s")
    assert [event["reason"] for event in world.events(run_id, "agent_ended")] == ["timeout"]


async def test_an_included_workflow_that_is_quick_enough_hears_nothing_of_it(world: World) -> None:
    world.workflow("part", {"default_state": {"raw": {"n": 0}}, "steps": [add("one"), add("two")]})
    content = {"default_state": {"raw": {"n": 0}}, "steps": [part(timeout="1h", state_update={"path": "raw.n"})]}
    run_id, ending = await world.run(world.workflow("quick", content))
    assert (ending.status, world.state(run_id)["n"]["n"]) == ("completed", 2)


async def test_an_included_workflow_is_tried_again_with_all_its_time(world: World) -> None:
    world.workflow("part", {"steps": [{**SLEEPS, "command": "echo x >> tries; test -e mended || exec sleep 600"}]})
    again = part(on_error="retry", retry_count=1, retry_delay=0)
    run_id, ending = await world.run(world.workflow("waits", {"steps": [again]}))
    assert (ending.status, len(world.lines("tries"))) == ("failed", 2)
    assert world.compact(run_id).count("~ part") == 1
    world.file("mended", "")
    assert (await world.execute(run_id)).status == "completed"  # from the step inside where it stood
    assert len(world.lines("tries")) == 3


async def test_the_outer_of_two_included_workflows_may_have_less_time(world: World) -> None:
    world.workflow("inner", {"steps": [SLEEPS]})
    inner = {"id": "inner", "type": "include_workflow", "workflow": "inner", "timeout": "1h", "on_error": "continue"}
    world.workflow("part", {"steps": [inner]})
    run_id, ending = await world.run(world.workflow("waits", {"steps": [part()]}))
    assert ending.status == "failed"
    assert [each for each in world.compact(run_id) if each.startswith("!")] == ["! part"]


async def test_a_timeout_that_is_no_duration_fails_the_step(world: World) -> None:
    world.workflow("part", {"steps": [add("one")], "default_state": {"raw": {"n": 0}}})
    _, ending = await world.run(world.workflow("waits", {"steps": [part(timeout="{{ 'soon' }}")]}))
    assert ending.status == "failed"
    assert ending.reason.startswith("timeout:")
