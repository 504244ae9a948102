"""While a run is in the hands of this process: an abort ends it at once, the limit of its time, and the loss of its
place."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.engine.ending import Ending
from sidecar.errors import StoreError
from sidecar.model import run as kinds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sidecar.engine.opened import OpenRun
    from sidecar.signals.board import Request
    from sidecar.signals.liveness import RunLock


_PLACE_EVERY_S = 1.0


async def displaced(is_in_place: Callable[[], bool]) -> None:
    """Wait until what this process holds was moved, removed or replaced: nobody tells of that, and nobody who looks
    there finds us."""
    while is_in_place():  # noqa: ASYNC110 - nobody tells of it
        await anyio.sleep(_PLACE_EVERY_S)


@asynccontextmanager
async def watched(opened: OpenRun, lock: RunLock) -> AsyncIterator[None]:
    """Around the scope of the run, which is what an abort cancels."""
    failure: Exception | None = None
    async with anyio.create_task_group() as beside:
        await beside.start(opened.board.follow, opened.owner.watcher)
        beside.start_soon(_obey, opened)
        beside.start_soon(_keep_time, opened)
        beside.start_soon(_keep_journal, opened)
        beside.start_soon(_keep_place, opened, lock)
        try:
            yield
        except Exception as error:  # raised again outside: a task group would wrap it
            failure = error
        finally:
            beside.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _obey(opened: OpenRun) -> None:
    """Abort now; of a stop, tell those who show it, and let tasks notice that one was taken back."""
    board, shown = opened.board, None
    while True:
        if board.abort is not None:
            if opened.replies_out is not None:  # an agent that asked for it through us hears that it was heard
                await opened.replies_out()
            opened.end_now(opened.gate.aborted())
        request = board.abort or board.stop
        if request is not shown:
            _tell(opened, request, shown)
            shown = request
        opened.interpreter.stir()
        await board.wait_changed()


async def _keep_time(opened: OpenRun) -> None:
    """Boundaries look at it too: this is for a step that takes too long."""
    while True:
        opened.gate.tick()
        left_s = opened.gate.time_left_s()
        if left_s is None:
            return
        if left_s <= 0:
            opened.end_now(opened.gate.out_of_time())
            return
        await anyio.sleep(left_s)


async def _keep_place(opened: OpenRun, lock: RunLock) -> None:
    """No signal reaches a run whose directory is elsewhere now, and what it does is kept nowhere."""
    await displaced(lock.is_in_place)
    where = opened.board.subject.own_directory
    opened.end_now(Ending("interrupted", f"{where} was moved, removed or replaced while the run was executed"))


async def _keep_journal(opened: OpenRun) -> None:
    """What a locked journal could not take is written when it can."""
    try:
        await opened.ledger.keep_up()
    except StoreError as error:
        opened.lose(error)


def _tell(opened: OpenRun, request: Request | None, before: Request | None) -> None:
    data: dict[str, Any] = {"signal": before.kind if before else "stop", "cancelled": True}
    if request is not None:
        path = request.signal.path if request.signal else None
        data = {"signal": request.kind, "reason": request.reason, "source": request.source, "path": path}
    opened.say(kinds.SIGNAL, data)
