"""What `keep_runs` and `keep_days` say may go, removed by whoever owns runs: the daemon is not needed for it."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

import anyio.to_thread

from sidecar import layout
from sidecar.errors import REPORTED
from sidecar.signals import run_lock
from sidecar.store.db import free
from sidecar.store.journal import Keep, compact

if TYPE_CHECKING:
    from sidecar.engine.owner import Owner

logger = logging.getLogger(__name__)
_DAY_S = 86_400.0
AT_MOST = 100  # for a process that is about to end: the next one goes on


async def remove_surplus(owner: Owner, *, spare: str | None = None, at_most: int | None = None) -> None:
    """Remove it from the journal and from the disk; the run `spare` stays, and what cannot be removed now."""
    keep = Keep(owner.settings.keep_runs, owner.settings.keep_days * _DAY_S)
    try:
        await free(owner.database)
        live = {*run_lock.live_runs(owner.root), *([spare] if spare else [])}
        gone = compact(owner.database, keep, live, at_most=at_most)
    except REPORTED as error:
        logger.warning("cannot compact the journal: %s", error)
        return
    for run_id in gone:
        # Its logs are of no use to anybody: no command finds the run any more.
        await anyio.to_thread.run_sync(shutil.rmtree, layout.run_directory(owner.root, run_id), True)
