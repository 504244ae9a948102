"""An agent as a run of its own: what the journal has of it while it works, and of its turn when that is over."""

from __future__ import annotations

import json
import shlex
import sqlite3
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest
import yaml

from sidecar.catalog import agents
from sidecar.engine.server_driven import ServerDriven
from sidecar.errors import StoreError
from sidecar.model import events as kinds
from sidecar.model import ulid
from sidecar.service import runs
from sidecar.store.db import NAME
from tests.kit import eventually

if TYPE_CHECKING:
    from sidecar.model.events import RunEvent
    from tests.integration.service.conftest import Place


pytestmark = pytest.mark.anyio
SPOKEN = {
    "type": "assistant",
    "message": {"role": "assistant", "content": [{"type": "text", "text": "half"}]},
    "session_id": "s-1",
}
BEGUN = {"type": "system", "subtype": "init", "session_id": "s-1", "model": "m", "tools": []}
RESULT = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "result": "done",
    "session_id": "s-1",
    "structured_output": {"a": [1]},
    "total_cost_usd": 0.25,
    "usage": {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 3},
}


class Alone:
    """Runs that are one turn of an agent."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.owner = place.owner
        self.told: list[RunEvent] = []

    def define(self, name: str, script: str, **more: Any) -> None:
        content = {"adapter": "command", "command": ["sh", "-c", script, "sh"], **more}
        path = self.place.root / ".swissarmyhammer" / "agents" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(content))

    def claude(self, name: str, *messages: dict[str, Any], then: str = "exit") -> None:
        says = [f"printf '%s\\n' {shlex.quote(json.dumps(message))}" for message in messages]
        self.define(name, "\n".join(["cat > prompt", *says, "touch said", then]), adapter="claude")

    def created(self, name: str, directory: str | None = None, **given: Any) -> str:
        declared = agents.find(str(self.place.root), name).definition.declared
        definition = runs.of_agent(name, declared, directory)
        prepared = runs.prepare(self.place.project, definition, given)
        return runs.begin(self.place.project, prepared, database=self.owner.database)

    def execution(self, run_id: str) -> ServerDriven:
        return ServerDriven(self.owner, run_id, self.told.append)

    async def run(self, name: str, **given: Any) -> tuple[str, Any]:
        run_id = self.created(name, **given)
        return run_id, await self.execution(run_id).execute()

    def turn(self, run_id: str, **state: Any) -> dict[str, Any]:
        return runs.last_turn(self.owner.database, run_id, state)


@pytest.fixture
def alone(place: Place) -> Alone:
    return Alone(place)


async def test_while_the_agent_runs_the_journal_has_what_names_it(alone: Alone) -> None:
    alone.define("worker", "exit 3")
    noted: list[int] = []

    def hear(event: RunEvent) -> None:
        if event.kind == kinds.AGENT_STARTED:
            noted.extend(record.pid - event.data["pid"] for record in alone.owner.agents.not_ended())

    run_id = alone.created("worker", prompt="go")
    ending = await ServerDriven(alone.owner, run_id, hear).execute()
    assert (ending.status, ending.reason) == ("failed", "agent 'worker': it ended with exit code 3")
    assert noted == [0]
    assert alone.owner.agents.not_ended() == []


async def test_an_agent_of_which_no_record_can_be_kept_does_not_go_on(alone: Alone) -> None:
    """Its owner goes on, as a daemon does: nobody else would end it."""
    word = ulid.new()
    alone.define("worker", f"sleep 1000; : {word}")
    run_id = alone.created("worker", prompt="go")
    with sqlite3.connect(alone.place.root / ".swissarmyhammer" / NAME) as other:
        other.execute("CREATE TRIGGER refuse BEFORE INSERT ON agents BEGIN SELECT RAISE(ABORT, 'no room'); END")
    other.close()
    with pytest.raises(StoreError):
        await alone.execution(run_id).execute()
    assert [process.pid for process in psutil.process_iter() if word in " ".join(command_of(process))] == []


async def test_what_a_turn_came_to_is_kept_with_its_process(alone: Alone) -> None:
    alone.claude("worker", BEGUN, SPOKEN, RESULT)
    run_id, ending = await alone.run("worker", prompt="go")
    assert ending.status == "completed"
    turn = alone.turn(run_id, answer="done")
    assert (turn["text"], turn["structured"], turn["session_id"]) == ("done", {"a": [1]}, "s-1")
    assert turn["cost_usd"] == 0.25
    assert turn["tokens"]["output"] == 5
    assert (turn["exit_code"], turn["ended"], turn["rung"], turn["survivors"]) == (0, "exited", "exited", 0)
    assert turn["pid"] > 0
    assert turn["duration_s"] >= 0


async def test_a_failed_turn_keeps_what_was_said_and_json_in_it_is_a_value(alone: Alone) -> None:
    alone.define("worker", "echo '{\"a\": 1}'; exit 4")
    run_id, ending = await alone.run("worker", prompt="go")
    turn = alone.turn(run_id)
    assert ending.status == "failed"
    assert (turn["text"], turn["structured"], turn["exit_code"]) == ('{"a": 1}', {"a": 1}, 4)


async def test_the_session_of_an_agent_that_was_interrupted_is_known(alone: Alone) -> None:
    alone.claude("worker", BEGUN, SPOKEN, then="exec sleep 300")
    run_id = alone.created("worker", prompt="go")
    execution = alone.execution(run_id)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(execution.execute)
        await eventually(lambda: any(event.data.get("activity") == "message" for event in alone.told))
        execution.interrupt()
    turn = alone.turn(run_id)
    assert alone.place.status(run_id) == "interrupted"
    assert (turn["session_id"], turn["ended"], turn["text"]) == ("s-1", "shutdown", "")


async def test_an_agent_without_a_prompt_of_its_callers_gets_the_one_that_it_defines(alone: Alone) -> None:
    parameters = [{"name": "what"}, {"name": "how", "required": False}]
    alone.define("greeter", "cat", prompt="Say {{ what }}{{ how }}.", parameters=parameters)
    _, ending = await alone.run("greeter", what="hello {{ you }}")
    assert ending.status == "completed", ending.reason
    [said] = [event.data["lines"] for event in alone.told if event.kind == kinds.AGENT_OUTPUT]
    assert said[0].startswith("Say hello {{ you }}")


async def test_an_agent_works_in_the_directory_that_it_is_given(alone: Alone) -> None:
    strange = alone.place.root / "a {{ b }}"
    strange.mkdir()
    alone.define("worker", "touch here")
    ending = await alone.execution(alone.created("worker", strange.name, prompt="go")).execute()
    assert ending.status == "completed", ending.reason
    assert (strange / "here").exists()


@pytest.mark.parametrize(
    ("limits", "step", "limit"),
    [
        ({"timeout": "300ms"}, {}, "timeout"),
        ({"idle_timeout": "300ms"}, {}, "stall"),
        ({}, {"timeout": "300ms"}, None),
    ],
    ids=["timeout", "stall", "of the step"],
)
async def test_a_limit_of_the_agent_is_a_limit_of_its_run_and_a_steps_timeout_is_a_failure(
    alone: Alone, limits: dict[str, str], step: dict[str, str], limit: str | None
) -> None:
    alone.define("slow", "exec sleep 300", limits=limits)
    run_id = alone.place.run("flow", {"id": "a", "type": "agent", "agent": "slow", "prompt": "go", **step})
    ending = await alone.execution(run_id).execute()
    assert (ending.status, ending.limit) == ("failed", limit)


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
