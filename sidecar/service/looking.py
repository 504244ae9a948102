"""What is to be known of runs, by whoever asks: read from the journal, whoever executes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sidecar.engine.opened import signal_directories
from sidecar.model import run as kinds
from sidecar.signals import files, liveness
from sidecar.store.agents import Agents
from sidecar.store.journal import Journal

if TYPE_CHECKING:
    from sidecar.store.db import Database
    from sidecar.store.journal import Event, Run

_LAST_EVENTS = 400  # enough to find the step and the iteration that a run is at


def statuses(database: Database, root: str, *, limit: int | None = None) -> list[dict[str, Any]]:
    """Every run, newest first, as `status --json` has them."""
    return [status(database, root, run) for run in Journal(database).runs(limit=limit)]


def status(database: Database, root: str, run: Run) -> dict[str, Any]:
    """One run."""
    events = _last(Journal(database), run)
    step, iteration = _place(events)
    over = run.status not in ("running", "pending")
    return {
        "run_id": run.run_id,
        "workflow": run.workflow,
        "workspace": run.workspace,
        "status": standing(root, run),
        "step": None if run.status == "completed" else step,
        "iteration": iteration,
        "started_at": moment(run.created_at),
        "ended_at": moment(run.ended_at) if over and run.ended_at is not None else None,
        "reason": run.reason or "",
        "driver": run.driver,
        "signals": _signals(root, run),
        "agents": _agents(database, run) if not over and standing(root, run) == "running" else [],
        "limit": _limit(events),
        "waits": _waits(events) if run.status == "paused" else None,
    }


def standing(root: str, run: Run) -> str:
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


def _last(journal: Journal, run: Run) -> list[Event]:
    return journal.events(run.run_id, after=max(journal.last_seq(run.run_id) - _LAST_EVENTS, 0))


def _place(events: list[Event]) -> tuple[str | None, int | None]:
    step: str | None = None
    iteration: int | None = None
    for event in events:
        if event.data.get("task") is None:
            step = event.data.get("step") if event.kind in (kinds.STEP_STARTED, kinds.STEP_COMPLETED) else step
            iteration = event.data["iteration"] if event.kind == kinds.ITERATION else iteration
    return step, iteration


def _limit(events: list[Event]) -> str | None:
    return events[-1].data.get("limit") if events and events[-1].kind == kinds.RUN_ENDED else None


def _waits(events: list[Event]) -> dict[str, Any] | None:
    return next((event.data.get("waits") for event in reversed(events) if event.kind == kinds.RUN_ENDED), None)


def _signals(root: str, run: Run) -> list[dict[str, Any]]:
    if run.status not in ("running", "pending", "paused"):
        return []
    found = [files.read(directory, kind) for directory in signal_directories(root, run) for kind in files.FILE_NAMES]
    return [
        {"signal": signal.kind, "path": signal.path, "reason": signal.reason, "since": moment(signal.arrived_at)}
        for signal in found
        if signal is not None
    ]


def _agents(database: Database, run: Run) -> list[dict[str, Any]]:
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
