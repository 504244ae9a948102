"""Events become notices, and notices go out beside the run: what is slow, or broken, or too much never reaches it."""

from __future__ import annotations

import os
import platform
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from sidecar.errors import REPORTED, SidecarError, UnwrappedErrors
from sidecar.notify.notices import Notice, Reader, summed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from anyio.abc import TaskGroup

    from sidecar.config import Notify
    from sidecar.engine.owner import Owner
    from sidecar.model.events import RunEvent
    from sidecar.notify.channels import Send

_AT_THE_END_S = 2.0  # for what is still under way when the owner goes
_DELIVERY_S = 10.0
_MOST_WAITING = 100
_BURST = 5  # so many go out as they come; then one every so often, which sums up what came meanwhile
_EVERY_S = 5.0


@asynccontextmanager
async def telling(owner: Owner) -> AsyncIterator[Callable[[RunEvent], None]]:
    """Listens to an owner's runs: the function that is to hear every event. It costs nothing where nobody is told."""
    with UnwrappedErrors():
        async with anyio.create_task_group() as tasks:
            notifier = _Notifier(owner, tasks)
            try:
                yield notifier.hear
            finally:
                with anyio.CancelScope(shield=True):
                    await notifier.finish()
                tasks.cancel_scope.cancel()


class _Notifier:
    """The channels of an owner, as its settings name them now: a daemon may read them again."""

    def __init__(self, owner: Owner, tasks: TaskGroup) -> None:
        self._owner = owner
        self._tasks = tasks
        self._reader = Reader()
        self._settings: tuple[Notify, ...] = ()
        self._channels: list[_Channel] = []
        self._retired: list[_Channel] = []

    def hear(self, event: RunEvent) -> None:
        """Take an event; never fails, never waits."""
        if self._owner.settings.notify != self._settings:
            self._configure()
        if not self._channels:
            return
        notice = self._reader.read(event)
        wanting = [channel for channel in self._channels if notice is not None and channel.wants(notice)]
        if notice is not None and wanting:
            told = self._complete(notice)
            for channel in wanting:
                channel.take(told)

    async def finish(self) -> None:
        """Send what waits, at once, but not for long."""
        channels = self._channels + self._retired
        for channel in channels:
            channel.finish()
        with anyio.move_on_after(_AT_THE_END_S):
            for channel in channels:
                await channel.over.wait()

    def _configure(self) -> None:
        from sidecar.notify.channels import sender  # noqa: PLC0415 - only for those who have it set

        for channel in self._channels:
            channel.finish()
        self._retired = [one for one in self._retired + self._channels if not one.over.is_set()]
        self._settings = self._owner.settings.notify
        self._channels = [_Channel(one, sender(one, self._owner), self._owner.report) for one in self._settings]
        for channel in self._channels:
            self._tasks.start_soon(channel.run)

    def _complete(self, notice: Notice) -> Notice:
        """With the workflow, the project and the machine in it. Events have no secrets."""
        owner = self._owner
        try:
            run = owner.journal.run(notice.run_id)
        except REPORTED:  # a journal that cannot be read keeps nobody from being told
            return replace(notice, title=f"run {notice.run_id}: {notice.event}", text="")
        place = f"{os.path.basename(owner.root)} on {platform.node()}, run {notice.run_id}"
        text = "\n".join(part for part in (notice.text, place) if part)
        return replace(notice, title=f"{run.workflow}: {notice.title}", text=text)


class _Channel:
    """One way to people: what waits for it, how much it may say, and whether it works."""

    def __init__(self, setting: Notify, send: Send, report: Callable[[str], None]) -> None:
        self._setting = setting
        self._send = send
        self._report = report
        self._waiting: list[Notice] = []
        self._left_out = 0
        self._news = anyio.Event()
        self._ending = anyio.Event()
        self._allowance = float(_BURST)
        self._counted_at = time.monotonic()
        self._works = True
        self.over = anyio.Event()

    def wants(self, notice: Notice) -> bool:
        """Whether it is told of this."""
        return notice.event in self._setting.events and notice.done % self._setting.every == 0

    def take(self, notice: Notice) -> None:
        """Have it delivered some time; what is too much is only counted."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(notice)
        else:
            self._left_out += 1
        self._news.set()

    def finish(self) -> None:
        """What waits goes out now, and nothing more comes."""
        self._ending.set()
        self._news.set()

    async def run(self) -> None:
        """Deliver until the end."""
        try:
            while self._waiting or not self._ending.is_set():
                await self._news.wait()
                await self._allowed()
                self._news = anyio.Event()
                notices, left_out = self._waiting, self._left_out
                self._waiting, self._left_out = [], 0
                if notices:
                    await self._deliver(summed(notices, left_out))
        finally:
            self.over.set()

    async def _allowed(self) -> None:
        """Wait until it may say something again. The end does not wait."""
        now = time.monotonic()
        self._allowance = min(_BURST, self._allowance + (now - self._counted_at) / _EVERY_S) - 1
        self._counted_at = now
        if self._allowance < 0:
            with anyio.move_on_after(-self._allowance * _EVERY_S):
                await self._ending.wait()

    async def _deliver(self, notice: Notice) -> None:
        problem: str | None = f"not within {_DELIVERY_S:g} s"
        with anyio.move_on_after(_DELIVERY_S):
            try:
                await self._send(notice)
                problem = None
            except SidecarError as error:
                problem = str(error)
            except Exception as error:  # a defect in here must not end a run
                problem = repr(error)
        if problem is not None and self._works:  # once, until it works again
            self._report(f"notifications by {self._setting.type} do not arrive: {problem}")
        self._works = problem is None
