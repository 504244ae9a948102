"""Stop and abort: in each of the three places, for both drivers, at any depth, and what becomes of their files."""

from __future__ import annotations

import os
import re
from typing import Any

import anyio
import pytest

from tests.kit import eventually

pytestmark = pytest.mark.anyio
World = Any
PLACES = ["project", "workspace", "run"]
SLEEP = "echo $$ >> pids; exec sleep 600"


def shell(name: str, command: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "type": "shell_command", "command": command, **more}


def gated(name: str, mark: str) -> dict[str, Any]:
    """A step that leaves a mark, and goes on when there are as many lines in `go` as marks."""
    look = 'n=$(wc -l < marks); while test "$(cat go 2>/dev/null | wc -l)" -lt "$n"; do sleep 0.01; done'
    return shell(name, f"echo {mark} >> marks; {look}")


def let_go(world: World, count: int) -> None:
    with open(world.root / "go", "a", encoding="utf-8") as file:
        file.write("go\n" * count)


def loop(*body: dict[str, Any], items: Any = (1, 2, 3), name: str = "loop") -> dict[str, Any]:
    return {"id": name, "type": "foreach", "items": list(items), "body": list(body)}


def runs_of(receipt: dict[str, Any]) -> dict[str, str]:
    return {outcome["run_id"]: outcome["status"] for outcome in receipt["runs"]}


async def test_a_reason_that_came_after_the_file_is_that_of_the_end_everywhere(world: World) -> None:
    late = "trap 'echo late > .swissarmyhammer/.abort; exit 1' TERM; echo up >> marks; while :; do sleep 0.01; done"
    run_id = world.create(world.workflow("late", {"steps": [shell("work", late)]}))
    async with world.running(run_id) as endings:
        await world.until_lines("marks", 1)
        world.file(".swissarmyhammer/.abort", "")
    assert (endings[0].status, endings[0].reason) == ("aborted", "late")
    assert world.owner.journal.run(run_id).reason == "late"
    assert world.receipt("abort", world.place("project", run_id))["reason"] == "late"


@pytest.mark.parametrize("place", PLACES)
async def test_a_stop_ends_a_run_that_an_agent_drives_at_its_boundary(world: World, place: str) -> None:
    world.workspace("desk")
    say = {
        "id": "say",
        "type": "agent",
        "prompt": "{{ item }}",
        "state_update": {"path": "raw.log", "operation": "append"},
    }
    content = {"default_state": {"raw": {"log": []}}, "steps": [loop(say)]}
    run_id = await world.start(world.workflow("loops", content), workspace="desk")
    step = (await world.cases.next_step(run_id))["step"]
    where = world.place(place, run_id)
    world.signal("stop", where, "lunch")
    assert (await world.cases.next_step(run_id))["step"] == step  # the iteration completes
    await world.cases.step_complete(run_id, step["id"], result="one")
    assert await world.cases.next_step(run_id) == {"step": None, "status": "stopped", "reason": "lunch"}
    assert runs_of(world.receipt("stop", where)) == {run_id: "stopped"}
    assert not world.signalled("stop", where)
    await world.cases.resume(run_id)
    assert (await world.drive(run_id))["status"] == "completed"
    assert world.state(run_id)["log"] == ["one", "2", "3"]


@pytest.mark.parametrize("place", PLACES)
async def test_an_abort_answers_the_agent_that_drives(world: World, place: str) -> None:
    world.workspace("desk")
    content = {"steps": [{"id": "say", "type": "agent", "prompt": "hello"}]}
    run_id = await world.start(world.workflow("says", content), workspace="desk")
    step = (await world.cases.next_step(run_id))["step"]
    where = world.place(place, run_id)
    world.signal("abort", where, "fire")
    assert await world.cases.next_step(run_id) == {"step": None, "status": "aborted", "reason": "fire"}
    assert runs_of(world.receipt("abort", where)) == {run_id: "aborted"}
    with pytest.raises(Exception, match="is aborted: fire"):
        await world.cases.step_complete(run_id, step["id"], result="late")
    await world.cases.resume(run_id)
    assert (await world.drive(run_id))["status"] == "completed"


