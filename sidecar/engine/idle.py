"""An abort for runs that nobody holds: idle ones that an agent drives, paused ones, those whose owner died."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sidecar.engine.opened import subject_of
from sidecar.errors import SidecarError
from sidecar.signals import liveness
from sidecar.signals.board import judge
from sidecar.signals.consume import consume

if TYPE_CHECKING:
    from sidecar.engine.owner import Owner
    from sidecar.signals.files import Signal
    from sidecar.store.journal import Run

# What an abort finds at work, or about to go on by itself. A run that is pending has nobody's agents yet, and whoever
# starts it will be older than the file.
AT_WORK = frozenset({"running", "paused", "interrupted"})


def abort_governed(owner: Owner, signal: Signal) -> list[str]:
    """End every run that the abort governs and that nobody holds, in the journal; which ones.

    The receipt names them, and the file goes with the last one that it governs.
    """
    ended = []
    for run in owner.journal.runs(statuses=AT_WORK):
        if _is_meant(owner, run, signal) and _end(owner, run.run_id, signal):
            consume(owner.root, signal, run.run_id, "aborted")
            ended.append(run.run_id)
    return ended


def _is_meant(owner: Owner, run: Run, signal: Signal) -> bool:
    subject = subject_of(owner.root, run)
    if os.path.dirname(signal.path) not in subject.directories or liveness.is_live(owner.root, run.run_id):
        return False
    meant = judge(signal, subject, owner.database.clock()) == "applies"
    return meant and signal.signal_id not in owner.journal.signals(run.run_id)


def _end(owner: Owner, run_id: str, signal: Signal) -> bool:
    """Under its lock, so that nobody goes on with it meanwhile; False where somebody has, or ended it first."""
    try:
        with liveness.RunLock(owner.root, run_id, owner.journal.run(run_id).workspace), owner.database.transaction():
            run = owner.journal.run(run_id)
            if run.status not in AT_WORK:
                return False
            if run.status != "running":  # its last start has an end already: this is one more, and its end
                owner.journal.begin(run_id, {"workflow": run.workflow, "was": run.status})
            for handout in owner.handouts.all_held(run_id):
                owner.handouts.take_back(run_id, handout.task_id)
            owner.journal.take_signal(run_id, signal.signal_id, signal.kind)
            owner.journal.end(run_id, "aborted", reason=signal.reason)
    except SidecarError:
        if not liveness.is_live(owner.root, run_id):
            raise
        return False  # its owner will find the abort itself
    return True
