"""Workspaces: a directory with what is wanted, what is left and how far it is; made, looked at, cleaned."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sidecar import layout
from sidecar.errors import InputError, SidecarError
from sidecar.service import status_file
from sidecar.service.status import effective_status, iso_timestamp
from sidecar.signals import files, receipts, targets
from sidecar.store.journal import Journal

if TYPE_CHECKING:
    from sidecar.config import Project
    from sidecar.signals.targets import Target
    from sidecar.store.db import Database
    from sidecar.store.journal import StoredRun

ITERATE = "iterate"  # the built-in workflow that works through a workspace
INSTRUCTIONS, TODO = "INSTRUCTIONS.md", "TODO.md"
NOT_WRITTEN = "Not written yet: delete this line"  # the workflow `iterate` looks for it, too
_TEMPLATES = {
    INSTRUCTIONS: f"""\
<!-- {NOT_WRITTEN} when everything below says what you want. -->

# What is wanted

An agent reads this file at the beginning of every session, and has nothing else to go by. Say what the result is,
where in the project it belongs, and what must not be touched.

# When it is done

What has to hold, and how to check it: the command that has to succeed, the file that has to be there.
""",
    TODO: """\
# What is left

The agent keeps this list, so that the next session can go on from it alone. It may begin empty: then the first
session writes it from INSTRUCTIONS.md.
""",
    status_file.STATUS: """\
{
  "complete": false,
  "progress": {"completed": 0, "total": 0},
  "summary": "Not begun. The agent writes this file last in every session; `complete: true` ends the loop."
}
""",
}
# A signal, its receipt, and what a writer of either leaves who dies in the middle of it.
_LEFTOVER = re.compile(r"\.(stop|abort)(\.taken|(\.receipt\.json)?(\.[0-9a-f]{16}\.tmp)?)")
_RUNS_SHOWN = 10


def init(project: Project, name: str, instructions: str | None = None) -> tuple[Target, list[str], list[str]]:
    """Make a workspace, or what is missing in one: where it is, what was made, and what was there before."""
    if not layout.is_name(name):
        raise InputError(f"not a workspace name: {name!r}; one has letters, digits, - and _ only")
    parent = targets.workspaces_directory(project.root, project.environment)
    directory = os.path.join(parent, name)
    if not (os.path.realpath(directory) + "/").startswith(os.path.realpath(project.root).rstrip("/") + "/"):
        raise InputError(f"workspaces have to be inside the project, and {directory} is not: see `workspaces_dir`")
    if instructions is not None and os.path.lexists(os.path.join(directory, INSTRUCTIONS)):
        raise InputError(f"{os.path.join(directory, INSTRUCTIONS)} is there already, and is never overwritten")
    made: list[str] = []
    kept: list[str] = []
    try:
        layout.make_directory(directory)
        for file_name, template in _TEMPLATES.items():
            text = template if file_name != INSTRUCTIONS or instructions is None else instructions
            (made if _make(os.path.join(directory, file_name), text) else kept).append(file_name)
    except OSError as error:
        raise SidecarError(f"cannot make {error.filename or directory}: {error.strerror}") from None
    return named(project, name), made, kept


def named(project: Project, name: str) -> Target:
    """A workspace by its name; the error names those that there are."""
    return targets.workspace(project.root, name, project.environment)


def names(project: Project) -> list[str]:
    """All there are."""
    parent = targets.workspaces_directory(project.root, project.environment)
    try:
        found = [entry.name for entry in os.scandir(parent) if layout.is_name(entry.name) and entry.is_dir()]
    except OSError:
        return []
    return sorted(found)


def summary(project: Project, name: str, database: Database | None) -> dict[str, Any]:
    """What `workspace list --json` has of one; `problem` where it cannot be used."""
    try:
        target = named(project, name)
    except SidecarError as error:
        return {"name": name, "path": None, "problem": str(error)}
    directory = target.directory
    runs = Journal(database).runs(workspace=directory, limit=1) if database is not None else []
    return {
        "name": name,
        "path": directory,
        "problem": None,
        "status": _status(directory),
        "last_run": _run(project, runs[0]) if runs else None,
        "live_runs": target.live_runs(),
        "signals": _signals(directory),
    }


def details(project: Project, name: str, database: Database | None) -> dict[str, Any]:
    """What `workspace show --json` has: the same, with files, runs, and what became of the last signals."""
    directory = named(project, name).directory
    runs = Journal(database).runs(workspace=directory, limit=_RUNS_SHOWN) if database is not None else []
    found = [receipts.read(files.path_of(directory, kind)) for kind in files.FILE_NAMES]
    return {
        **summary(project, name, database),
        "mode": status_file.mode(directory),
        "instructions": _instructions(directory),
        "files": sorted(os.listdir(directory)),
        "runs": [_run(project, run) for run in runs],
        "receipts": [receipt for receipt in found if receipt is not None],
        "leftovers": leftovers(directory),
    }


def mode(run: StoredRun) -> str | None:
    """In which mode a run works through its workspace, where it has one."""
    given = run.inputs.get("mode")
    if isinstance(given, str):
        return given
    return (status_file.mode(run.workspace) or "loop") if run.workflow == ITERATE and run.workspace else None


def leftovers(directory: str) -> list[str]:
    """Signals, receipts and temporary files in a workspace, by name."""
    return sorted(name for name in os.listdir(directory) if _LEFTOVER.fullmatch(name))


def refuse_live(target: Target) -> None:
    """InputError while a run is live in a workspace: what stands there is part of it."""
    live = target.live_runs()
    if live:
        raise InputError(f"run {live[0]} is live in workspace {target.name}; first: sidecar stop {target.name} --wait")


def clean(target: Target, chosen: list[str]) -> list[str]:
    """Remove these leftovers: what is gone."""
    refuse_live(target)
    return [name for name in chosen if _LEFTOVER.fullmatch(name) and _removed(target.directory, name)]


def _removed(directory: str, name: str) -> bool:
    kind = next((kind for kind, file_name in files.FILE_NAMES.items() if file_name == name), None)
    if kind is not None:  # carefully: one that is written meanwhile is not what was to be removed
        signal = files.read(directory, kind)
        return signal is not None and files.clear(signal)
    path = os.path.join(directory, name)
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SidecarError(f"cannot remove {path}: {error.strerror}") from None
    return True


def _make(path: str, text: str) -> bool:
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    with open(file, "w", encoding="utf-8") as opened:
        opened.write(text)
    return True


def _instructions(directory: str) -> str:
    """ready, missing, or template: made by `init`, and not written yet."""
    path = os.path.join(directory, INSTRUCTIONS)
    try:
        with open(path, encoding="utf-8", errors="replace", opener=layout.open_at_once) as file:
            text = file.read(1024 * 1024)
    except OSError:
        return "missing"
    return "template" if NOT_WRITTEN in text else "ready" if text else "missing"


def _status(directory: str) -> dict[str, Any]:
    found = asdict(status_file.read(directory))
    written_at = found.pop("written_at")
    return {**found, "written_at": iso_timestamp(written_at) if written_at else None}


def _run(project: Project, run: StoredRun) -> dict[str, Any]:
    status = effective_status(project.root, run)
    is_over = status not in ("running", "pending") and run.ended_at is not None
    return {
        "run_id": run.run_id,
        "workflow": run.workflow,
        "status": status,
        "reason": run.reason or "",
        "started_at": iso_timestamp(run.created_at),
        "ended_at": iso_timestamp(run.ended_at or 0.0) if is_over else None,
    }


def _signals(directory: str) -> list[dict[str, Any]]:
    found = [files.read(directory, kind) for kind in files.FILE_NAMES]
    return [
        {"signal": one.kind, "path": one.path, "reason": one.reason, "since": iso_timestamp(one.arrived_at)}
        for one in found
        if one is not None
    ]
