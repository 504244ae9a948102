"""What the agent of a workspace says of its progress in `.status.json`, and claude-iterate in `.metadata.json`."""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import dataclass
from typing import Any

STATUS, METADATA = ".status.json", ".metadata.json"
_MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Status:
    """What the file says. `problem`: why it cannot be used; then it says nothing else."""

    complete: bool = False
    completed: int | None = None
    total: int | None = None
    percent: float | None = None  # where the agent tells a number, and not so many of so many
    worked: bool | None = None
    summary: str = ""
    problem: str = ""
    written_at: float | None = None  # None: there is no such file


def read(directory: str) -> Status:
    """The status of a workspace; never raises, and never waits, whatever stands there."""
    try:
        content, written_at = _content(os.path.join(directory, STATUS))
    except FileNotFoundError:
        return Status()
    except (OSError, ValueError, RecursionError) as error:
        return Status(problem=_why(error), written_at=0.0)
    if not isinstance(content, dict):
        return Status(problem="it is no JSON object", written_at=written_at)
    if not isinstance(content.get("complete"), bool):
        return Status(problem="`complete` has to be true or false", written_at=written_at)
    progress, worked, summary = content.get("progress"), content.get("worked"), content.get("summary")
    counts = progress if isinstance(progress, dict) else {}
    return Status(
        complete=content["complete"],
        completed=_count(counts.get("completed")),
        total=_count(counts.get("total")),
        percent=progress if _is_number(progress) else None,
        worked=worked if isinstance(worked, bool) else None,
        summary=summary if isinstance(summary, str) else "",
        written_at=written_at,
    )


def mode(directory: str) -> str | None:
    """How the workspace wants to be worked through, where claude-iterate wrote that down."""
    try:
        content, _ = _content(os.path.join(directory, METADATA))
    except (OSError, ValueError, RecursionError):
        return None
    found = content.get("mode") if isinstance(content, dict) else None
    return found if found in ("loop", "iterative") else None


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
