"""What happens in a run, for whoever is not its owner: the journal is read as it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from sidecar.model import events as kinds
from sidecar.model.events import RunEvent
from sidecar.signals import liveness
from sidecar.store.journal import Journal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sidecar.store.db import Database

_LOOK_S = 0.1
_SOON_S = 0.01  # behind something new: more may be about to come
_LOOKS = 5  # without an owner: one that is just being replaced is none that died


async def follow(database: Database, root: str, run_id: str, after: int = 0) -> AsyncIterator[RunEvent]:
    """Every event behind a sequence number, as it comes, up to the end of the start that is under way then, or to the
    death of its owner, of which the journal does not know.

    Looked for ten times a second, more often where much happens: the writer may be any process, and SQLite tells nobody
    that something was written.
    """
    journal = Journal(database)
    without_owner = 0
    wait_s = _SOON_S
    while True:
        for event in journal.events(run_id, after):
            wait_s = _SOON_S
            after = event.seq
            yield event.run_event
            if event.kind == kinds.RUN_ENDED and event.seq == journal.last_seq(run_id):
                return
        run = journal.run(run_id)
        gone = run.status == "running" and run.driver == "server" and not liveness.is_live(root, run_id)
        without_owner = without_owner + (wait_s == _LOOK_S) if gone else 0
        if without_owner >= _LOOKS:
            return
        await anyio.sleep(wait_s)
        wait_s = min(2 * wait_s, _LOOK_S)