async def test_an_abort_ends_what_the_sidecar_does_for_an_agent_that_drives(world: World) -> None:
    run_id = await world.start(world.workflow("sleeps", {"steps": [shell("long", SLEEP)]}))
    answers: list[dict[str, Any]] = []

    async def ask() -> None:
        answers.append(await world.cases.next_step(run_id))

    with anyio.fail_after(120):
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await world.until_lines("pids", 1)
            world.signal("abort", world.place("project", run_id), "fire")
    assert answers == [{"step": None, "status": "aborted", "reason": "fire"}]
    assert world.living() == []
    receipt = world.receipt("abort", world.place("project", run_id))
    assert [process["run_id"] for process in receipt["processes"]] == [run_id]


async def test_a_stop_waits_for_the_outermost_iteration(world: World) -> None:
    inner = loop(gated("mark", "{{ item }}"), items=["a", "b"], name="inner")
    run_id = world.create(world.workflow("nested", {"steps": [loop(inner, items=[1, 2], name="outer")]}))
    async with world.running(run_id) as endings:
        await world.until_lines("marks", 1)
        world.signal("stop", world.place("run", run_id))
        await world.heard("signal", signal="stop")
        let_go(world, 9)
    assert endings[0].status == "stopped"
    assert world.lines("marks") == ["a", "b"]
    assert (await world.execute(run_id)).status == "completed"
    assert world.lines("marks") == ["a", "b", "a", "b"]


async def test_a_stop_is_taken_inside_an_included_workflow(world: World) -> None:
    world.workflow(
        "inner",
        {
            "default_state": {"raw": {"n": 0}},
            "steps": [
                shell("one", "true"),
                loop(
                    gated("mark", "{{ item }}"),
                    {"id": "add", "type": "state_update", "path": "raw.n", "operation": "increment"},
                ),
            ],
        },
    )
    run_id = world.create(
        world.workflow(
            "outer",
            {
                "steps": [
                    {"id": "part", "type": "include_workflow", "workflow": "inner"},
                    shell("after", "echo {{ part.n }} >> after"),
                ]
            },
        )
    )
    async with world.running(run_id) as endings:
        await world.until_lines("marks", 1)
        world.signal("stop", world.place("run", run_id))
        await world.heard("signal", signal="stop")
        let_go(world, 9)
    assert endings[0].status == "stopped"
    assert world.lines("marks") == ["1"]
    assert (await world.execute(run_id)).status == "completed"
    assert world.lines("marks") == ["1", "2", "3"]
    assert world.lines("after") == ["3"]


