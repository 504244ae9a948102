"""Listens to the keyboard, reports each press on standard output, and does what its arguments say.

The first argument says what a press does besides; those after it are circumstances.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios

import anyio
import psutil

from sidecar.display.person import TerminalSession


def report(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def handle_signals_myself() -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        report("handling")
        async for number in received:
            report("handled", int(number))


async def main(press: str, circumstances: set[str]) -> None:
    scope = anyio.CancelScope()

    def on_key() -> None:
        report("press")
        if press == "cancel":
            scope.cancel()
        elif press == "raise":
            raise RuntimeError("the callback failed")
        elif press == "abort":
            os.abort()
        elif press == "spawn":  # a process that inherits whatever can be inherited, and outlives us
            report("spawned", subprocess.Popen(["sleep", "60"], close_fds=False, start_new_session=True).pid)

    async with anyio.create_task_group() as tasks:
        if "own-signals" in circumstances:
            tasks.start_soon(handle_signals_myself)
        with scope:
            await TerminalSession(on_key=on_key).run()
        report("returned", "children", len(psutil.Process().children()))
        report(signal.getsignal(signal.SIGTSTP))
        if "wait" in circumstances:
            await anyio.sleep_forever()
        tasks.cancel_scope.cancel()


circumstances = set(sys.argv[2:])
if "no-hangup" in circumstances:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
if "no-suspend" in circumstances:
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
if "foreign-terminal" in circumstances:
    fcntl.ioctl(0, termios.TIOCNOTTY, 0)
if "other-input" in circumstances:
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
report("started")
anyio.run(main, sys.argv[1], circumstances)
