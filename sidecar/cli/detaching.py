"""`--detach`: the run goes on without this terminal, and its reader knows where to look."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.cli.executing import CODES, unused
from sidecar.errors import REPORTED, SidecarError
from sidecar.model import events as kinds
from sidecar.service import owners
from sidecar.service.status import describe, journal_with
from sidecar.store.journal import OPEN, Journal
from sidecar.text import clean

if TYPE_CHECKING:
    from sidecar.cli.executing import Manner
    from sidecar.config import Project

OK = 0


def hand_over(project: Project, run_id: str, manner: Manner, **given: Any) -> int:
    """Give it to whoever executes detached runs here, and say how it is followed; the exit code."""
    with journal_with(project.root, run_id) as (database, _):
        journal = Journal(database)
        before = journal.last_seq(run_id)
        try:
            anyio.run(partial(owners.delegate, project, journal, run_id, **given))
        except REPORTED as error:
            raise SidecarError(f"run {run_id} is not executed: {error}") from None
        run = journal.run(run_id)
        begun = any(event.kind in (kinds.RUN_STARTED, kinds.RUN_RESUMED) for event in journal.events(run_id, before))
        found = describe(database, project.root, run_id)
    executed = begun or run.status in OPEN
    if manner.json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
    elif not executed:
        rest = unused(feedback=given.get("feedback"), answer=given.get("answer"))
        print(f"run {run_id} was not executed: {run.status}: {clean(run.reason or '')}{rest}")
    elif manner.quiet:
        print(run_id)
    else:
        print(f"run {run_id} goes on without this terminal\n")
        print(f"  sidecar logs {run_id} -f")
        print(f"  sidecar status {run_id}")
        print(f"  sidecar stop --run {run_id}")
    return OK if executed else CODES[run.status]
