"""What is to be known of runs, by whoever asks: read from the journal, whoever executes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sidecar.engine import approval
from sidecar.engine.boundary import signal_directories
from sidecar.model import events as kinds
from sidecar.signals import files, liveness
from sidecar.store.journal import Agents, Journal

if TYPE_CHECKING:
    from sidecar.store.db import Database
    from sidecar.store.journal import StoredRun

_WAITING = (kinds.RUN_STARTED, kinds.RUN_RESUMED, kinds.GATE, kinds.RUN_ENDED)


def statuses(database: Database, root: str, *, limit: int | None = None) -> list[dict[str, Any]]:
    """Every run, newest first, as `status --json` has them."""
    return [status(database, root, run) for run in Journal(database).runs(limit=limit)]


def status(database: Database, root: str, run: StoredRun) -> dict[str, Any]:
    """One run."""
    journal = Journal(database)
    step = _newest(journal, run, kinds.STEP_STARTED, kinds.STEP_COMPLETED).get("step")
    over = run.status not in ("running", "pending")
    ended = next(journal.newest(run.run_id, [kinds.RUN_ENDED]), None) if over else None
    told = ended.data if ended is not None else {}
    may_wait = standing(root, run) in ("running", "paused")
    last = next(journal.newest(run.run_id, _WAITING), None) if may_wait else None
    return {
        "run_id": run.run_id,
        "workflow": run.workflow,
        "workspace": run.workspace,
        "status": standing(root, run),
        "step": None if run.status == "completed" else step,
        "iteration": _newest(journal, run, kinds.ITERATION).get("iteration"),
        "started_at": moment(run.created_at),
        "ended_at": moment(run.ended_at) if over and run.ended_at is not None else None,
        "reason": run.reason or "",
        "driver": run.driver,
        "signals": _signals(root, run),
        "agents": _agents(database, run) if not over and standing(root, run) == "running" else [],
        "limit": told.get("limit"),
        "waits": approval.waits_in([last]) if last is not None else None,
    }


def standing(root: str, run: StoredRun) -> str:
    """The run's status; one whose owner died is interrupted, though the journal does not say so yet."""
    if run.status == "running" and run.driver == "server" and not liveness.is_live(root, run.run_id):
        return "interrupted"
    return run.status


def messages(database: Database, run_id: str) -> list[str]:
    """What the run said to the person."""
    return [event.data["text"] for event in Journal(database).events(run_id) if event.kind == kinds.MESSAGE]


def moment(at: float) -> str:
    """A time for programs."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _newest(journal: Journal, run: StoredRun, *names: str) -> dict[str, Any]:
    """What the run's last event of these kinds says, those of tasks left out: there may be thousands of them since."""
    found = (event.data for event in journal.newest(run.run_id, names, containing='"task":null'))
    return next((data for data in found if data.get("task") is None), {})


def _signals(root: str, run: StoredRun) -> list[dict[str, Any]]:
    if run.status not in ("running", "pending", "paused"):
        return []
    found = [files.read(directory, kind) for directory in signal_directories(root, run) for kind in files.FILE_NAMES]
    return [
        {"signal": signal.kind, "path": signal.path, "reason": signal.reason, "since": moment(signal.arrived_at)}
        for signal in found
        if signal is not None
    ]


def _agents(database: Database, run: StoredRun) -> list[dict[str, Any]]:
    living = {record.agent_id: record for record, ended in Agents(database).of_run(run.run_id) if ended is None}
    if not living:
        return []
    started = [event for event in Journal(database).events(run.run_id) if event.kind == kinds.AGENT_STARTED]
    return [
        {
            "pid": event.data["pid"],
            "name": event.data["name"],
            "started_at": moment(event.at),
            "step": event.data["step"],
            "log": event.data["log"],
        }
        for event in started
        if event.data["agent_id"] in living
    ]
