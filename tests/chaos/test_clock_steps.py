"""A wall clock that is set while runs are at work: signals come in the order in which they came, and times last."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from soaking.clock import Clock

SIDECAR = [sys.executable, "-P", "-m", "sidecar"]
SCRIPTS = Path(__file__).parents[2] / "scripts"
DEADLINE_S = 60.0
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


class World:
    """A project whose every process is under a clock that can be set. The machine's own stays as it is."""

    def __init__(self, root: Path, clock: Clock, variables: dict[str, str]) -> None:
        self.root = root
        self.own = root / ".swissarmyhammer"
        self.clock = clock
        self.environment = {**os.environ, **variables}
        (self.own / "workflows").mkdir(parents=True)
        for name, steps in WORKFLOWS.items():
            text = yaml.safe_dump({"description": name, "steps": steps})
            (self.own / "workflows" / f"{name}.yaml").write_text(text)

    @contextmanager
    def sidecar(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A process of it, killed afterwards if it still lives."""
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(
            [*SIDECAR, *arguments],
            cwd=self.root,
            env=self.environment,
            stdin=none,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def ask(self, *arguments: str) -> str:
        """What it says, when it is done."""
        with self.sidecar(*arguments) as process:
            said, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, said
        return said

    def run(self) -> dict[str, Any]:
        """The last one."""
        found: dict[str, Any] = json.loads(self.ask("status", "--json"))["runs"][0]
        return found

    def until(self, look: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not look():
            assert time.monotonic() < deadline, "it never came"
            time.sleep(0.01)  # looks again; nothing tells of it

    def until_there(self, name: str) -> None:
        self.until((self.root / name).exists)


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
    yield World(tmp_path / "project", clock, variables)
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
        world.until_there("ready")
        world.clock.set(-HOUR_S)
        (world.own / ".abort").write_text("the clock is wrong, the abort is right\n")
        said, _ = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, world.run()["status"]) == (2, "aborted"), said
    assert not (world.own / ".abort").exists()


def test_an_abort_reaches_a_run_whose_owner_died_before_the_clock_was_set_back(world: World) -> None:
    with world.sidecar("flow", "run", "waits") as running:
        world.until_there("ready")
        running.kill()
    world.clock.set(-HOUR_S)
    (world.own / ".abort").touch()
    with world.sidecar("daemon") as daemon:
        world.until(lambda: world.run()["status"] == "aborted")
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(DEADLINE_S)
    assert not (world.own / ".abort").exists()


def test_an_abort_that_is_left_over_ends_nobody_though_the_clock_was_set_back_since(world: World) -> None:
    (world.own / ".abort").touch()
    world.clock.set(-HOUR_S)
    with world.sidecar("flow", "run", "short") as running:
        said, _ = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, world.run()["status"]) == (0, "completed"), said
    assert "older than this run" in said
    assert (world.root / "done").exists()


def test_a_stop_that_comes_after_the_clock_was_set_back_is_not_called_one_from_before_the_start(world: World) -> None:
    with world.sidecar("flow", "run", "waits") as running:
        world.until_there("ready")
        world.clock.set(-HOUR_S)
        world.ask("stop", "--all", "--reason", "lunch")
        (world.root / "go").touch()
        said, _ = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, world.run()["reason"]) == (0, "lunch"), said


def test_a_stop_does_not_become_an_abort_because_the_clock_was_set_forward(world: World) -> None:
    with world.sidecar("flow", "run", "waits") as running:
        world.until_there("ready")
        world.ask("stop", "--all", "--timeout", "600")
        world.clock.set(HOUR_S)
        (world.root / "go").touch()
        said, _ = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, world.run()["status"]) == (0, "stopped"), said


def test_a_stop_becomes_an_abort_in_its_time_though_the_clock_was_set_back(world: World) -> None:
    with world.sidecar("flow", "run", "waits") as running:
        world.until_there("ready")
        world.ask("stop", "--all", "--timeout", "1")
        world.clock.set(-HOUR_S)
        said, _ = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, world.run()["status"]) == (2, "aborted"), said


def test_who_cleans_up_for_an_agent_is_left_in_peace_though_the_clock_was_set_back(world: World) -> None:
    (world.own / "config.yaml").write_text(f"kill_after_s: {DEADLINE_S}\n")
    with world.sidecar("flow", "run", "cleans") as running:
        world.until_there("ready")
        (world.own / ".abort").touch()
        world.until_there("asked")
        world.clock.set(-HOUR_S)
        (world.root / "go").touch()
        said, _ = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, world.run()["status"]) == (2, "aborted"), said
    assert not (world.root / "disturbed").exists()
    assert (world.root / "cleaned").exists()
