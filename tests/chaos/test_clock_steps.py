"""A wall clock that is set while runs are at work: signals come in the order in which they came, and times last."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit import DEADLINE_S, Project

if TYPE_CHECKING:
    from soaking.clock import Clock

SCRIPTS = Path(__file__).parents[2] / "scripts"
HOUR_S = 3600.0
UNTIL_GO = "touch ready; until [ -e go ]; do sleep 0.01; done"
# While it cleans up, through somebody else, nobody is to disturb it.
CLEANS_UP = """\
clean_up() {
    touch asked
    until [ -e go ]; do sleep 0.01; done
    sh -c 'trap "touch disturbed; exit" TERM; for _ in 1 2 3 4 5 6 7 8 9 10; do sleep 0.05; done; touch cleaned'
    exit 0
}
trap clean_up TERM
touch ready
while :; do sleep 0.01; done
"""
WORKFLOWS = {
    "waits": [{"id": "waits", "type": "shell_command", "command": UNTIL_GO}, {"type": "shell_command", "command": ":"}],
    "cleans": [{"id": "cleans", "type": "shell_command", "command": CLEANS_UP}],
    "short": [{"id": "short", "type": "shell_command", "command": "touch done"}],
}

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the clock is stepped by a preloaded library"
)


class World(Project):
    """A project whose every process is under a clock that can be set. The machine's own stays as it is."""

    def __init__(self, root: Path, clock: Clock, variables: dict[str, str]) -> None:
        super().__init__(root, **variables)
        self.clock = clock
        for name, steps in WORKFLOWS.items():
            self.workflow(name, *steps)

    @contextmanager
    def sidecar(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A process of it, killed afterwards if it still lives; errors are printed with the rest."""
        with self.start(*arguments, stderr=subprocess.STDOUT) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.syspath_prepend(SCRIPTS)
    from soaking.clock import Clock, prepared

    place = tmp_path / "clock"
    place.mkdir()
    variables = prepared(place)
    if isinstance(variables, str):
        pytest.skip(f"no clock that can be stepped: {variables}")
    clock = Clock(place)
    made = World(tmp_path / "project", clock, variables)
    yield made
    made.close()
    clock.close()


def test_the_clock_that_is_set_is_that_of_programs_and_of_files_alike(world: World) -> None:
    date = 'touch "$0"; date +%s; stat -c %Y "$0"'
    told = []
    for offset_s in (0.0, -HOUR_S, HOUR_S):
        world.clock.set(offset_s)
        file = str(world.root / f"at {offset_s}")
        asked = subprocess.run(["sh", "-c", date, file], env=world.environment, capture_output=True, check=True)
        told += [float(word) - time.time() - offset_s for word in asked.stdout.split()]
        # What was dated before stays as it was.
        first = subprocess.run(
            ["stat", "-c", "%Y", str(world.root / "at 0.0")], env=world.environment, capture_output=True, check=True
        )
        told.append(float(first.stdout) - time.time())
    assert all(abs(apart_s) < HOUR_S / 10 for apart_s in told), told


def test_an_abort_reaches_a_run_that_was_started_before_the_clock_was_set_back(world: World) -> None:
    with world.sidecar("flow", "run", "waits") as running:
        world.until_exists("ready")
        world.clock.set(-HOUR_S)
        (world.state / ".abort").write_text("the clock is wrong, the abort is right\n")
        said, _ = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, world.only_run()["status"]) == (2, "aborted"), said
    assert not (world.state / ".abort").exists()


def test_an_abort_reaches_a_run_whose_owner_died_before_the_clock_was_set_back(world: World) -> None:
    with world.sidecar("flow", "run", "waits") as running:
        world.until_exists("ready")
        running.kill()
    world.clock.set(-HOUR_S)
    (world.state / ".abort").touch()
    with world.sidecar("daemon") as daemon:
        world.until(lambda: world.only_run()["status"] == "aborted")
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(DEADLINE_S)
    assert not (world.state / ".abort").exists()


def test_an_abort_that_is_left_over_ends_nobody_though_the_clock_was_set_back_since(world: World) -> None:
    (world.state / ".abort").touch()
    world.clock.set(-HOUR_S)
    with world.sidecar("flow", "run", "short") as running:
        said, _ = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, world.only_run()["status"]) == (0, "completed"), said
    assert "older than this run" in said
    assert (world.root / "done").exists()


def test_a_stop_that_comes_after_the_clock_was_set_back_is_not_called_one_from_before_the_start(world: World) -> None:
    with world.sidecar("flow", "run", "waits") as running:
        world.until_exists("ready")
        world.clock.set(-HOUR_S)
        world.output("stop", "--all", "--reason", "lunch")
        (world.root / "go").touch()
        said, _ = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, world.only_run()["reason"]) == (0, "lunch"), said


def test_a_stop_does_not_become_an_abort_because_the_clock_was_set_forward(world: World) -> None:
    with world.sidecar("flow", "run", "waits") as running:
        world.until_exists("ready")
        world.output("stop", "--all", "--timeout", "600")
        world.clock.set(HOUR_S)
        (world.root / "go").touch()
        said, _ = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, world.only_run()["status"]) == (0, "stopped"), said


def test_a_stop_becomes_an_abort_in_its_time_though_the_clock_was_set_back(world: World) -> None:
    with world.sidecar("flow", "run", "waits") as running:
        world.until_exists("ready")
        world.output("stop", "--all", "--timeout", "1")
        world.clock.set(-HOUR_S)
        said, _ = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, world.only_run()["status"]) == (2, "aborted"), said


def test_who_cleans_up_for_an_agent_is_left_in_peace_though_the_clock_was_set_back(world: World) -> None:
    (world.state / "config.yaml").write_text(f"kill_after_s: {DEADLINE_S}\n")
    with world.sidecar("flow", "run", "cleans") as running:
        world.until_exists("ready")
        (world.state / ".abort").touch()
        world.until_exists("asked")
        world.clock.set(-HOUR_S)
        (world.root / "go").touch()
        said, _ = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, world.only_run()["status"]) == (2, "aborted"), said
    assert not (world.root / "disturbed").exists()
    assert (world.root / "cleaned").exists()
