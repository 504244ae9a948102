"""The live panel of a run in the foreground: whether there is to be one, and what it knows before the first event."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sidecar.display.panel import Panel
from sidecar.display.progress import Progress
from sidecar.display.terminal import can_show_panel
from sidecar.service import workspaces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.store.journal import Journal

_SCREEN = 1


def is_possible(environment: Mapping[str, str]) -> bool:
    """Whether standard output is a terminal that can show one."""
    return can_show_panel(_SCREEN, environment)


def panel(journal: Journal, run_id: str, *, keys: bool) -> Panel:
    """The panel of a run. `keys`: whether the key `s` is read."""
    run = journal.run(run_id)
    progress = Progress(
        workflow=run.workflow, workspace=os.path.basename(run.workspace or ""), mode=workspaces.mode(run) or ""
    )
    if run.start:  # what it took and cost before counts; what it said then was read then
        for event in journal.events(run_id):
            progress.on_event(event.run_event)
        progress.messages.clear()
    return Panel(progress, keys=keys)
