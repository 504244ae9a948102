"""Signals as the tools of MCP write them: which directory is meant, and what the file says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.errors import InputError
from sidecar.signals import files, targets

if TYPE_CHECKING:
    from sidecar.config import Project
    from sidecar.signals.files import Kind
    from sidecar.signals.targets import Target

Json = dict[str, Any]
_LIES_THERE = (
    "no run is open there now: the next one to begin there is stopped before its first step; `cancel` takes this back"
)


def target(project: Project, workspace: str | None, run_id: str | None, asker: str | None) -> Target:
    """Whom a signal is for: one run, those of a workspace, or all of the project. `asker`: the run whose agent asks,
    where one does. It is meant where nothing is named, and only the settings let its agents name anything else."""
    if workspace is not None and run_id is not None:
        raise InputError("`workspace` and `run_id` exclude each other")
    if asker is not None:
        if workspace is None and run_id is None:
            run_id = asker
        if run_id != asker and project.settings.agent_signals != "project":
            raise InputError(
                f"an agent of run {asker} can stop and abort only that run; workflow_complete with status cancelled "
                "ends a run that you drive, and a person can allow more by the setting `agent_signals: project`"
            )
    if run_id is not None:
        return targets.run(project.root, run_id)
    if workspace is not None:
        return targets.workspace(project.root, workspace, project.environment)
    return targets.project(project.root)


def write(kind: Kind, to: Target, reason: str) -> Json:
    """Write it; which runs it governs."""
    to.refuse_ended()
    signed = files.signed()
    governed = to.open_runs()
    path = files.write(to.directory, kind, reason, signed, inside=to.inside)
    told: Json = {
        "success": True,
        "signal": kind,
        "path": path,
        "signal_id": signed.signal_id,
        "reason": reason,
        "runs": governed,
    }
    # An agent that stops what is over already would otherwise wonder why the next run does nothing.
    return {**told, "message": _LIES_THERE} if kind == "stop" and not governed else told


def cancel(of: Target) -> Json:
    """Take a stop back; whether there was one."""
    cancelled = files.cancel(of.directory, "stop") is not None
    return {"success": True, "cancelled": cancelled, "path": files.path_of(of.directory, "stop")}
