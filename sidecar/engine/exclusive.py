"""Workflows that have a workspace to themselves: while one run is at work there, or will be, another is refused."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from sidecar.errors import InputError
from sidecar.signals.liveness import is_live

if TYPE_CHECKING:
    from sidecar.store.journal import Journal, StoredRun

_WORKFLOWS = frozenset({"iterate"})
_BEGIN_S = 120.0  # a run that is pending for longer has lost whoever was to execute it


def refuse_second(journal: Journal, root: str, workflow: str, workspace: str | None, run_id: str | None = None) -> None:
    """InputError where another run of the workflow has the workspace. `run_id`: the run that asks, if it exists."""
    if workflow not in _WORKFLOWS or workspace is None:
        return
    for other in journal.runs(workspace=workspace):
        if other.run_id != run_id and other.workflow == workflow and _has_it(root, other):
            raise InputError(
                f"run {other.run_id} of {workflow} has the workspace {os.path.basename(workspace)} already, it is "
                f"{other.status}: let it end, or end it (sidecar stop --run {other.run_id})"
            )


def _has_it(root: str, run: StoredRun) -> bool:
    if is_live(root, run.run_id) or run.status == "paused":
        return True
    if run.status == "pending":
        return time.time() - run.created_at < _BEGIN_S
    if run.status == "running" and run.driver == "agent":
        return True
    # Its owner is gone. Whoever began it in a terminal may begin anew; one that is detached goes on by itself.
    return run.status in ("running", "interrupted") and bool(run.details.get("detached"))
