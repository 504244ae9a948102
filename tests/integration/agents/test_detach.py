"""Processes that outlive whoever started them."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import anyio
import psutil
import pytest

from sidecar.agents import detach
from sidecar.errors import SidecarError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

PROGRAM = """
import os, signal, sys
from sidecar.agents.detach import Starter
starter = Starter(int(sys.argv[-1]))
starter.let_go()
{}
"""


async def start(tmp_path: Path, body: str, within_s: float = 60) -> None:
    argv = [sys.executable, "-c", PROGRAM.format(body)]
    environment = {**os.environ, "COLOUR": "blue"}
    log = str(tmp_path / "run" / "owner.log")
    await detach.start(argv, cwd=str(tmp_path), environment=environment, log_path=log, within_s=within_s)


async def test_it_lives_in_a_session_of_its_own_with_the_environment_it_was_given(tmp_path: Path) -> None:
    await start(
        tmp_path,
        """
starter.begun()
print(os.getpid(), os.getsid(0), os.getppid(), os.environ["COLOUR"], os.read(0, 1), flush=True)
signal.pause()
""",
    )
    log = tmp_path / "run" / "owner.log"
    with anyio.fail_after(120):
        while not log.read_text().endswith("\n"):  # noqa: ASYNC110 - nothing tells when a file grows
            await anyio.sleep(0.01)
    pid, session, parent, colour, read = log.read_text().split()
    os.kill(int(pid), signal.SIGKILL)
    assert int(session) != os.getsid(0)
    assert int(parent) != os.getpid()
    assert (colour, read) == ("blue", "b''")
    with pytest.raises(ChildProcessError):
        os.waitpid(int(pid), os.WNOHANG)  # it is nobody's whom we would have to wait for


async def test_what_it_says_against_beginning_is_the_error(tmp_path: Path) -> None:
    with pytest.raises(SidecarError, match=r"^the run is busy, sorry$"):
        await start(tmp_path, "starter.failed('the run is busy,\\n sorry')")


async def test_one_that_dies_without_a_word_is_told_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(SidecarError, match=r"ended before it had begun: ValueError: nonsense \(.*owner.log\)"):
        await start(tmp_path, "raise ValueError('nonsense')")


async def test_one_that_says_nothing_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with pytest.raises(SidecarError, match=r"had not begun within 0\.1 s, and was ended"):
        await start(tmp_path, "signal.pause()", within_s=0.1)


async def test_one_whose_word_nobody_waits_for_any_more_is_ended(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start, tmp_path, "print(os.getpid(), file=open('pid', 'w'), flush=True); signal.pause()")
        with anyio.fail_after(120):
            while not noted.exists() or not noted.read_text():  # noqa: ASYNC110 - nothing tells when a file grows
                await anyio.sleep(0.01)
        process = psutil.Process(int(noted.read_text()))
        tasks.cancel_scope.cancel()
    with anyio.fail_after(120):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110 - not our child
            await anyio.sleep(0.01)


async def test_a_command_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(SidecarError, match="cannot start /nonsense"):
        await detach.start(["/nonsense"], cwd="/", environment={}, log_path=str(tmp_path / "log"))