def batch(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    each = {
        "id": "all",
        "type": "parallel_foreach",
        "items": [0, 1, 2, 3, 4],
        "max_parallel": 2,
        "sub_agent_task": "work",
    }
    return {"steps": [{**each, **more}], "sub_agent_tasks": {"work": {"steps": list(steps)}}}


async def test_a_stop_lets_running_tasks_finish_and_the_rest_is_resumed(world: World) -> None:
    content = batch(gated("mark", "{{ index }}"), shell("last", "echo {{ index }} >> lasts"))
    run_id = world.create(world.workflow("tasks", content))
    async with world.running(run_id) as endings:
        await world.until_lines("marks", 2)
        world.signal("stop", world.place("run", run_id))
        await world.heard("signal", signal="stop")
        let_go(world, 9)
    assert endings[0].status == "stopped"
    assert sorted(world.lines("marks")) == sorted(world.lines("lasts")) == ["0", "1"]
    assert (await world.execute(run_id)).status == "completed"
    assert sorted(world.lines("marks")) == sorted(world.lines("lasts")) == ["0", "1", "2", "3", "4"]


async def test_a_stop_that_is_taken_back_while_tasks_run_changes_nothing(world: World) -> None:
    run_id = world.create(world.workflow("tasks", batch(gated("mark", "{{ index }}"))))
    where = world.place("run", run_id)
    async with world.running(run_id) as endings:
        await world.until_lines("marks", 2)
        world.signal("stop", where)
        await world.heard("signal", signal="stop")
        os.unlink(where / ".stop")
        await world.heard("signal", cancelled=True)
        let_go(world, 9)
    assert endings[0].status == "completed"
    assert sorted(world.lines("marks")) == ["0", "1", "2", "3", "4"]


async def test_a_stop_that_is_taken_back_while_the_background_is_waited_for_lets_the_run_go_on(world: World) -> None:
    wait = shell("mark", "echo {{ index }} >> marks; while ! test -e go{{ index }}; do sleep 0.01; done")
    content = batch(wait, wait_for_all=False, items=[0, 1])
    content["steps"].append(shell("after", "echo after >> afters"))
    run_id = world.create(world.workflow("tasks", content))
    where = world.place("run", run_id)
    async with world.running(run_id) as endings:
        await world.until_lines("marks", 2)
        world.signal("stop", where)
        await world.heard("signal", signal="stop")
        # The run comes to its next boundary, and waits there for the other task before it stops.
        world.file("go0", "")
        await eventually(lambda: world.executions[run_id].execution.batches.draining)
        assert world.lines("afters") == []
        os.unlink(where / ".stop")
        await world.heard("signal", cancelled=True)
        world.file("go1", "")
    assert endings[0].status == "completed"
    assert world.lines("afters") == ["after"]


async def test_a_stop_keeps_tasks_that_agents_have_not_begun_for_the_resume(world: World) -> None:
    say = {
        "id": "say",
        "type": "agent",
        "prompt": "{{ index }}",
        "state_update": {"path": "raw.log", "operation": "append"},
    }
    content = {**batch(say, items=[0, 1, 2]), "default_state": {"raw": {"log": []}}}
    run_id = await world.start(world.workflow("tasks", content))
    cases = world.cases
    await cases.next_step(run_id)
    step = (await cases.next_step(run_id, "all.1"))["step"]
    world.signal("stop", world.place("run", run_id), "lunch")
    held_back = await cases.next_step(run_id, "all.0")
    assert (held_back["step"], held_back["status"]) == (None, "stopped")
    assert world.status(run_id) == "running"  # all.1 is under way
    reply = await cases.step_complete(run_id, step["id"], result="one", task_id="all.1")
    assert reply["status"] == world.status(run_id) == "stopped"
    await cases.resume(run_id)
    assert (await world.drive(run_id))["status"] == "completed"
    assert world.state(run_id)["log"] == ["one", "0", "2"]


@pytest.mark.parametrize("driver", ["server", "agent"])
async def test_a_stop_that_is_there_at_the_start_ends_the_run_before_its_first_step(world: World, driver: str) -> None:
    world.workflow("marks", {"steps": [shell("mark", "echo x >> marks")]})
    where = world.place("project", "")
    world.signal("stop", where, "not today")
    if driver == "server":
        run_id, ending = await world.run("marks")
        reason = ending.reason
    else:
        run_id = await world.start("marks")
        reason = (await world.cases.next_step(run_id))["reason"]
    assert world.status(run_id) == "stopped"
    assert str(where / ".stop") in reason
    assert re.search(r"since \d{4}-\d\d-\d\dT.*not today.*stop --cancel", reason)
    assert world.lines("marks") == []
    assert not world.signalled("stop", where)
    assert runs_of(world.receipt("stop", where)) == {run_id: "stopped"}
    assert (await world.execute(run_id)).status == "completed"


@pytest.mark.parametrize("driver", ["server", "agent"])
async def test_an_abort_from_before_the_start_is_cleared_with_a_warning(world: World, driver: str) -> None:
    world.workflow("marks", {"steps": [shell("mark", "echo x >> marks")]})
    where = world.place("project", "")
    world.signal("abort", where, "yesterday's")
    if driver == "server":
        run_id, _ = await world.run("marks")
    else:
        run_id = await world.start("marks")
        await world.drive(run_id)
    assert world.status(run_id) == "completed"
    assert [text for text in world.warnings() if "older than this run" in text and "yesterday's" in text]
    kinds = [event.kind for event in world.told]
    assert kinds.index("warning") < kinds.index("step_started")
    assert not world.signalled("abort", where)
    assert world.receipt("abort", where)["state"] == "expired"


async def idle_runs(world: World) -> dict[str, str]:
    """One of each kind that nobody holds."""
    world.workflow("says", {"steps": [{"id": "say", "type": "agent", "prompt": "hello"}]})
    world.workflow("asks", {"steps": [{"id": "ask", "type": "user_input", "prompt": "now?"}]})
    world.workflow("sleeps", {"steps": [shell("long", SLEEP)]})
    driven = await world.start("says")
    await world.cases.next_step(driven)
    paused, _ = await world.run("asks")
    interrupted = world.create("sleeps")
    async with world.running(interrupted):
        await world.until_lines("pids", 1)
        world.executions[interrupted].interrupt()
    dead = world.create("says")
    world.owner.journal.begin(dead, {})  # what an owner leaves that was killed
    found = {"driven": driven, "paused": paused, "interrupted": interrupted, "dead": dead}
    assert [world.status(run_id) for run_id in found.values()] == ["running", "paused", "interrupted", "running"]
    return found


async def test_an_abort_reaches_governed_runs_that_nobody_holds(world: World) -> None:
    idle = await idle_runs(world)
    done, _ = await world.run(world.workflow("nothing", {"steps": [shell("nothing", "true")]}))
    run_id = world.create("sleeps")
    where = world.place("project", run_id)
    async with world.running(run_id):
        await world.until_lines("pids", 2)
        world.signal("abort", where, "fire")
    expected = dict.fromkeys([run_id, *idle.values()], "aborted")
    assert {run: world.status(run) for run in expected} == expected
    assert world.status(done) == "completed"
    receipt = world.receipt("abort", where)
    assert runs_of(receipt) == expected
    assert receipt["removed"]
    for run in idle.values():  # it did not go on: that is not told either
        assert world.events(run, "run_resumed") == []
        assert world.events(run, "run_ended")[-1]["status"] == "aborted"
        assert world.owner.journal.run(run).reason == "fire"
    assert await world.cases.next_step(idle["driven"]) == {"step": None, "status": "aborted", "reason": "fire"}
    await world.cases.resume(idle["driven"])
    assert (await world.drive(idle["driven"]))["status"] == "completed"


async def test_an_abort_of_one_run_leaves_the_others_alone(world: World) -> None:
    idle = await idle_runs(world)
    run_id = world.create("sleeps")
    async with world.running(run_id) as endings:
        await world.until_lines("pids", 2)
        world.signal("abort", world.place("run", run_id))
    assert endings[0].status == "aborted"
    assert [world.status(run) for run in idle.values()] == ["running", "paused", "interrupted", "running"]


async def test_an_agent_that_asks_finds_an_abort_for_the_others_too(world: World) -> None:
    idle = await idle_runs(world)
    world.signal("abort", world.place("project", ""), "fire")
    await world.cases.next_step(idle["driven"])
    assert {world.status(run) for run in idle.values()} == {"aborted"}


async def test_a_start_that_an_abort_is_too_old_for_applies_it_to_those_that_it_is_meant_for(world: World) -> None:
    idle = await idle_runs(world)
    where = world.place("project", "")
    world.signal("abort", where, "fire")
    _, ending = await world.run(world.workflow("nothing", {"steps": [shell("nothing", "true")]}))
    assert ending.status == "completed"
    assert {world.status(run) for run in idle.values()} == {"aborted"}
    assert set(runs_of(world.receipt("abort", where))) == set(idle.values())
    later = await world.start("says")
    assert world.status(later) == "running"
    assert not world.signalled("abort", where)


async def test_a_signal_that_was_applied_is_not_applied_again(world: World) -> None:
    run_id = world.create(world.workflow("loops", {"steps": [loop(gated("mark", "{{ item }}"))]}))
    where = world.place("run", run_id)
    async with world.running(run_id) as endings:
        await world.until_lines("marks", 1)
        (where / ".stop" / "inside").mkdir(parents=True)  # what cannot be removed
        await world.heard("signal", signal="stop")
        let_go(world, 9)
    assert endings[0].status == "stopped"
    assert [text for text in world.warnings() if ".stop" in text]
    assert (where / ".stop").is_dir()
    assert (await world.execute(run_id)).status == "completed"
    assert world.lines("marks") == ["1", "2", "3"]


async def test_abort_wins_over_stop_and_leaves_none_behind(world: World) -> None:
    run_id = world.create(world.workflow("sleeps", {"steps": [shell("long", SLEEP)]}))
    where = world.place("run", run_id)
    async with world.running(run_id) as endings:
        await world.until_lines("pids", 1)
        world.signal("stop", where)
        world.signal("abort", where)
    assert endings[0].status == "aborted"
    assert not world.signalled("stop", where)
    assert not world.signalled("abort", where)


async def test_a_stop_for_another_run_or_from_the_past_is_not_applied(world: World) -> None:
    run_id = world.create(world.workflow("loops", {"steps": [loop(gated("mark", "{{ item }}"))]}))
    other = world.create("loops")
    where = world.place("run", run_id)
    async with world.running(run_id) as endings:
        await world.until_lines("marks", 1)
        world.signal("stop", world.place("project", run_id), run_id=other)
        (where / ".stop").write_text("late\n\nExpires: 2020-01-01T00:00:00Z\n")
        let_go(world, 9)
    assert endings[0].status == "completed"
    assert world.receipt("stop", where)["state"] == "expired"
    os.unlink(world.place("project", run_id) / ".stop")


async def test_a_stop_during_the_last_iteration_does_not_meet_the_next_run(world: World) -> None:
    world.workflow("marks", {"steps": [gated("mark", "x")]})
    run_id = world.create("marks")
    where = world.place("project", run_id)
    async with world.running(run_id) as endings:
        await world.until_lines("marks", 1)
        world.signal("stop", where)
        let_go(world, 9)
    assert endings[0].status == "completed"
    assert not world.signalled("stop", where)
    assert runs_of(world.receipt("stop", where)) == {run_id: "completed"}


async def test_a_stop_stays_for_a_run_that_waits_for_an_answer(world: World, answers: Any) -> None:
    content = {"steps": [{"id": "ask", "type": "user_input", "prompt": "now?"}, shell("after", "echo x >> marks")]}
    run_id = world.create(world.workflow("asks", content))
    where = world.place("run", run_id)

    nobody = answers()
    nobody.when_asked = lambda: world.signal("stop", where)
    assert (await world.execute(run_id, person=nobody)).status == "paused"
    assert world.signalled("stop", where)
    assert (await world.execute(run_id, person=answers("yes"))).status == "stopped"
    assert (await world.execute(run_id, person=answers("yes"))).status == "completed"
    assert world.lines("marks") == ["x"]


async def test_a_caller_that_gives_a_run_up_leaves_it_interrupted(world: World) -> None:
    run_id = world.create(world.workflow("sleeps", {"steps": [shell("long", SLEEP)]}))
    async with anyio.create_task_group() as group:
        group.start_soon(world.execute, run_id)
        await world.until_lines("pids", 1)
        group.cancel_scope.cancel()
    assert world.status(run_id) == "interrupted"
    assert world.living() == []


async def test_a_stop_for_many_that_this_run_refuses_is_refused_in_its_receipt(world: World) -> None:
    run_id = world.create(world.workflow("loops", {"steps": [loop(gated("mark", "{{ item }}"))]}))
    where = world.place("project", run_id)
    async with world.running(run_id) as endings:
        await world.until_lines("marks", 1)
        world.signal("stop", where)
        await world.heard("signal", signal="stop")
        world.executions[run_id].execution.board.toggle()  # what the key `s` does
        let_go(world, 9)
    assert endings[0].status == "completed"
    receipt = world.receipt("stop", where)
    assert (receipt["state"], receipt["removed"]) == ("refused", True)
    assert runs_of(receipt) == {run_id: "completed"}


async def test_of_two_aborts_both_have_a_receipt_when_one_of_them_ended_the_run(world: World) -> None:
    run_id = world.create(world.workflow("sleeps", {"steps": [shell("long", SLEEP)]}))
    first, second = world.place("project", run_id), world.place("run", run_id)
    async with world.running(run_id) as endings:
        await world.until_lines("pids", 1)
        ids = {place: world.signal("abort", place) for place in (first, second)}
    assert endings[0].status == "aborted"
    for place in (first, second):
        receipt = world.receipt("abort", place)
        assert (receipt["signal_id"], receipt["state"], receipt["removed"]) == (ids[place], "applied", True)
        assert runs_of(receipt) == {run_id: "aborted"}


@pytest.mark.parametrize("place", PLACES)
async def test_a_stop_meets_a_run_that_is_interrupted_to_be_resumed_by_itself(world: World, place: str) -> None:
    world.workspace("desk")
    run_id = world.create(world.workflow("loops", {"steps": [loop(gated("mark", "{{ item }}"))]}), workspace="desk")
    world.owner.journal.change(run_id, details={"detached": True})
    where = world.place(place, run_id)
    async with world.running(run_id) as endings:
        await world.until_lines("marks", 1)
        world.signal("stop", where, "lunch")
        await world.heard("signal", signal="stop")
        world.executions[run_id].interrupt()  # the daemon is restarted
    assert endings[0].status == "interrupted"
    assert world.signalled("stop", where)
    ending = await world.execute(run_id)  # what was written while nobody executed it comes first
    assert (ending.status, ending.reason, ending.executed) == ("stopped", "lunch", False)
    assert world.lines("marks") == ["1"]
    assert not world.signalled("stop", where)
    assert runs_of(world.receipt("stop", where)) == {run_id: "stopped"}
