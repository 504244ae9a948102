"""Waiting for the journal's lock on an event loop, which goes on meanwhile."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import anyio

from sidecar.errors import JournalLocked

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.store.db import Database

    Result = TypeVar("Result")

TRY_S = 0.02  # how long one try may hold up the loop: others of ours are done in a few milliseconds
AGAIN_S = 0.02  # between two tries
_AT_MOST_S = 10.0


async def free(database: Database) -> None:
    """Wait until the lock can be had, so that whatever writes next need not wait for it on the loop."""
    await when_free(database, lambda: None)


async def when_free(
    database: Database, act: Callable[[], Result], *, durable: bool = True, at_most_s: float = _AT_MOST_S
) -> Result:
    """Do something in one transaction as soon as the lock can be had. JournalLocked, and nothing was done, where
    another process keeps it for longer."""
    deadline = time.monotonic() + at_most_s
    while True:
        try:
            with database.transaction(durable=durable, wait_s=TRY_S):
                return act()
        except JournalLocked:
            if time.monotonic() > deadline:
                raise JournalLocked(
                    f"{database.path}: another process has kept it locked for {at_most_s:g} s; see who, and try again"
                ) from None
        await anyio.sleep(AGAIN_S)
