"""Workspaces: a directory with instructions, a list of what remains, and `.status.json`; made, looked at, cleaned."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sidecar import layout
from sidecar.errors import InputError, SidecarError
from sidecar.service.status import effective_status, iso_timestamp
from sidecar.signals import files, receipts, targets
from sidecar.store.journal import Journal

if TYPE_CHECKING:
    from sidecar.config import Project
    from sidecar.signals.targets import Target
    from sidecar.store.db import Database
    from sidecar.store.journal import StoredRun

ITERATE = "iterate"  # the built-in workflow that works through a workspace
INSTRUCTIONS, TODO, STATUS = "INSTRUCTIONS.md", "TODO.md", ".status.json"
_METADATA = ".metadata.json"  # of claude-iterate
_MOST_BYTES = 1024 * 1024
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
    STATUS: """\
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


@dataclass(frozen=True, slots=True)
class WorkspaceStatus:
    """What the agent wrote into `.status.json`. `problem`: why that cannot be used; then nothing else is set."""

    complete: bool = False
    completed: int | None = None
    total: int | None = None
    percent: float | None = None  # where the agent gives a number instead of two counts
    worked: bool | None = None
    summary: str = ""
    problem: str = ""
    written_at: float | None = None  # None: there is no such file


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
        "mode": written_mode(directory),
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
    return (written_mode(run.workspace) or "loop") if run.workflow == ITERATE and run.workspace else None


def read_status(directory: str) -> WorkspaceStatus:
    """The status of a workspace; never raises, and never waits, whatever stands there."""
    try:
        content, written_at = _content(os.path.join(directory, STATUS))
    except FileNotFoundError:
        return WorkspaceStatus()
    except (OSError, ValueError, RecursionError) as error:
        return WorkspaceStatus(problem=_why(error), written_at=0.0)
    if not isinstance(content, dict):
        return WorkspaceStatus(problem="it is no JSON object", written_at=written_at)
    if not isinstance(content.get("complete"), bool):
        return WorkspaceStatus(problem="`complete` has to be true or false", written_at=written_at)
    progress, worked, summary = content.get("progress"), content.get("worked"), content.get("summary")
    counts = progress if isinstance(progress, dict) else {}
    return WorkspaceStatus(
        complete=content["complete"],
        completed=_count(counts.get("completed")),
        total=_count(counts.get("total")),
        percent=progress if _is_number(progress) else None,
        worked=worked if isinstance(worked, bool) else None,
        summary=summary if isinstance(summary, str) else "",
        written_at=written_at,
    )


def written_mode(directory: str) -> str | None:
    """The mode that claude-iterate wrote into the workspace, if it did."""
    try:
        content, _ = _content(os.path.join(directory, _METADATA))
    except (OSError, ValueError, RecursionError):
        return None
    found = content.get("mode") if isinstance(content, dict) else None
    return found if found in ("loop", "iterative") else None


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
            text = file.read(_MOST_BYTES)
    except OSError:
        return "missing"
    return "template" if NOT_WRITTEN in text else "ready" if text else "missing"


def _status(directory: str) -> dict[str, Any]:
    found = asdict(read_status(directory))
    written_at = found.pop("written_at")
    return {**found, "written_at": iso_timestamp(written_at) if written_at else None}


def _content(path: str) -> tuple[Any, float]:
    # Agents write here: a FIFO must not make us wait, and a device must not fill our memory.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(file, "rb") as opened:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        data = opened.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError("it is larger than 1 MiB")
    return json.loads(data.decode("utf-8-sig")), found.st_mtime


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
