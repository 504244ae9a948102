"""Notifies people of what happens to runs: which events are worth a notice, in which words, and how many go out.

Notices go out beside the run: a channel that is slow, broken or flooded never holds a run up.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from sidecar.errors import REPORTED, SidecarError, UnwrappedErrors
from sidecar.model import events as kinds
from sidecar.notify.channels import Notice, sender
from sidecar.text import printable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from anyio.abc import TaskGroup

    from sidecar.config import Notify
    from sidecar.engine.owner import Owner
    from sidecar.model.events import RunEvent
    from sidecar.notify.channels import Send

_ENDS = frozenset({"stopped", "aborted", "failed", "completed"})
_LONGEST = 1000
_LISTED = 10
_AT_THE_END_S = 2.0  # for what is still under way when the owner goes
_DELIVERY_S = 10.0
_MOST_WAITING = 100
_BURST = 5  # so many go out as they come; then one every so often, which sums up what came meanwhile
_EVERY_S = 5.0


class NoticeReader:
    """Makes notices of events. Of a workflow's loops, only the outermost has milestones."""

    def __init__(self) -> None:
        self._outermost: dict[str, str] = {}  # loops, by run

    def read(self, event: RunEvent) -> Notice | None:
        """The notice of an event; None for most."""
        if event.kind == kinds.STEP_STARTED:
            self._place(event)
            return None
        draft = _DRAFTS.get(event.kind)
        found = draft(self, event) if draft is not None else None
        if found is None:
            return None
        name, title, text, done = found
        return Notice(name, event.run_id, event.at, _clean(title), _clean(text), done)

    def _place(self, event: RunEvent) -> None:
        """An iteration names its loop by the id; a step's key has the loops around it: `outer[2]/inner[0]/step`."""
        words = str(event.data.get("step", "")).split("/")
        loop = next((word.partition("[")[0] for word in words if word.endswith("]")), None)
        if loop is not None and not event.data.get("task"):
            self._outermost[event.run_id] = loop

    def _started(self, event: RunEvent) -> _Draft | None:
        resumed = event.kind == kinds.RUN_RESUMED
        return "started", "resumed" if resumed else "started", "", 0

    def _ended(self, event: RunEvent) -> _Draft | None:
        self._outermost.pop(event.run_id, None)
        status, reason = str(event.data.get("status")), event.data.get("reason")
        if status not in _ENDS:  # paused: its question has a notice; interrupted: by a person, or to be resumed
            return None
        lines = [str(reason)] if reason and reason != status else []
        if status != "completed":
            lines.append(f"To continue: sidecar resume {event.run_id}")
        return status, status, "\n".join(lines), 0

    def _question(self, event: RunEvent) -> _Draft | None:
        text = f"{event.data.get('prompt', '')}\nTo answer: sidecar answer {event.run_id} VALUE"
        return "waiting", "waits for an answer", text, 0

    def _gate(self, event: RunEvent) -> _Draft | None:
        stage = event.data.get("stage") or event.data.get("kind", "")
        text = f"To continue: sidecar resume {event.run_id} --approve, or --feedback TEXT to send it back"
        return "waiting", f"waits for approval of {stage}", text, 0

    def _iteration(self, event: RunEvent) -> _Draft | None:
        number, of, loop = event.data.get("iteration"), event.data.get("of"), str(event.data.get("step"))
        if event.data.get("task") or self._outermost.setdefault(event.run_id, loop) != loop:
            return None
        if not isinstance(number, int) or number < 2:
            return None
        done = number - 1  # this one only begins
        return "milestone", f"{done} {'iteration' if done == 1 else 'iterations'} done", f"of {of}" if of else "", done


def summed(notices: Sequence[Notice], omitted: int = 0) -> Notice:
    """Several as one, with the weight of the gravest."""
    if len(notices) == 1 and not omitted:
        return notices[0]
    counts = Counter(notice.event for notice in notices)
    title = ", ".join(f"{count} {name}" for name, count in counts.items())
    more = len(notices) - _LISTED + omitted
    lines = [notice.title for notice in notices[:_LISTED]] + ([f"and {more} more"] if more > 0 else [])
    first = max(notices, key=lambda notice: notice.weight)
    return Notice(first.event, first.run_id, first.at, f"{len(notices) + omitted} notices: {title}", "\n".join(lines))


