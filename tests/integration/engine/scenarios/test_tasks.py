"""The tasks of `parallel_foreach` as processes: how many at a time, how often, and who ends whom."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from sidecar.catalog import workflows

pytestmark = pytest.mark.anyio
World = Any
LOOK = "while ! test -e {0}; do sleep 0.01; done"


def tasks(*steps: dict[str, Any], items: Any, **more: Any) -> dict[str, Any]:
    each = {"id": "all", "type": "parallel_foreach", "items": items, "sub_agent_task": "work", **more}
    return {
        "default_state": {"raw": {"done": []}},
        "steps": [each],
        "sub_agent_tasks": {"work": {"steps": list(steps)}},
    }


def shell(name: str, command: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "type": "shell_command", "command": command, **more}


KEEP = {"id": "keep", "type": "state_update", "path": "raw.done", "operation": "append", "value": "{{ item }}"}


@pytest.mark.parametrize("driver", ["server", "agent"])
async def test_each_of_fifty_items_is_done_once_and_never_more_than_three_at_a_time(world: World, driver: str) -> None:
    work = shell("mark", "echo + >> marks; sleep 0.02; echo - >> marks; echo {{ index }} >> done")
    world.workflow("fifty", tasks(work, KEEP, items="{{ [...Array(50).keys()] }}", max_parallel=3))
    if driver == "server":
        run_id, _ = await world.run("fifty")
    else:
        run_id = await world.start("fifty")
        await world.drive(run_id)
    assert world.status(run_id) == "completed"
    assert sorted(map(int, world.lines("done"))) == list(range(50))
    assert sorted(world.state(run_id)["done"]) == list(range(50))
    at_once = 0
    most = 0
    for mark in world.lines("marks"):
        at_once += 1 if mark == "+" else -1
        most = max(most, at_once)
    assert 1 < most <= 3


async def test_a_task_that_fails_ends_its_siblings_before_its_step_fails(world: World) -> None:
    # The siblings take a while to end: the step has not failed before they have.
    sibling = "{ trap 'sleep 0.3; exit 0' TERM; sleep 600 & echo $$ >> pids; wait; }"
    command = f"test $INDEX = 1 || {sibling}; {LOOK.format('go')}; exit 7"
    work = shell("mark", command, env={"INDEX": "{{ index }}"})
    content = tasks(work, KEEP, items=[0, 1, 2, 3], max_parallel=3)
    content["error_handling"] = {"on_failure": [shell("count", "ps -o pid= -p $(paste -sd, pids) > left || true")]}
    run_id = world.create(world.workflow("fails", content))
    async with world.running(run_id) as endings:
        await world.until_lines("pids", 2)
        await world.heard("agent_started", run_id, 3)
        world.file("go", "")
    assert endings[0].status == "failed"
    assert "exit code 7" in endings[0].reason
    reasons = {event["step"]: event["reason"] for event in world.events(run_id, "agent_ended")}
    assert reasons["all.0/mark"] == reasons["all.2/mark"] == "sibling_failed"
    assert reasons["all.1/mark"] == "exited"
    assert "all.3/mark" not in reasons
    assert world.living() == []
    assert world.lines("left") == []  # they were gone before the steps for the failure
    failed = [event for event in world.events(run_id, "step_failed") if event["step"] == "all"]
    assert [event["error"]["task"] for event in failed] == ["all.1"]


async def test_a_resume_does_only_what_the_failed_step_left_undone(world: World) -> None:
    work = shell("mark", "echo {{ index }} >> marks; test {{ index }} != 1 || test -e mended")
    world.workflow("fails", tasks(work, KEEP, items=[0, 1, 2], max_parallel=1))
    run_id, ending = await world.run("fails")
    assert ending.status == "failed"
    world.file("mended", "")
    ending = await world.execute(run_id)
    assert ending.status == "completed"
    assert world.lines("marks") == ["0", "1", "1", "2"]
    assert world.state(run_id)["done"] == [0, 1, 2]
    begun = [event["attempt"] for event in world.events(run_id, "step_started") if event["step"] == "all.1/mark"]
    assert begun == [1, 2]


async def test_a_question_in_a_task_lets_the_others_finish_and_pauses(world: World, answers: Any) -> None:
    ask = {
        "id": "which",
        "type": "conditional",
        "condition": "{{ index == 1 }}",
        "then": [{"id": "ask", "type": "user_input", "prompt": "now?"}],
        "else": [shell("mark", "echo {{ index }} >> marks")],
    }
    run_id = world.create(world.workflow("asks", tasks(ask, KEEP, items=[0, 1, 2, 3, 4], max_parallel=3)))
    ending = await world.execute(run_id)
    assert (ending.status, ending.waits["prompt"], ending.waits["step"]) == ("paused", "now?", "all.1/which/ask")
    assert set(world.lines("marks")) <= {"0", "2", "3", "4"}
    ending = await world.execute(run_id, person=answers("yes"))
    assert ending.status == "completed"
    assert sorted(world.lines("marks")) == ["0", "2", "3", "4"]
    assert sorted(world.state(run_id)["done"]) == [0, 1, 2, 3, 4]


async def test_a_question_in_a_task_inside_a_task_pauses_too(world: World, answers: Any) -> None:
    content = tasks(
        {"id": "in", "type": "parallel_foreach", "items": [1, 2], "sub_agent_task": "deep"}, KEEP, items=[0]
    )
    ask = {"id": "ask", "type": "user_input", "prompt": "{{ item }}?", "state_update": {"path": "raw.said"}}
    content["sub_agent_tasks"]["deep"] = {"steps": [ask]}
    run_id = world.create(world.workflow("asks", content))
    assert (await world.execute(run_id)).status == "paused"
    assert (await world.execute(run_id, person=answers("a", "b"))).status == "completed"
    assert world.state(run_id)["done"] == [0]


async def test_an_exit_in_a_task_ends_the_tasks_beside_it(world: World) -> None:
    leave = {"id": "leave", "type": "exit", "message": "enough"}
    work = {
        "id": "which",
        "type": "conditional",
        "condition": "{{ index == 1 }}",
        "then": [shell("wait", LOOK.format("go")), leave],
        "else": [shell("mark", "echo $$ >> pids; exec sleep 600")],
    }
    run_id = world.create(world.workflow("leaves", tasks(work, items=[0, 1, 2])))
    async with world.running(run_id) as endings:
        await world.until_lines("pids", 2)
        world.file("go", "")
    assert (endings[0].status, endings[0].reason) == ("completed", "enough")
    assert world.living() == []


async def test_a_sub_agent_does_a_task_of_a_run_that_the_owner_drives(world: World) -> None:
    """It says nothing back here: its steps are not done, which is the task's failure."""
    say = {"id": "say", "type": "agent", "prompt": "hello"}
    world.workflow("sub", tasks(say, items=[1], on_sub_agent_error={"strategy": "continue"}))
    run_id, ending = await world.run("sub")
    assert ending.status == "completed"
    assert "ended before step 'say' was done" in world.events(run_id, "task_ended")[0]["error"]["message"]
    assert [event["name"] for event in world.events(run_id, "agent_started")] == ["worker"]


