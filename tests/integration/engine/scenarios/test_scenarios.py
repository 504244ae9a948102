"""Workflows with what has to come of them: events, state and status, the same whoever drives the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

# The world is a fixture's: with pytest's import mode nobody can import it from here.
World = Any
pytestmark = pytest.mark.anyio
FILES = sorted(Path(__file__).parent.glob("*.yaml"))


def cases() -> list[Any]:
    found = []
    for file in FILES:
        for name, scenario in yaml.safe_load(file.read_text()).items():
            found.append(pytest.param(scenario, id=f"{file.stem}: {name}"))
    assert found
    return found


def prepare(world: World, scenario: dict[str, Any]) -> str:
    for name, content in scenario.get("files", {}).items():
        world.file(f".swissarmyhammer/{name}", content)
    return str(world.workflow("scenario", {"name": "scenario", **scenario["workflow"]}))


def check(world: World, run_id: str, scenario: dict[str, Any]) -> None:
    run = world.owner.journal.run(run_id)
    assert run.status == scenario.get("status", "completed"), run.reason
    assert scenario.get("reason", "") in (run.reason or "")
    ended = world.events(run_id, "run_ended")[-1]
    assert ended.get("limit") == scenario.get("limit")
    if "state" not in scenario:
        return
    state = world.state(run_id)
    for name in scenario.get("unordered", ()):
        state[name] = sorted(state[name])
    expected = scenario["state"]
    assert {name: state.get(name) for name in expected} == expected


@pytest.mark.parametrize("scenario", [case for case in cases() if "server" in case.values[0].get("drivers", "server")])
async def test_the_owner_does_what_the_scenario_says(
    world: World, scenario: dict[str, Any], answers: type[Any]
) -> None:
    name = prepare(world, scenario)
    person = answers(*scenario["answers"]) if "answers" in scenario else None
    run_id, _ = await world.run(name, scenario.get("inputs"), person=person)
    check(world, run_id, scenario)
    if "events" in scenario:
        assert world.compact(run_id) == scenario["events"].split("; ")
    if "counts" in scenario:
        found = world.compact(run_id)
        assert {text: found.count(text) for text in scenario["counts"]} == scenario["counts"]


@pytest.mark.parametrize("scenario", [case for case in cases() if "agent" in case.values[0].get("drivers", "agent")])
async def test_an_agent_outside_comes_to_the_same(world: World, scenario: dict[str, Any]) -> None:
    name = prepare(world, scenario)
    run_id = await world.start(name, scenario.get("inputs"))
    over = await world.drive(run_id, scenario.get("answers"))
    check(world, run_id, scenario)
    assert (over["status"], over["reason"]) == (world.status(run_id), world.owner.journal.run(run_id).reason or "")
