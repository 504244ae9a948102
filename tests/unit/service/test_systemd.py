"""What a daemon tells systemd, as a socket of systemd's kind receives it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from sidecar.service.systemd import Pulse, Systemd, status_line

DEADLINE_S = 30.0
pytestmark = pytest.mark.anyio


class Manager:
    """The other end."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)
        self.heard: list[str] = []

    async def until(self, done: Callable[[list[str]], object]) -> list[str]:
        """All lines that came, as soon as that is true of them."""
        with anyio.fail_after(DEADLINE_S):
            while not done(self.heard):
                await anyio.wait_readable(self._socket)
                self.heard += self._socket.recv(4096).decode().split("\n")
        return self.heard

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if getattr(request, "param", "path") == "path":
        return str(tmp_path / "notify")
    if not Path("/proc").exists():
        pytest.skip("only Linux has abstract addresses")
    return f"@sidecar-test-{os.getpid()}-{tmp_path.name}"


@pytest.fixture
def manager(address: str) -> Iterator[Manager]:
    found = Manager(address)
    yield found
    found.close()


def pulse(turns: int = 0, runs: int = 0, agents: int = 0, root: str = "/srv/app", kill_after_s: float = 5.0) -> Pulse:
    return Pulse(root, turns, runs, agents, kill_after_s)


class Daemon:
    """Whose watcher turns at every look, unless told otherwise."""

    def __init__(self) -> None:
        self.turns = 0
        self.stands = False
        self.looks = 0

    def look(self) -> list[Pulse]:
        self.looks += 1
        self.turns += not self.stands
        return [pulse(self.turns)]


def test_the_variables_are_taken_away_so_that_no_agent_inherits_them() -> None:
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/h"}
    Systemd.taken_from(environment)
    assert environment == {"HOME": "/h"}


@pytest.mark.parametrize("address", ["path", "abstract"], indirect=True)
async def test_it_is_ready_when_it_serves_and_says_what_it_does(manager: Manager, address: str) -> None:
    pulses = [pulse()]
    systemd = Systemd.taken_from({"NOTIFY_SOCKET": address})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(systemd.serving, lambda: pulses)
        heard = await manager.until(lambda lines: "STATUS=serving /srv/app: no run" in lines)
        assert heard[0] == "READY=1"
        pulses[:] = [pulse(runs=2, agents=1)]
        await manager.until(lambda lines: "STATUS=serving /srv/app: 2 runs with 1 process" in lines)
        tasks.cancel_scope.cancel()


async def test_the_watchdog_is_fed_only_while_every_watcher_turns(manager: Manager, address: str) -> None:
    daemon = Daemon()
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Systemd.taken_from(environment).serving, daemon.look)
        await manager.until(lambda lines: lines.count("WATCHDOG=1") > 3)
        daemon.stands = True
        standing = "STATUS=the watcher of signal files does not run: /srv/app"
        await manager.until(lambda lines: standing in lines)
        looks = daemon.looks
        with anyio.fail_after(DEADLINE_S):
            while daemon.looks < looks + 10:  # noqa: ASYNC110 - the loop turns, many times
                await anyio.sleep(0.001)
        daemon.stands = False
        heard = await manager.until(lambda lines: lines[-1] == "STATUS=serving /srv/app: no run")
        # What was told while it stood still, and at its first turn.
        assert heard[heard.index(standing) :] == [standing, "WATCHDOG=1", "STATUS=serving /srv/app: no run"]
        tasks.cancel_scope.cancel()


async def test_a_watchdog_for_another_process_is_not_ours(manager: Manager, address: str) -> None:
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    daemon = Daemon()

    def look() -> list[Pulse]:
        (seen,) = daemon.look()
        return [replace(seen, runs=max(daemon.looks - 2, 0))]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Systemd.taken_from(environment).serving, look)
        heard = await manager.until(lambda lines: "STATUS=serving /srv/app: 1 run with 0 processes" in lines)
        assert "WATCHDOG=1" not in heard
        tasks.cancel_scope.cancel()


async def test_a_reload_is_told_from_its_beginning_to_its_end_once_it_serves(manager: Manager, address: str) -> None:
    systemd = Systemd.taken_from({"NOTIFY_SOCKET": address})
    systemd.reloading()  # too early: ready is what it is not yet
    systemd.reloaded()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(systemd.serving, lambda: [pulse()])
        heard = await manager.until(lambda lines: any(line.startswith("STATUS=") for line in lines))
        assert heard.count("READY=1") == 1
        systemd.reloading()
        systemd.reloaded()
        heard = await manager.until(lambda lines: lines.count("READY=1") == 2)
        assert heard.index("RELOADING=1") > heard.index("READY=1")
        assert any(line.startswith("MONOTONIC_USEC=") for line in heard)
        tasks.cancel_scope.cancel()


async def test_an_end_asks_for_the_time_that_the_slowest_ladder_takes(manager: Manager, address: str) -> None:
    systemd = Systemd.taken_from({"NOTIFY_SOCKET": address})
    systemd.ending([pulse(runs=1), pulse(root="/srv/b", runs=2, kill_after_s=600)])
    heard = await manager.until(lambda lines: any(line.startswith("STATUS=") for line in lines))
    assert heard[0] == "STOPPING=1"
    asked = heard[1].removeprefix("EXTEND_TIMEOUT_USEC=")
    assert int(asked) > 607e6
    assert heard[2] == "STATUS=ending 3 runs of 2 projects"


async def test_a_manager_that_does_not_listen_yet_is_told_later_and_nobody_waits_for_it(address: str) -> None:
    systemd = Systemd.taken_from({"NOTIFY_SOCKET": address})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(systemd.serving, lambda: [pulse()])
        await anyio.wait_all_tasks_blocked()
        manager = Manager(address)
        assert (await manager.until(lambda lines: "READY=1" in lines))[0] == "READY=1"
        manager.close()
        tasks.cancel_scope.cancel()


def test_the_status_line_is_for_people() -> None:
    assert status_line([pulse(runs=1, agents=3)]) == "serving /srv/app: 1 run with 3 processes"
    assert status_line([pulse(), pulse(runs=1)]) == "serving 2 projects: 1 run with 0 processes"
    assert status_line([pulse(runs=1)], ends=True) == "ending 1 run of /srv/app"
    assert status_line([pulse()], ends=True) == "ending"
    assert status_line([]) == "serving no project"
