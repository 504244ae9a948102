"""Sits at a terminal with a panel and a keyboard, and does what its argument says; reports on standard output."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import Any

import anyio

from sidecar.display.panel import Panel
from sidecar.display.person import TerminalSession
from sidecar.display.progress import Progress
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent


def report(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def execute(argv: list[str], fd: int) -> int:
    done = await anyio.run_process(argv, stdin=fd, stdout=fd, stderr=fd, check=False)
    return done.returncode


async def main(what: str, rest: list[str]) -> None:
    panel = Panel(Progress(workflow="iterate"), fd=0)
    person = TerminalSession(panel, None if what.endswith("-late") else lambda: report("press"))
    panel.on_event(RunEvent("run", kinds.RUN_STARTED, 0.0, {"workflow": "iterate"}))

    async def interruptible(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGINT) as received:
            report("ready")
            async for _ in received:
                report("interrupted")
                scope.cancel()

    async def ask(question: dict[str, Any], problem: str | None = None) -> None:
        report("answer", repr(await person.ask(question, problem)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(interruptible, tasks.cancel_scope)
        await tasks.start(person.run)
        if what == "ask":
            await ask({"prompt": "Which \033[31mbranch?", "choices": ["main", "dev"], "default": "main"})
            await ask({"prompt": "Which branch?"}, "there is no such branch")
        elif what == "ask-both":
            async with anyio.create_task_group() as both:
                both.start_soon(ask, {"prompt": "First?"})
                both.start_soon(ask, {"prompt": "Second?"})
        elif what == "ask-late":
            await anyio.wait_readable(0)  # somebody types already
            await ask({"prompt": "Late?"})
        elif what in ("lend", "lend-late"):
            if what == "lend-late":
                await anyio.wait_readable(0)  # somebody types already
            report("lent", await person.lend_terminal(partial(execute, rest)))
        await anyio.sleep_forever()
    report("over")


signal.signal(signal.SIGINT, signal.default_int_handler)
anyio.run(main, sys.argv[1], sys.argv[2:])
