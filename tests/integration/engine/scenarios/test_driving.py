"""What an agent that drives a run may do wrong, and what then becomes of the step in its hands."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.errors import InputError

pytestmark = pytest.mark.anyio
World = Any
ASK = {
    "id": "ask",
    "type": "user_input",
    "prompt": "how many?",
    "answer_type": "integer",
    "state_update": {"path": "raw.n"},
}


def asks(world: World) -> str:
    return str(world.workflow("asks", {"default_state": {"raw": {"n": 0}}, "steps": [ASK]}))


async def test_an_answer_that_does_not_fit_is_refused_and_the_step_stays_in_hand(world: World) -> None:
    run_id = await world.start(asks(world))
    step = (await world.cases.next_step(run_id))["step"]
    with pytest.raises(InputError, match="whole number"):
        await world.cases.step_complete(run_id, step["id"], result="many")
    assert (await world.cases.next_step(run_id))["step"] == step
    assert await world.cases.step_complete(run_id, step["id"], result="7") == {"success": True}
    assert "reported before" in (await world.cases.step_complete(run_id, step["id"], result="8"))["message"]
    assert (await world.cases.next_step(run_id))["status"] == "completed"
    assert world.state(run_id)["n"] == 7


async def test_a_step_or_a_task_that_is_not_handed_out_is_refused(world: World) -> None:
    run_id = await world.start(asks(world))
    with pytest.raises(InputError, match="is not handed out"):
        await world.cases.step_complete(run_id, "ask", result="7")
    with pytest.raises(InputError, match=r"has no task 'all\.0'"):
        await world.cases.next_step(run_id, "all.0")


async def test_the_step_is_the_same_for_another_process_that_asks(world: World) -> None:
    run_id = await world.start(asks(world))
    step = (await world.cases.next_step(run_id))["step"]
    other = type(world.cases)(world.project, world.owner, world.cases._executor)
    assert (await other.next_step(run_id))["step"] == step
    await other.step_complete(run_id, step["id"], result=3)
    assert (await world.cases.next_step(run_id))["status"] == "completed"
    assert world.state(run_id)["n"] == 3
    assert [event["attempt"] for event in world.events(run_id, "step_started")] == [1]


async def test_a_run_changes_its_driver_between_steps(world: World, answers: Any) -> None:
    run_id = await world.start(asks(world))
    await world.cases.next_step(run_id)
    ending = await world.execute(run_id, person=answers("5"))
    assert ending.status == "completed"
    assert world.state(run_id)["n"] == 5
    assert (await world.cases.next_step(run_id))["status"] == "completed"
