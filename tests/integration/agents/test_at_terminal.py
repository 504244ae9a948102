"""Commands on a terminal: our own children, and yet ended like any agent, with all that they started."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import psutil
import pytest

from sidecar.agents import at_terminal
from sidecar.agents.at_terminal import TerminalCommand
from sidecar.agents.containment import Containment
from sidecar.agents.supervisor import Agent, Launch, Supervisor
from sidecar.model.agent import AgentEnded
from tests.kit import alive, eventually

pytestmark = pytest.mark.anyio
# Ignores SIGTERM, and has a child in another session that does, too.
DEAF = "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$; sleep 600' & echo $$; read _"


class Desk:
    """A supervisor with a terminal."""

    def __init__(self, supervisor: Supervisor, ended: list[AgentEnded]) -> None:
        self.supervisor = supervisor
        self.ended = ended
        self.master, self.slave = os.openpty()
        os.set_blocking(self.master, False)
        self.seen = ""

    async def keeper(self) -> Agent:
        launch = Launch(argv=at_terminal.KEEPER, cwd="/", keep_stdin_open=True, kill_after_s=0.3)
        return await self.supervisor.start(launch)

    async def run(self, keeper: Agent, script: str, timeout_s: float | None = None) -> int | None:
        with anyio.fail_after(120):
            there = TerminalCommand(["sh", "-c", script], "/", os.environ, timeout_s)
            return await at_terminal.run(keeper, there, self.slave)

    def pids(self) -> list[int]:
        try:
            while data := os.read(self.master, 4096):
                self.seen += data.decode()
        except OSError:
            pass
        return [int(word) for word in self.seen.split()]


@pytest.fixture
async def desk(tmp_path: Path, containment: Containment) -> AsyncIterator[Desk]:
    ended: list[AgentEnded] = []
    async with Supervisor(str(tmp_path), containment=containment, on_ended=ended.append) as supervisor:
        desk = Desk(supervisor, ended)
        try:
            yield desk
        finally:
            os.close(desk.master)
            os.close(desk.slave)


@pytest.mark.parametrize(("script", "code", "kept"), [("exit 3", 3, 3), ("kill -9 $$", -9, 137)])
async def test_its_exit_code_is_also_that_of_the_agent(desk: Desk, script: str, code: int, kept: int) -> None:
    keeper = await desk.keeper()
    assert await desk.run(keeper, script) == code
    ended = await keeper.wait()
    assert (ended.reason, ended.exit_code, ended.survivors) == ("exited", kept, 0)


async def test_it_is_in_our_session_and_our_process_group(desk: Desk) -> None:
    await desk.run(await desk.keeper(), "ps -o sid=,pgid= -p $$")
    assert desk.pids() == [os.getsid(0), os.getpgid(0)]


@pytest.mark.parametrize("how", ["abort", "timeout", "budget", "keeper killed"])
async def test_it_is_ended_with_all_that_it_started(desk: Desk, how: str) -> None:
    keeper = await desk.keeper()
    codes: list[int | None] = []

    async def run() -> None:
        codes.append(await desk.run(keeper, DEAF, 3.0 if how == "timeout" else None))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await eventually(lambda: len(desk.pids()) == 2)
        if how == "abort":
            tasks.cancel_scope.cancel()
        elif how == "budget":
            keeper.request_end("budget")
        elif how == "keeper killed":
            psutil.Process(keeper.pid).kill()
    assert not any(map(alive, desk.pids()))
    assert codes == {"abort": [], "timeout": [None]}.get(how, [-9])
    if how != "keeper killed":
        (ended,) = desk.ended
        assert {process.pid for process in ended.processes} >= set(desk.pids())
        assert (ended.reason, ended.survivors) == (how, 0)


async def test_what_it_leaves_behind_is_ended(desk: Desk) -> None:
    assert await desk.run(await desk.keeper(), "setsid sleep 600 & echo $!") == 0
    assert [alive(pid) for pid in desk.pids()] == [False]