async def test_tasks_in_the_hands_of_agents_are_tried_again_one_by_one(world: World) -> None:
    say = {
        "id": "say",
        "type": "agent",
        "prompt": "{{ item }}",
        "state_update": {"path": "raw.done", "operation": "append"},
    }
    world.workflow(
        "sub", tasks(say, items=["a", "b"], on_sub_agent_error={"strategy": "retry_failed", "max_retries": 1})
    )
    run_id = await world.start("sub")
    cases = world.cases
    step = (await cases.next_step(run_id))["step"]
    assert [task["task_id"] for task in step["definition"]["tasks"]] == ["all.0", "all.1"]
    assert (await cases.next_step(run_id))["step"] == step
    first = (await cases.next_step(run_id, "all.0"))["step"]
    await cases.step_complete(run_id, first["id"], status="failed", error="no", task_id="all.0")
    again = (await cases.next_step(run_id, "all.0"))["step"]
    assert again["id"] != first["id"]
    await cases.step_complete(run_id, again["id"], result="a", task_id="all.0")
    assert (await cases.next_step(run_id, "all.0"))["step"] is None
    over = await world.drive(run_id)
    assert over["status"] == "completed"
    assert world.state(run_id)["done"] == ["a", "b"]
    with anyio.fail_after(120):
        assert "reported before" in (await cases.step_complete(run_id, again["id"], task_id="all.0"))["message"]


async def test_what_is_done_here_is_done_before_the_agent_that_drives_gets_its_next_step(world: World) -> None:
    work = shell("mark", "sleep 0.1; echo {{ index }} >> marks")
    content = tasks(work, KEEP, items=[0, 1, 2, 3], max_parallel=2, wait_for_all=False)
    content["steps"].append({"id": "say", "type": "agent", "prompt": "after"})
    run_id = await world.start(world.workflow("behind", content))
    assert (await world.cases.next_step(run_id))["step"]["definition"]["prompt"] == "after"
    assert sorted(world.lines("marks")) == ["0", "1", "2", "3"]
    assert (await world.drive(run_id))["status"] == "completed"
    assert {event["attempt"] for event in world.events(run_id, "step_started")} == {1}


