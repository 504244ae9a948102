"""The place at the terminal: the panel and the key `s` together, out of the way while anybody else has it.

Others are a person who is asked, a command that was lent the terminal, and the shell after Ctrl-Z.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

import anyio

from sidecar.signals import keyboard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from anyio.abc import TaskStatus

    from sidecar.display.live import Panel


class Seat:
    """Either half may be missing: no panel, or nothing that a key does."""

    def __init__(self, panel: Panel | None = None, on_key: Callable[[], None] | None = None, fd: int = 0) -> None:
        self._panel = panel
        self._on_key = on_key
        self._fd = fd
        self._turn = anyio.Lock()
        self._away = contextlib.ExitStack()
        self._absences = 0
        self._back = anyio.Event()
        self._listening: anyio.CancelScope | None = None
        self._silent = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        async with anyio.create_task_group() as tasks:
            # Before the keyboard, which leaves signals alone that somebody else handles: the panel has to go as well.
            await tasks.start(self._follow_job_control)
            if self._panel is not None:
                tasks.start_soon(self._panel.run)
            if self._on_key is not None:
                tasks.start_soon(self._listen, self._on_key)
            task_status.started()

    @contextlib.asynccontextmanager
    async def given_away(self) -> AsyncIterator[None]:
        """The terminal is as it was found, nothing is drawn and no key is heard. One at a time."""
        async with self._turn, self._absent():
            yield

    @contextlib.asynccontextmanager
    async def _absent(self) -> AsyncIterator[None]:
        self._absences += 1
        try:
            if self._absences == 1:
                await self._withdraw()
            yield
        finally:
            self._absences -= 1
            if not self._absences:
                self._away.close()
                self._back.set()

    async def _withdraw(self) -> None:
        self._back = anyio.Event()
        if self._listening is not None:
            self._listening.cancel()
            await self._silent.wait()
        if self._panel is not None:
            self._away.enter_context(self._panel.hidden())

    async def _listen(self, on_key: Callable[[], None]) -> None:
        while True:
            if self._absences:
                await self._back.wait()
                continue
            self._silent = anyio.Event()
            try:
                with anyio.CancelScope() as self._listening:
                    await keyboard.listen(on_key, self._fd)
            finally:
                self._listening = None
                self._silent.set()
            if not self._absences:
                return  # it ended by itself: there is no terminal to listen to, or none any more

    async def _follow_job_control(self, *, task_status: TaskStatus[None]) -> None:
        # A signal that somebody else ignores or handles stays theirs; only the main thread can have any.
        ours = [number for number in (signal.SIGTSTP, signal.SIGCONT) if signal.getsignal(number) is signal.SIG_DFL]
        if not ours or threading.current_thread() is not threading.main_thread():
            task_status.started()
            return
        with anyio.open_signal_receiver(*ours) as received:
            task_status.started()
            async for number in received:
                # After SIGSTOP, of which nobody is told, the shell has changed the terminal: begin anew.
                async with self._absent():
                    if number == signal.SIGTSTP:
                        _stop_by_default_action()


def _stop_by_default_action() -> None:
    """Stop this process as Ctrl-Z would have; returns when it is continued."""
    # Only this process, and not SIGSTOP: see `sidecar.signals.keyboard`, which does the same where there is no panel.
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)
    signal.siginterrupt(signal.SIGTSTP, False)
