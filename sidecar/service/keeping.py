"""Deletes runs that `keep_runs` and `keep_days` allow to delete: at the end of a run, and by the daemon."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

import anyio.to_thread

from sidecar import layout
from sidecar.errors import REPORTED
from sidecar.signals import run_lock
from sidecar.store.db import free
from sidecar.store.journal import Keep, compact, surplus

if TYPE_CHECKING:
    from sidecar.engine.owner import Owner

logger = logging.getLogger("sidecar.store")
_DAY_S = 86_400.0
AT_MOST = 100  # for a process that is about to end; the next one continues


async def remove_surplus(owner: Owner, *, except_run: str | None = None, at_most: int | None = None) -> None:
    """Delete surplus runs from the journal and the disk. The run `except_run` stays, and what cannot be deleted now."""
    keep = Keep(owner.settings.keep_runs, owner.settings.keep_days * _DAY_S)
    try:
        live = {*run_lock.live_runs(owner.root), *([except_run] if except_run else [])}
        if not surplus(owner.database, keep, live):
            return
        await free(owner.database)
        gone = compact(owner.database, keep, live, at_most=at_most)
    except REPORTED as error:
        logger.warning("cannot compact the journal: %s", error)
        return
    for run_id in gone:
        # Its logs go, too: no command finds the run any more.
        await anyio.to_thread.run_sync(shutil.rmtree, layout.run_directory(owner.root, run_id), True)
