"""Ctrl-Z and `fg`: whoever has changed the terminal puts it right before the process stops, and when it goes on."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskStatus


async def follow(
    away: Callable[[bool], AbstractAsyncContextManager[None]],
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Until cancelled: stop inside `away(True)` where the terminal asks for it, and pass through `away(False)` when we
    go on, since after SIGSTOP, of which nobody is told, the shell has changed the terminal."""
    # A signal that somebody else ignores or handles stays theirs; only the main thread can have any.
    ours = [number for number in (signal.SIGTSTP, signal.SIGCONT) if signal.getsignal(number) is signal.SIG_DFL]
    if not ours or threading.current_thread() is not threading.main_thread():
        task_status.started()
        return
    with anyio.open_signal_receiver(*ours) as received:
        task_status.started()
        async for number in received:
            stops = number == signal.SIGTSTP
            async with away(stops):
                if stops:
                    _stop_by_default_action()


def _stop_by_default_action() -> None:
    """Stop this process as Ctrl-Z would have; returns when it is continued."""
    # Only this process: the terminal has sent the signal to the rest of the group itself. Not SIGSTOP: the default
    # action knows when nobody is left who could continue us, and does nothing then.
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)
    signal.siginterrupt(signal.SIGTSTP, False)  # as the event loop had it, and as signal.signal() has undone it
