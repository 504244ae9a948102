"""A run goes on: after failures, questions and limits, with counters that do not begin anew, or with changes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from sidecar import config
from sidecar.agents import lineage
from sidecar.catalog import workflows
from sidecar.engine import agent_driven
from sidecar.engine.ending import end_abandoned, end_deadly
from sidecar.engine.owner import Owner
from sidecar.engine.replay import load
from sidecar.errors import InputError
from sidecar.model import events as kinds
from sidecar.signals.run_lock import RunLock

pytestmark = pytest.mark.anyio
World = Any
FLAKY = "echo x >> tries; test -e mended"


def shell(name: str, command: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "type": "shell_command", "command": command, **more}


def add(name: str = "add") -> dict[str, Any]:
    return {"id": name, "type": "state_update", "path": "raw.n", "operation": "increment"}


async def test_what_is_done_is_not_done_again_and_the_failed_step_is(world: World) -> None:
    content = {
        "default_state": {"raw": {"n": 0}},
        "steps": [shell("one", "echo x >> ones"), add(), shell("bad", FLAKY)],
    }
    run_id, ending = await world.run(world.workflow("fails", content))
    assert ending.status == "failed"
    world.file("mended", "")
    assert (await world.execute(run_id)).status == "completed"
    assert (len(world.lines("ones")), len(world.lines("tries")), world.state(run_id)["n"]) == (1, 2, 1)
    told = "> one; + one; + add; > bad; ! bad; end failed; resumed failed; > bad 2; + bad; end completed"
    assert "; ".join(world.compact(run_id)) == told
    again = await world.execute(run_id)
    assert "nothing to do" in again.reason
    assert len(world.events(run_id, "run_ended")) == 2


@pytest.mark.parametrize("retried", [True, False])
async def test_a_resume_retries_the_failed_step_or_passes_it(world: World, retried: bool) -> None:
    body = {"id": "loop", "type": "foreach", "items": [1, 2], "body": [shell("bad", FLAKY), add()]}
    content = {"default_state": {"raw": {"n": 0}}, "steps": [body], "on_resume": {"retry_failed_steps": retried}}
    run_id, _ = await world.run(world.workflow("fails", content))
    ending = await world.execute(run_id)
    assert ending.status == "failed"
    assert len(world.lines("tries")) == 2
    assert world.state(run_id)["n"] == (0 if retried else 1)
    assert (await world.execute(run_id)).status == ("failed" if retried else "completed")
    assert world.state(run_id)["n"] == (0 if retried else 2)


async def test_a_resume_passes_failed_tasks_where_it_is_to(world: World) -> None:
    content = {
        "default_state": {"raw": {"n": 0}},
        "steps": [{"id": "all", "type": "parallel_foreach", "items": [1], "sub_agent_task": "bad"}, add()],
        "sub_agent_tasks": {"bad": {"steps": [shell("fails", "exit 1")]}},
        "on_resume": {"retry_failed_steps": False},
    }
    run_id, ending = await world.run(world.workflow("fails", content))
    assert ending.status == "failed"
    assert (await world.execute(run_id)).status == "completed"
    assert world.state(run_id)["n"] == 1


@pytest.mark.parametrize(("reset", "tries"), [(False, 3), (True, 4)])
async def test_a_resume_counts_retries_on_or_anew(world: World, reset: bool, tries: int) -> None:
    bad = shell("bad", FLAKY, on_error="retry", retry_count=1, retry_delay=0)
    content = {"steps": [bad], "on_resume": {"reset_error_counts": reset}}
    run_id, _ = await world.run(world.workflow("fails", content))
    assert len(world.lines("tries")) == 2
    await world.execute(run_id)
    assert len(world.lines("tries")) == tries


async def test_counting_anew_does_not_take_an_included_workflow_for_done(world: World) -> None:
    world.workflow("part", {"steps": [shell("one", "echo x >> ones"), shell("bad", FLAKY)]})
    part = {"id": "part", "type": "include_workflow", "workflow": "part", "on_error": "retry", "retry_count": 1}
    content = {"steps": [{**part, "retry_delay": 0}], "on_resume": {"reset_error_counts": True}}
    run_id, _ = await world.run(world.workflow("fails", content))
    assert (await world.execute(run_id)).status == "failed"
    world.file("mended", "")
    assert (await world.execute(run_id)).status == "completed"


async def test_a_run_waits_for_an_answer_that_nobody_can_give_and_goes_on_with_it(world: World, answers: Any) -> None:
    ask = {
        "id": "ask",
        "type": "user_input",
        "prompt": "how many?",
        "answer_type": "integer",
        "validation": {"pattern": "^[0-9]$", "error_message": "one digit"},
        "state_update": {"path": "raw.n"},
    }
    run_id, ending = await world.run(world.workflow("asks", {"default_state": {"raw": {"n": 0}}, "steps": [ask]}))
    assert ending.status == world.status(run_id) == "paused"
    assert (ending.waits["prompt"], ending.waits["pattern"], ending.waits["step"]) == ("how many?", "^[0-9]$", "ask")
    assert world.events(run_id, "run_ended")[0]["waits"] == ending.waits
    person = answers("many", "77", "7")
    assert (await world.execute(run_id, person=person)).status == "completed"
    assert len(person.problems) == 3
    assert world.state(run_id)["n"] == 7
    assert [event["value"] for event in world.events(run_id, "answered")] == [7]


async def test_steps_are_counted_across_resumes(world: World) -> None:
    content = {
        "default_state": {"raw": {"n": 0}},
        "limits": {"max_transitions": 4},
        "steps": [add("one"), shell("bad", FLAKY), add("two"), add("three"), add("four")],
    }
    run_id, _ = await world.run(world.workflow("limited", content))
    world.file("mended", "")
    ending = await world.execute(run_id)  # one, bad, bad, two
    assert (ending.status, ending.limit) == ("failed", "max_transitions")
    assert world.state(run_id)["n"] == 2
    ending = await world.execute(run_id)
    assert (ending.limit, world.state(run_id)["n"]) == ("max_transitions", 2)


async def test_iterations_are_counted_across_resumes_and_tasks(world: World) -> None:
    loop = {"id": "loop", "type": "foreach", "items": [1, 2], "body": [add()]}
    content = {
        "default_state": {"raw": {"n": 0}},
        "limits": {"max_iterations": 5},
        "steps": [
            {"id": "all", "type": "parallel_foreach", "items": [1, 2], "sub_agent_task": "work"},
            shell("bad", FLAKY),
            {**loop, "id": "last", "body": [add("more")]},
        ],
        "sub_agent_tasks": {"work": {"steps": [loop]}},
    }
    run_id, _ = await world.run(world.workflow("limited", content))
    world.file("mended", "")
    ending = await world.execute(run_id)
    assert (ending.limit, world.state(run_id)["n"]) == ("max_iterations", 5)


async def test_time_is_counted_across_resumes(world: World) -> None:
    content = {
        "limits": {"max_duration": "700ms"},
        "steps": [
            shell("half", "sleep 0.4"),
            shell("bad", FLAKY),
            shell("rest", "sleep 0.4"),
            shell("never", "touch never"),
        ],
    }
    run_id, first = await world.run(world.workflow("limited", content))
    assert first.limit is None or first.limit == "max_duration"
    world.file("mended", "")
    ending = await world.execute(run_id)
    assert (ending.status, ending.limit) == ("failed", "max_duration")
    assert not (world.root / "never").exists()


async def test_cost_is_counted_across_resumes_and_no_agent_starts_when_it_is_spent(world: World) -> None:
    usage = {"input_tokens": 1, "output_tokens": 1}
    said = {"type": "result", "session_id": "s", "usage": usage, "total_cost_usd": 0.5, "result": "done"}
    script = f"cat > /dev/null; echo x >> turns; printf '%s\\n' {shlex.quote(json.dumps(said))}"
    definition = {"adapter": "claude", "command": ["sh", "-c", script, "dear"]}
    world.file(".swissarmyhammer/agents/dear.yaml", definition)
    turn = {"type": "agent", "agent": "dear", "prompt": "spend"}
    content = {
        "default_state": {"raw": {"n": 0}},
        "limits": {"max_cost_usd": 0.75},
        "steps": [{"id": "one", **turn}, shell("bad", FLAKY), {"id": "two", **turn}, add(), {"id": "three", **turn}],
    }
    run_id, ending = await world.run(world.workflow("limited", content))
    assert ending.limit is None
    world.file("mended", "")
    ending = await world.execute(run_id)
    assert (ending.status, ending.limit) == ("failed", "max_cost_usd")
    assert len(world.lines("turns")) == 2
    assert (await world.execute(run_id)).limit == "max_cost_usd"
    assert len(world.lines("turns")) == 2


def changed(world: World, steps: list[dict[str, Any]]) -> Any:
    world.workflow("fails", {"default_state": {"raw": {"n": 0}}, "steps": steps})
    return workflows.find(str(world.root), "fails")


async def test_a_run_goes_on_with_a_changed_definition_and_keeps_it(world: World) -> None:
    changed(world, [add("one"), shell("bad", "exit 1")])
    run_id, _ = await world.run("fails")
    mended = changed(world, [add("zero"), add("one"), shell("bad", "true"), add("two"), shell("later", FLAKY)])
    ending = await world.execute(run_id, definition=mended)
    assert (ending.status, world.state(run_id)["n"]) == ("failed", 2)
    told = "resumed failed; > bad 2; + bad; + two; > later; ! later; end failed"
    assert "; ".join(world.compact(run_id)[-7:]) == told
    world.file("mended", "")
    assert (await world.execute(run_id)).status == "completed"  # without it: the run has it now
    assert world.state(run_id)["n"] == 2


async def test_an_error_inside_an_owner_comes_out_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such thing"):
        async with Owner(str(tmp_path), config.load(str(tmp_path), {}), {}, lambda _: None):
            raise InputError("no such thing")


async def test_time_is_counted_also_where_the_owner_died(world: World) -> None:
    content = {"steps": [shell("nap", "sleep 0.3"), shell("long", "echo $$ >> pids; exec sleep 600")]}
    run_id = world.create(world.workflow("sleeps", content))
    async with world.running(run_id):
        await world.until_lines("pids", 1)
        await world.heard("agent_started", run_id, 2)
        image = load(world.owner, world.owner.journal.run(run_id))  # what another finds who comes after a crash
        world.executions[run_id].interrupt()
    image.states.close()
    assert image.counters.duration_s > 0.29
    assert image.counters.processes == 2


async def test_deaths_of_owners_are_counted_on_where_an_agent_drove_the_run_in_between(world: World) -> None:
    asks = {"steps": [{"id": "deadly", "type": "user_input", "prompt": "Go on?"}]}
    run_id, ending = await world.run(world.workflow("deadly", asks))
    assert ending.status == "paused"
    owner = world.owner

    def died() -> None:
        """An owner began, came to the step, and died there."""
        owner.journal.change(run_id, driver="server")
        owner.journal.begin(run_id, {"boot": lineage.boot_id()})
        owner.journal.append(run_id, kinds.STEP_STARTED, {"step": "deadly", "task": None})

    died()
    end_abandoned(owner, owner.journal.run(run_id))
    died()
    with RunLock(str(world.root), run_id):
        agent_driven.resume(owner, run_id, None)  # it finds the second death
    assert owner.journal.last_end(run_id) is None
    end_abandoned(owner, owner.journal.run(run_id))  # the agent is relieved
    died()
    ends = [event.data for event in owner.journal.events(run_id) if event.kind == kinds.RUN_ENDED]
    assert [sorted(data.keys() & {"owner_died", "relieved"}) for data in ends[1:]] == [
        ["owner_died"],
        ["owner_died"],
        ["relieved"],
    ]
    given_up = end_deadly(owner, owner.journal.run(run_id))
    assert given_up is not None
    assert given_up.data["reason"].startswith("its owner died 3 times at step deadly")
