"""What takes long and changes nothing: done in a thread, so that the event loop, and with it an abort, goes on."""

from __future__ import annotations

from contextlib import nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from sidecar.catalog.workflows import restore
from sidecar.engine.replay import definition_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.catalog.workflows import Definition
    from sidecar.engine.owner import Owner
    from sidecar.store.journal import StoredRun

MOST = 4
_limiter = RunVar[anyio.CapacityLimiter]("_limiter")
turn: ContextVar[anyio.Lock | None] = ContextVar("turn", default=None)  # of the client that asks: it has one thread
P = ParamSpec("P")
T = TypeVar("T")


async def aside(function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
    """What the function gives. It reads files, or evaluates with `owner.trials`; never with what runs use."""
    async with turn.get() or nullcontext():
        return await anyio.to_thread.run_sync(lambda: function(*args, **named), limiter=_few())


def _few() -> anyio.CapacityLimiter:
    """Not as many threads as there are callers: they share one interpreter with the loop."""
    try:
        return _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(MOST)
        _limiter.set(limiter)
        return limiter


async def definition_aside(owner: Owner, run: StoredRun) -> Definition:
    """The definition that a run goes by. As long as the caller holds it, it is not read again."""
    return await aside(restore, definition_of(owner.journal, run))
