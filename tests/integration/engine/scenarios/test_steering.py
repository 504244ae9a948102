"""Stages that wait for approval, and redirects: a real agent is ended, and its step done again with what was said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from sidecar.engine import redirects
from sidecar.engine.replay import load
from tests.kit import eventually

pytestmark = pytest.mark.anyio
World = Any
# Keeps its prompt, and answers when the prompt has the word; until then it works.
WORKER = """
prompt=$(cat); echo "$prompt" > prompt.$(ls | grep -c '^prompt'); echo $$ >> pids
case "$prompt" in *PLEASE*) echo done;; *) exec sleep 600;; esac
"""
STEPS: list[dict[str, Any]] = [
    {"id": "work", "type": "agent", "agent": "stubborn", "prompt": "do it", "state_update": {"path": "raw.out"}},
    {"id": "heard", "type": "state_update", "path": "raw.heard", "value": "{{ feedback }}"},
]


def prepared(world: World) -> str:
    world.agent("stubborn", WORKER)
    return str(world.create(world.workflow("works", {"default_state": {"raw": {"out": ""}}, "steps": STEPS})))


async def at_work(world: World, run_id: str, times: int = 1) -> None:
    """Until the agent has its prompt for the nth time, and the owner has heard that it runs."""
    await world.until_lines("pids", times)
    await world.heard("agent_started", run_id, times)


def attempts(world: World, run_id: str) -> list[int]:
    return [event["attempt"] for event in world.events(run_id, "step_started") if event["id"] == "work"]


async def test_a_redirect_ends_the_agent_and_does_its_step_again_with_the_text(world: World) -> None:
    run_id = prepared(world)
    async with world.running(run_id) as endings:
        await at_work(world, run_id)
        assert world.executions[run_id].redirect("PLEASE hurry") == ["work"]
    assert endings[0].status == "completed"
    assert world.state(run_id)["out"] == "done"
    assert "\n".join(world.lines("prompt.0")) == "do it"
    assert "\n".join(world.lines("prompt.1")) == "do it\n\nPLEASE hurry"
    assert attempts(world, run_id) == [1, 2]
    assert [event["reason"] for event in world.events(run_id, "agent_ended")] == ["redirect", "exited"]
    assert world.living() == []


async def test_a_redirect_survives_the_end_of_its_owner(world: World) -> None:
    run_id = prepared(world)
    async with world.running(run_id):
        await at_work(world, run_id)
        world.executions[run_id].redirect("be quick")
        await at_work(world, run_id, 2)
        image = load(world.owner, world.owner.journal.run(run_id))  # what another finds who comes after a crash
        assert image.additions == {"work": ["be quick"]}
        image.states.close()
        world.executions[run_id].interrupt()
    async with world.running(run_id) as endings:
        await at_work(world, run_id, 3)
        world.executions[run_id].redirect("PLEASE")
    assert endings[0].status == "completed"
    assert "\n".join(world.lines("prompt.3")) == "do it\n\nbe quick\n\nPLEASE"


async def test_a_redirect_without_an_agent_changes_nothing(world: World) -> None:
    run_id = world.create(world.workflow("waits", {"steps": [{"id": "pause", "type": "wait", "until": "false"}]}))
    async with world.running(run_id):
        await world.heard("step_started")
        assert world.executions[run_id].redirect("PLEASE") == []
        world.executions[run_id].interrupt()


async def test_a_submitted_stage_pauses_the_run_when_the_reply_is_out(world: World) -> None:
    run_id = prepared(world)
    delivered = anyio.Event()
    async with world.running(run_id) as endings:
        await at_work(world, run_id)
        async with anyio.create_task_group() as group:
            execution = world.executions[run_id]
            group.start_soon(execution.submit_stage, "design", "a plan", "plan", delivered)
            await world.heard("gate")
            assert world.living() != []  # the reply first
            delivered.set()
    assert (endings[0].status, endings[0].reason) == ("paused", "design waits for approval")
    assert endings[0].waits == {"stage": "design", "output": "a plan", "kind": "plan", "step": "work"}
    assert [event["reason"] for event in world.events(run_id, "agent_ended")] == ["stage_gate"]
    assert world.living() == []
    assert world.status(run_id) == "paused"
    assert (await world.execute(run_id, feedback="PLEASE add tests")).status == "completed"
    assert "'design' for approval. The answer: PLEASE add tests" in "\n".join(world.lines("prompt.1"))
    assert attempts(world, run_id) == [1, 2]
    assert (world.state(run_id)["out"], world.state(run_id)["heard"]) == ("done", "PLEASE add tests")


async def test_what_an_agent_says_after_it_submitted_a_stage_does_not_complete_its_step(world: World) -> None:
    world.agent("stubborn", "cat > prompt; echo $$ >> pids; while ! test -e go; do sleep 0.01; done; echo done")
    run_id = world.create(world.workflow("works", {"default_state": {"raw": {"out": ""}}, "steps": STEPS}))
    delivered = anyio.Event()
    async with world.running(run_id) as endings:
        await at_work(world, run_id)
        async with anyio.create_task_group() as group:
            group.start_soon(world.executions[run_id].submit_stage, "design", "", "stage", delivered)
            await world.heard("gate")
            world.file("go", "")
            await eventually(lambda: endings)  # before its reply is out: it did not wait for it
            delivered.set()
    assert endings[0].status == "paused"
    assert [event["reason"] for event in world.events(run_id, "agent_ended")] == ["exited"]
    assert world.state(run_id)["out"] == ""
    assert (await world.execute(run_id, approve=True)).status == "completed"
    assert "The answer: It was approved." in "\n".join(world.lines("prompt"))


async def test_an_agent_that_drives_submits_a_stage_too(world: World) -> None:
    work = {"id": "work", "type": "agent", "prompt": "do it"}
    world.workflow("part", {"default_state": {"raw": {"out": ""}}, "steps": [work, {**STEPS[1], "path": "raw.out"}]})
    part = {"id": "part", "type": "include_workflow", "workflow": "part", "state_update": {"path": "raw.out"}}
    run_id = await world.start(world.workflow("works", {"default_state": {"raw": {"out": ""}}, "steps": [part]}))
    first = (await world.cases.next_step(run_id))["step"]
    reply = await world.cases.stage_gate("design", "a plan", "stage", run_id)
    assert (reply["allowed"], reply["pause_required"]) == (False, True)
    assert (await world.cases.next_step(run_id))["status"] == "paused"
    await world.cases.resume(run_id, feedback="more")
    again = (await world.cases.next_step(run_id))["step"]
    assert again["id"] == first["id"]
    assert "The answer: more" in again["definition"]["prompt"]
    await world.drive(run_id)
    assert world.state(run_id)["out"]["out"] == "more"  # what was included hears it as well


async def test_a_redirect_that_was_journalled_and_not_removed_is_not_heard_again(world: World) -> None:
    run_id = prepared(world)
    async with world.running(run_id):
        await at_work(world, run_id)
        path = Path(redirects.redirect(str(world.root), run_id, "be quick"))
        await at_work(world, run_id, 2)
        await eventually(lambda: not path.exists())
        world.executions[run_id].interrupt()
    async with world.running(run_id):
        await at_work(world, run_id, 3)
        world.file(str(path.relative_to(world.root)), "be quick")  # as a crash between the two leaves it
        await eventually(lambda: not path.exists())
        world.executions[run_id].interrupt()
    assert len(world.events(run_id, "redirected")) == 1
    assert "\n".join(world.lines("prompt.2")) == "do it\n\nbe quick"


async def test_a_redirect_is_in_the_journal_before_its_file_goes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = prepared(world)
    journalled: list[int] = []
    forget = redirects.forget

    def look(*which: str) -> None:
        journalled.append(len(world.events(run_id, "redirected")))
        forget(*which)

    monkeypatch.setattr(redirects, "forget", look)
    async with world.running(run_id):
        await at_work(world, run_id)
        redirects.redirect(str(world.root), run_id, "PLEASE")
    assert journalled == [1]
