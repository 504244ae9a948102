"""`sidecar demo`: a loop that is stopped and resumed, tasks in parallel, and an abort that is proven, by real runs."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.cli import demo_project
from sidecar.cli.demo_stage import Stage
from sidecar.errors import REPORTED, SidecarError

if TYPE_CHECKING:
    from anyio import CancelScope
    from anyio.abc import TaskStatus

OK = 0
_SIGNALLED = 128
_AT_MOST_S = 180.0
_SIGNAL = ".swissarmyhammer/.abort"
_STOP = f".swissarmyhammer/workspaces/{demo_project.WORKSPACE}/.stop"

_AFTERWARDS = """
That was all. The project is removed, and nothing runs any more. To go on:
  sidecar --help        every command
  sidecar doctor        what holds agents together here, and what it cannot catch
  sidecar flow list     the workflows that come with it"""


def main(arguments: list[str], _project: str | None) -> int:
    """Play it in a directory of its own, which is gone afterwards, as is every process."""
    argparse.ArgumentParser(
        prog="sidecar demo",
        description="Watch what sidecar does, in about 20 seconds: a loop that is stopped and resumed, tasks in "
        "parallel, and an abort that is proven. All of it is really executed, in a temporary project; nothing is left.",
    ).parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="sidecar-demo-") as directory:
        code = anyio.run(_Demo(os.path.realpath(directory)).play)
    if code == OK:
        print(_AFTERWARDS)
    return code


class _Demo:
    """One performance. Ctrl-C, SIGTERM, or a reader who has gone, end it early, and what it started with it."""

    def __init__(self, directory: str) -> None:
        self._root = os.path.join(directory, "project")
        self._home = os.path.join(directory, "home")
        self._problem: Exception | None = None
        self._received: int | None = None
        self._has_reader = True
        self._all: CancelScope

    async def play(self) -> int:
        os.mkdir(self._home)
        demo_project.make(self._root)
        async with anyio.create_task_group() as tasks:
            self._all = tasks.cancel_scope
            await tasks.start(self._obey)
            await self._scenes()
            tasks.cancel_scope.cancel()
        if not self._has_reader:
            raise BrokenPipeError
        if self._received is not None:
            print("sidecar: the demo was ended early; nothing of it is left", file=sys.stderr)
            return _SIGNALLED + self._received
        if self._problem is not None:  # out of the groups, which would wrap it
            raise self._problem
        return OK

    async def _obey(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                self._received = int(number)
                self._all.cancel()

    async def _scenes(self) -> None:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        try:
            with anyio.fail_after(_AT_MOST_S):
                async with Stage(self._root, self._home, self._write, colour=colour) as stage:
                    try:
                        await _play(stage)
                    except REPORTED as error:
                        self._problem = error
        except TimeoutError:
            self._problem = SidecarError(f"the demo was not over after {_AT_MOST_S:g} s; is this machine very busy?")

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            self._has_reader = False
            self._all.cancel()


async def _play(stage: Stage) -> None:
    stage.show(
        "text",
        "Four scenes, played by real processes in a temporary project. You could type\n"
        "all of it yourself. The agents are two small programs here; yours would be\n"
        "claude, codex, gemini, or any command.",
    )
    run_id = await _stopped_by_a_file(stage)
    await _resumed(stage, run_id)
    await _in_parallel(stage)
    await _aborted(stage)


async def _stopped_by_a_file(stage: Stage) -> str:
    stage.show("heading", "\n1. A loop of agents, stopped by a file")
    stage.show("text", "A workflow gives an agent four pieces of work, one after the other.")
    loop = await stage.start(f"sidecar flow run loop --workspace {demo_project.WORKSPACE}")
    run_id = (await loop.says("started loop, run ")).rpartition(" ")[2]
    await loop.says("worker: started", times=2)
    stage.show("text", "The second one is being worked on. Anything that can write a file can stop it:")
    await stage.run(f"touch {_STOP}")
    await loop.done()
    stage.show("good", "The agent was not interrupted: its piece is done. Exit code 0.")
    return run_id


async def _resumed(stage: Stage, run_id: str) -> None:
    stage.show("heading", "\n2. The same run goes on")
    stage.show("text", "What was completed is in a journal, and is not done again.")
    await (await stage.start(f"sidecar resume {run_id}")).done()
    log = await stage.run("cat work.log")
    if log.lines != [f"piece {number}" for number in (1, 2, 3, 4)]:
        raise SidecarError(f"the demo did not go as it should: work.log has {log.lines}")
    stage.show("good", "Four pieces, each of them once.")


async def _in_parallel(stage: Stage) -> None:
    stage.show("heading", "\n3. Tasks in parallel, and a state that follows them")
    stage.show(
        "text",
        "Six tasks, three at a time. Each writes one value. Two fields of the state are\n"
        "computed from all values, and computed again with every write.",
    )
    survey = await stage.run("sidecar flow run survey")
    await survey.says("all 6 are measured, the tallest is the sequoia")
    stage.show("good", "Nobody called for these sums: they follow from what the tasks wrote.")


async def _aborted(stage: Stage) -> None:
    stage.show("heading", "\n4. An agent that does not listen, aborted, and the proof")
    stage.show("text", "This agent ignores SIGTERM, and its child has moved to a session of its own.")
    stubborn = await stage.start("sidecar flow run stubborn")
    await stubborn.says("do not listen to SIGTERM")
    abort = await stage.start('sidecar abort "wrong branch" --wait')
    await abort.done()
    await stubborn.done(code=2)
    stage.show("text", f"{_SIGNAL}.receipt.json says what became of each process:")
    receipt = _receipt(stage.root)
    for process in receipt["processes"]:
        took = f"after {process['ms_to_death'] / 1000:.1f} s"
        stage.show("output", f"pid {process['pid']}  {process['program']}  last rung: {process['rung']}, {took}")
    stage.show("output", f"survivors: {receipt['survivors']}")
    left = [process["pid"] for process in receipt["processes"] if _lives(process["pid"])]
    if receipt["survivors"] or left or len(receipt["processes"]) < 2:
        raise SidecarError(f"the demo did not go as it should: the receipt has {receipt['processes']}, alive: {left}")
    stage.show("good", "Asked to end, killed after a grace of 2 s, looked for: none of them is there.")


def _receipt(root: str) -> dict[str, Any]:
    with open(os.path.join(root, f"{_SIGNAL}.receipt.json"), encoding="utf-8") as file:
        receipt: dict[str, Any] = json.load(file)
    return receipt


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's process, which has the number now
        return False
    return True