async def test_tasks_in_the_hands_of_agents_go_on_behind_the_run_and_its_end_waits_for_them(world: World) -> None:
    say = {
        "id": "say",
        "type": "agent",
        "prompt": "{{ item }}",
        "state_update": {"path": "raw.done", "operation": "append"},
    }
    content = tasks(say, items=["a", "b"], wait_for_all=False)
    content["steps"].append({"id": "last", "type": "agent", "prompt": "last", "state_update": {"path": "raw.last"}})
    run_id = await world.start(world.workflow("behind", content))
    cases = world.cases
    given = (await cases.next_step(run_id))["step"]
    first = (await cases.next_step(run_id, "all.1"))["step"]
    await cases.step_complete(run_id, first["id"], result="b", task_id="all.1")
    await cases.step_complete(run_id, given["id"])
    last = (await cases.next_step(run_id))["step"]
    assert last["definition"]["prompt"] == "last"
    await cases.step_complete(run_id, last["id"], result="last")
    rest = (await cases.next_step(run_id))["step"]
    assert [task["task_id"] for task in rest["definition"]["tasks"]] == ["all.0"]
    assert rest["id"] not in ("", given["id"], last["id"])
    assert (await world.drive(run_id))["status"] == "completed"
    assert world.state(run_id)["done"] == ["b", "a"]


async def test_tasks_of_one_iteration_that_go_on_behind_the_next_are_told_apart(world: World) -> None:
    say = {
        "id": "say",
        "type": "agent",
        "prompt": "{{ item }}",
        "state_update": {"path": "raw.done", "operation": "append"},
    }
    content = tasks(say, items="{{ [item + '0', item + '1'] }}", wait_for_all=False)
    content["steps"] = [{"id": "loop", "type": "foreach", "items": ["a", "b"], "body": content["steps"]}]
    run_id = await world.start(world.workflow("rounds", content))
    cases = world.cases
    seen = []
    for first in ("all.1", "all.1#1"):
        given = (await cases.next_step(run_id))["step"]
        seen.append([task["task_id"] for task in given["definition"]["tasks"]])
        step = (await cases.next_step(run_id, first))["step"]
        await cases.step_complete(run_id, step["id"], result=step["definition"]["prompt"], task_id=first)
        await cases.step_complete(run_id, given["id"])
    assert seen == [["all.0", "all.1"], ["all.0#1", "all.1#1"]]
    left = [(await cases.next_step(run_id, name))["step"]["definition"]["prompt"] for name in ("all.0", "all.0#1")]
    assert left == ["a0", "b0"]
    assert (await world.drive(run_id))["status"] == "completed"
    assert sorted(world.state(run_id)["done"]) == ["a0", "a1", "b0", "b1"]


async def test_an_end_that_is_told_before_its_start_is_not_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    start = world.owner.supervisor.start

    async def late(launch: Any) -> Any:
        agent = await start(launch)
        await agent.over()
        return agent

    monkeypatch.setattr(world.owner.supervisor, "start", late)
    world.agent("quick", "exit 0")
    quick = {"id": "quick", "type": "agent", "agent": "quick", "prompt": "be quick"}
    run_id, ending = await world.run(world.workflow("quick", {"steps": [quick]}))
    assert ending.status == "completed"
    assert len(world.events(run_id, "agent_started")) == len(world.events(run_id, "agent_ended")) == 1
    assert world.owner.agents.not_ended() == []


async def test_a_task_whose_inputs_could_not_be_computed_has_them_when_the_run_goes_on(world: World) -> None:
    tasks = {
        "id": "all",
        "type": "parallel_foreach",
        "items": ["a"],
        "sub_agent_task": "work",
        "on_sub_agent_error": {"collect_errors": True, "error_state_path": "raw.errors"},
    }
    use = {"id": "use", "type": "state_update", "path": "raw.got", "value": "{{ item + inner + index }}"}
    content: dict[str, Any] = {
        "default_state": {"raw": {"got": "", "errors": [], "known": None}},
        "steps": [tasks],
        "sub_agent_tasks": {"work": {"inputs": {"inner": "{{ known.name }}"}, "steps": [use]}},
    }
    name = world.workflow("unknown", content)
    run_id, ending = await world.run(name)
    assert ending.status == "failed"
    assert len(world.state(run_id)["errors"]) == 1
    content["default_state"]["raw"] = {}
    content["sub_agent_tasks"]["work"]["inputs"] = {"inner": "{{ 'b' }}"}
    world.workflow("unknown", content)
    ending = await world.execute(run_id, definition=workflows.find(str(world.root), name))
    assert (ending.status, world.state(run_id)["got"]) == ("completed", "ab0")
