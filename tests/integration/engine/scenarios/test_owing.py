"""A step that is over may wait for the next effect to be written down with it, but for nothing that takes time."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sidecar.engine import interpreter
from sidecar.engine.cursor.actions import Boundary, Execute
from sidecar.engine.interpreter import Interpreter
from sidecar.engine.run import Thread
from sidecar.model.steps import StateUpdate, UserMessage
from sidecar.store.db import open_database
from sidecar.store.journal import Steps

pytestmark = pytest.mark.anyio
World = Any
DONE = {"id": "done", "type": "shell_command", "command": "echo out"}
MESSAGE = {"type": "user_message", "message": "hi"}
NEXT: dict[str, dict[str, Any]] = {
    "an effect": {"type": "shell_command", "command": "true"},
    "a condition": {"type": "conditional", "condition": "{{ [1].length === 1 }}", "then": [MESSAGE]},
    "a loop": {"type": "while", "condition": "{{ [].length === 1 }}", "max_iterations": 3, "body": [MESSAGE]},
    "items": {"type": "foreach", "items": "{{ [1, 2] }}", "body": [{"type": "break"}]},
    "a write": {"type": "state_update", "path": "raw.n", "value": "{{ [1].length }}"},
    "a message": {"type": "user_message", "message": "n is {{ n + 1 }}"},
    "an include": {"type": "include_workflow", "workflow": "inner"},
}


@pytest.fixture
def unwritten(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whenever something else than a look at the signals or an effect is to come: steps that only memory says are
    over. The journal is read as another process would."""
    found: list[str] = []
    do = Interpreter._do

    async def watched(self: Interpreter, thread: Thread, action: Any) -> None:
        effect = isinstance(action, Execute) and not isinstance(action.step, StateUpdate | UserMessage)
        if not isinstance(action, Boundary) and not effect:
            with open_database(str(world.root)) as database:
                begun = [step for step in Steps(database).steps(self.ledger.run_id) if step.status == "begun"]
            found.extend(f"{step.key} before {type(action).__name__}" for step in begun)
        await do(self, thread, action)

    monkeypatch.setattr(Interpreter, "_do", watched)
    return found


@pytest.mark.parametrize("following", NEXT)
async def test_before_anything_that_takes_time_it_is_on_the_disk(
    world: World, unwritten: list[str], following: str
) -> None:
    world.workflow("inner", {"steps": [{"type": "state_update", "path": "raw.x", "value": 1}]})
    steps = [DONE, NEXT[following], {"id": "last", "type": "shell_command", "command": "true"}]
    run_id = world.create(world.workflow("owing", {"default_state": {"raw": {"n": 0}}, "steps": steps}))
    async with world.running(run_id):
        pass
    assert unwritten == []
    with open_database(str(world.root)) as database:
        assert {step.status for step in Steps(database).steps(run_id)} == {"completed"}


async def test_two_effects_in_a_row_need_one_transaction_between_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the figure of a durable step rests on."""
    monkeypatch.setattr(interpreter, "_TURN_S", math.inf)  # nobody else needs a turn, however slow the machine is
    steps = [{"id": f"s{n}", "type": "wait", "duration": 0.01} for n in range(5)]
    run_id = world.create(world.workflow("rows", {"steps": steps}))
    async with world.running(run_id):
        pass
    kinds = ("step_completed", "step_started")
    told = [(event.kind, event.at) for event in world.owner.journal.events(run_id) if event.kind in kinds]
    assert [kind for kind, _ in told] == ["step_started", "step_completed"] * 5
    moments = [at for _, at in told]  # what is journalled together has one time
    assert moments[1:-1:2] == moments[2::2]


async def test_it_is_on_the_disk_while_a_stop_waits_for_tasks_that_still_run(world: World) -> None:
    world.file("items", "")
    task = {"steps": [{"type": "shell_command", "command": "until [ -e {{ item }} ]; do sleep 0.01; done"}]}
    apart = {"type": "parallel_foreach", "items": ["items", "later"], "sub_agent_task": "t", "wait_for_all": False}
    stop = {"id": "done", "type": "shell_command", "command": 'touch ".swissarmyhammer/runs/$SIDECAR_RUN_ID/.stop"'}
    steps = [apart, stop, {"id": "next", "type": "shell_command", "command": "true"}]
    run_id = world.create(world.workflow("apart", {"steps": steps, "sub_agent_tasks": {"t": task}}))
    async with world.running(run_id) as endings:
        await world.heard("step_completed", run_id, step="done")
        with open_database(str(world.root)) as database:
            assert {step.key: step.status for step in Steps(database).steps(run_id)}["done"] == "completed"
        assert endings == []
        world.file("later", "")
    assert [ending.status for ending in endings] == ["stopped"]
