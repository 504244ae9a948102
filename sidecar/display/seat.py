"""The place at the terminal: the panel and the key `s` together, out of the way while anybody else has it.

Others are a person who is asked, a command that was lent the terminal, and the shell after Ctrl-Z.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

from sidecar.signals import job_control, keyboard

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
            await tasks.start(job_control.follow, lambda _: self._absent())
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
