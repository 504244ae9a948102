"""An abort cannot be swallowed: whatever is being done, however errors are handled, and wherever it stands."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

pytestmark = pytest.mark.anyio
World = Any
STEPS: dict[str, dict[str, Any]] = {
    "shell_command": {"command": "exec sleep 600"},
    "agent_shell_command": {"command": "exec sleep 600"},
    "agent": {"agent": "sleeper", "prompt": "sleep"},
    "apply_hints": {"agent": "sleeper", "file": "a", "hints": ["b"]},
    "mcp_call": {"mcp": {"method": "silent"}},
    "wait": {"until": "false", "interval": "10m"},
    "user_input": {"prompt": "for ever?"},
    "parallel_foreach": {"items": [1, 2], "sub_agent_task": "sleep"},
    "include_workflow": {"workflow": "sleeps"},
}
HANDLING: dict[str, dict[str, Any]] = {
    "fail": {"on_error": "fail"},
    "continue": {"on_error": "continue"},
    "retry": {"on_error": "retry", "retry_count": 3, "retry_delay": 0},
}
TASKS = {"sleep": {"steps": [{"id": "nap", "type": "shell_command", "command": "exec sleep 600"}]}}


class Absent:
    """A person who never answers."""

    async def ask(self, question: dict[str, Any], problem: str | None) -> None:
        await anyio.sleep_forever()

    async def lend_terminal(self, run: object) -> None:
        return None


def touch(name: str) -> dict[str, Any]:
    return {"id": f"touch_{name}", "type": "shell_command", "command": f"touch {name}"}


def workflow(nesting: str, step: dict[str, Any], mark: str) -> dict[str, Any]:
    """The step at some depth, and after it and around it everything that could go on instead."""
    inner = [step, touch(f"after-{mark}")]
    tasks: dict[str, Any] = dict(TASKS)
    if nesting == "loop":
        inner = [{"id": "loop", "type": "foreach", "items": [1, 2], "body": inner}, touch(f"behind-{mark}")]
    if nesting == "task":
        clean = {"return_on_error": False, "cleanup_on_error": [touch(f"clean-{mark}")]}
        tasks["work"] = {"steps": inner, "error_handling": clean}
        handling = {"strategy": "retry_failed", "max_retries": 3}
        inner = [
            {"id": "all", "type": "parallel_foreach", "items": [1], "sub_agent_task": "work", "on_error": "continue"}
        ]
        inner[0]["on_sub_agent_error"] = handling
        inner.append(touch(f"behind-{mark}"))
    handling = {"on_error": "retry_workflow" if nesting == "top" else "continue", "retry_delay": 0}
    return {
        "steps": inner,
        "sub_agent_tasks": tasks,
        "error_handling": {**handling, "on_failure": [touch(f"failed-{mark}")]},
    }


def included(world: World, mark: str, content: dict[str, Any]) -> dict[str, Any]:
    world.workflow(f"part-{mark}", content)
    outer = {
        "id": "part",
        "type": "include_workflow",
        "workflow": f"part-{mark}",
        "on_error": "retry",
        "retry_delay": 0,
    }
    handling = {"on_error": "continue", "on_failure": [touch(f"outer-{mark}")]}
    return {"steps": [outer, touch(f"behind-{mark}")], "error_handling": handling}


@pytest.mark.parametrize("nesting", ["top", "loop", "included", "task"])
async def test_one_abort_ends_them_all(world: World, nesting: str) -> None:
    world.agent("sleeper", "exec sleep 600")
    world.workflow("sleeps", {"steps": [{"id": "nap", "type": "shell_command", "command": "exec sleep 600"}]})
    runs: dict[str, str] = {}
    for kind, fields in STEPS.items():
        if nesting == "task" and kind in ("agent", "apply_hints"):
            continue  # a task with these is an agent's as a whole
        for name, handling in HANDLING.items():
            mark = f"{kind}-{name}"
            content = workflow(nesting, {"id": "step", "type": kind, **fields, **handling}, mark)
            if nesting == "included":
                content = included(world, mark, content)
            runs[world.create(world.workflow(f"run-{mark}", content))] = mark
    before = set(world.root.iterdir())
    async with anyio.create_task_group() as group:
        for run_id in runs:
            group.start_soon(partial(world.execute, run_id, person=Absent()))
        for run_id in runs:
            await world.heard("step_started", run_id, id="step")
        world.signal("abort", world.place("project", ""), "enough")
    assert {runs[run_id]: world.status(run_id) for run_id in runs} == dict.fromkeys(runs.values(), "aborted")
    assert {world.owner.journal.run(run_id).reason for run_id in runs} == {"enough"}
    assert set(world.root.iterdir()) == before  # nothing was touched
    receipt = world.receipt("abort", world.place("project", ""))
    assert {outcome["run_id"] for outcome in receipt["runs"]} == set(runs)
    assert (receipt["survivors"], receipt["removed"]) == (0, True)
    for run_id, mark in runs.items():
        ends = [event["reason"] for event in world.events(run_id, "agent_ended") if event["step"]]
        assert set(ends) <= {"abort"}, mark
        assert len(world.events(run_id, "run_ended")) == 1