def _clean(text: str) -> str:
    """Without anything that a terminal, a header or a desktop would obey."""
    kept = printable(text, keep="\n")
    return kept if len(kept) <= _LONGEST else kept[: _LONGEST - 1] + "…"


@asynccontextmanager
async def notifications(owner: Owner) -> AsyncIterator[Callable[[RunEvent], None]]:
    """The function that takes every event of an owner's runs. It costs nothing where no channel is set."""
    with UnwrappedErrors():
        async with anyio.create_task_group() as tasks:
            notifier = _Notifier(owner, tasks)
            try:
                yield notifier.on_event
            finally:
                with anyio.CancelScope(shield=True):
                    await notifier.finish()
                tasks.cancel_scope.cancel()


class _Notifier:
    """The channels of an owner, as its settings name them now: a daemon may read them again."""

    def __init__(self, owner: Owner, tasks: TaskGroup) -> None:
        self._owner = owner
        self._tasks = tasks
        self._reader = NoticeReader()
        self._settings: tuple[Notify, ...] = ()
        self._channels: list[_Channel] = []
        self._retired: list[_Channel] = []

    def on_event(self, event: RunEvent) -> None:
        """Take an event; never fails, never waits."""
        if self._owner.settings.notify != self._settings:
            self._configure()
        if not self._channels:
            return
        notice = self._reader.read(event)
        wanting = [channel for channel in self._channels if notice is not None and channel.wants(notice)]
        if notice is not None and wanting:
            complete = self._complete(notice)
            for channel in wanting:
                channel.take(complete)

    async def finish(self) -> None:
        """Send what waits, at once, but not for long."""
        channels = self._channels + self._retired
        for channel in channels:
            channel.finish()
        with anyio.move_on_after(_AT_THE_END_S):
            for channel in channels:
                await channel.over.wait()

    def _configure(self) -> None:
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
        except REPORTED:  # the notice goes out even if the journal cannot be read
            return replace(notice, title=f"run {notice.run_id}: {notice.event}", text="")
        place = f"{os.path.basename(owner.root)} on {platform.node()}, run {notice.run_id}"
        text = "\n".join(part for part in (notice.text, place) if part)
        return replace(notice, title=f"{run.workflow}: {notice.title}", text=text)


class _Channel:
    """One channel: what waits for it, how much it may send, and whether it works."""

    def __init__(self, setting: Notify, send: Send, report: Callable[[str], None]) -> None:
        self._setting = setting
        self._send = send
        self._report = report
        self._waiting: list[Notice] = []
        self._omitted = 0
        self._news = anyio.Event()
        self._ending = anyio.Event()
        self._allowance = float(_BURST)
        self._counted_at = time.monotonic()
        self._works = True
        self.over = anyio.Event()

    def wants(self, notice: Notice) -> bool:
        """Whether its settings ask for this notice."""
        return notice.event in self._setting.events and notice.done % self._setting.every == 0

    def take(self, notice: Notice) -> None:
        """Queue a notice; what is too much is only counted."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(notice)
        else:
            self._omitted += 1
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
                notices, omitted = self._waiting, self._omitted
                self._waiting, self._omitted = [], 0
                if notices:
                    await self._deliver(summed(notices, omitted))
        finally:
            self.over.set()

    async def _allowed(self) -> None:
        """Wait until it may send again. The end does not wait."""
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


if TYPE_CHECKING:
    _Draft = tuple[str, str, str, int]  # which event, title, text, iterations done

_DRAFTS: dict[str, Callable[[NoticeReader, RunEvent], _Draft | None]] = {
    kinds.RUN_STARTED: NoticeReader._started,
    kinds.RUN_RESUMED: NoticeReader._started,
    kinds.RUN_ENDED: NoticeReader._ended,
    kinds.QUESTION: NoticeReader._question,
    kinds.GATE: NoticeReader._gate,
    kinds.ITERATION: NoticeReader._iteration,
}
