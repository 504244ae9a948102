"""A project that is moved, removed or replaced while a run is executed in it: the run and its agents end."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit import Project

WORK = "echo $$ > agent; sleep 1000"


class Place:
    """A project that can go away, with what watches it outside."""

    def __init__(self, flows: Project, outside: Path) -> None:
        self.flows = flows
        self.root = flows.root
        self.elsewhere = outside / "elsewhere"
        self.events = outside / "events"
        flows.workflow("work", {"id": "a", "type": "shell_command", "command": WORK})
        self.run_id = ""

    def agent(self) -> psutil.Process:
        file = self.root / "agent"
        self.flows.until(lambda: file.exists() and file.read_text().strip())
        self.run_id = self.flows.journalled()[0].run_id
        return psutil.Process(int(file.read_text()))

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.events.read_text().splitlines()]

    def moved(self) -> Path:
        os.rename(self.root, self.elsewhere)
        return self.elsewhere

    def replaced(self) -> Path:
        self.moved()
        shutil.copytree(self.elsewhere, self.root, ignore=shutil.ignore_patterns("*.sock"))
        return self.elsewhere

    def without_state(self) -> None:
        shutil.rmtree(self.root / ".swissarmyhammer")

    def without_directory(self) -> Path:
        shutil.rmtree(self.flows.directory(self.run_id))
        return self.root


@pytest.fixture
def place(flows: Project, tmp_path_factory: pytest.TempPathFactory) -> Place:
    flows.root = flows.root / "project"
    shutil.move(flows.state, flows.root / ".swissarmyhammer")
    flows.state = flows.root / ".swissarmyhammer"
    return Place(flows, tmp_path_factory.mktemp("outside"))


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def standing(flows: Project, root: Path) -> str:
    """How the only run there stands."""
    code, out, err = flows.finished(flows.start("status", "--json", cwd=root))
    assert code == 0, err
    (found,) = json.loads(out)["runs"]
    return str(found["status"])


@pytest.mark.parametrize("how", [Place.moved, Place.replaced, Place.without_state, Place.without_directory])
def test_the_run_ends_as_interrupted_and_its_agents_with_it(place: Place, how: Callable[[Place], Path | None]) -> None:
    with place.events.open("w") as events:
        owner = place.flows.start("flow", "run", "work", "--json-events", stdout=events)
    agent = place.agent()
    where = how(place)
    err = owner.communicate(timeout=120)[1]
    assert owner.returncode == 2, err
    assert is_gone(agent)
    ended = [event["data"] for event in place.told() if event["kind"] == "run_ended"]
    assert [event["status"] for event in ended] == ["interrupted"], ended
    assert "was moved, removed or replaced" in ended[0]["reason"]
    assert "was moved, removed or replaced" in err
    if where is not None:
        assert standing(place.flows, where) == "interrupted"


def test_a_detached_owner_notices_it_too(place: Place) -> None:
    assert place.flows.run("flow", "run", "work", "--detach")[0] == 0
    agent = place.agent()
    place.moved()
    place.flows.until(lambda: is_gone(agent) and not place.flows.tagged())
    assert standing(place.flows, place.elsewhere) == "interrupted"


def test_an_abort_in_the_new_place_does_not_find_agents_alive_for_long(place: Place) -> None:
    owner = place.flows.start("flow", "run", "work", "-q")
    agent = place.agent()
    place.flows.root = place.moved()
    assert place.flows.run("abort", "enough")[0] == 0
    owner.communicate(timeout=120)
    assert is_gone(agent)


def test_sigterm_after_a_move_still_tells_the_end_of_the_run(place: Place) -> None:
    with place.events.open("w") as events:
        owner = place.flows.start("flow", "run", "work", "--json-events", stdout=events)
    place.agent()
    place.moved()
    owner.send_signal(signal.SIGTERM)
    owner.communicate(timeout=120)
    assert owner.returncode in (143, 2)  # the second: it noticed the move first
    ended = [event["data"] for event in place.told() if event["kind"] == "run_ended"]
    assert [event["status"] for event in ended] == ["interrupted"]


def test_abort_of_a_run_whose_directory_is_gone_tells_the_truth(place: Place) -> None:
    owner = place.flows.start("flow", "run", "work", "-q")
    place.agent()
    owner.send_signal(signal.SIGSTOP)  # so that it cannot notice yet
    place.without_directory()
    code, out, err = place.flows.run("abort", "--run", place.run_id)
    owner.send_signal(signal.SIGCONT)
    assert (code, out) == (1, "")
    assert f"the directory of run {place.run_id} was removed" in err
    owner.communicate(timeout=120)
    code, out, err = place.flows.run("abort", "--run", place.run_id)
    assert (code, out) == (1, "")
    assert "no run has been started" not in err
