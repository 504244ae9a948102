"""What lists say of workflows: remembered from the last time, and read anew where the file is another.

To read a hundred workflows takes most of a second; to see that none of them has changed, a few milliseconds.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from contextlib import suppress

import sidecar
from sidecar.catalog import naming

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sidecar.model.parameters import Parameter

    Row = dict[str, Any]

_SETTLED_S = 2.0  # a file that changed just now may change again without a trace: clocks of file systems are coarse
_READERS = ("catalog", "model")  # the packages whose code decides what a file says


def rows(root: str, source: str | None = None) -> tuple[list[Row], list[str]]:
    """Every workflow as programs want it, by name, and what is wrong first with each file that defines none."""
    wanted = None if source is None else _source_named(source)
    memory = _Memory(root)
    found: list[Row] = []
    problems: list[str] = []
    for name, (where, path) in naming.known(root, "workflows", problems).items():
        if path is None or wanted not in (None, where):
            continue
        if (why := naming.stray(root, "workflows", where, path)) is not None:
            problems.append(f"{path}:1: {why}")
            continue
        identity = _identity(path)
        said = memory.recall(path, identity) or _read(path, identity, memory)
        if isinstance(said, list):
            more = f" (and {len(said) - 1} more: sidecar validate {name})" if len(said) > 1 else ""
            problems.append(said[0] + more)
        else:
            found.append({"name": name, "description": "", "source": where, **said, "path": path})
    memory.save(everything=wanted is None)
    return found, problems


def described(parameter: Parameter) -> Row:
    """One parameter as programs want it."""
    told: Row = {"name": parameter.name, "type": parameter.type, "required": parameter.is_required}
    told["description"] = parameter.description
    if parameter.default is not None:
        told["default"] = parameter.default
    if parameter.choices is not None:
        told["choices"] = list(parameter.choices)
    return told


def _read(path: str, identity: list[int] | None, memory: _Memory) -> Row | list[str]:
    from sidecar.catalog import glance  # noqa: PLC0415 - yaml, only where something is new

    said = glance.heading(path) or _read_whole(path)
    if isinstance(said, dict):
        memory.keep(path, identity, said)
    return said


def _read_whole(path: str) -> Row | list[str]:
    from sidecar.catalog import workflows  # noqa: PLC0415 - pydantic, only where a glance is not enough

    heading = workflows.heading(path)
    if isinstance(heading, tuple):
        return list(heading)
    parameters = [described(one) for one in heading.parameters]
    return {"description": heading.description, "parameters": parameters, "version": heading.version}


def _source_named(text: str) -> str:
    from sidecar.catalog.lookup import source_named  # noqa: PLC0415 - most ask for all of them

    return source_named(text)


def _identity(path: str) -> list[int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino]


class _Memory:
    """One file for each project, among the caches of this user. Whatever is wrong with it, it is as if it were not."""

    def __init__(self, root: str) -> None:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        self._directory = os.path.join(caches, "sidecar")
        self._path = os.path.join(self._directory, f"workflows-{zlib.crc32(os.fsencode(root)):08x}.json")
        self._made_by = _code()
        self._before: Row = {}
        self._after: Row = {}
        with suppress(OSError, ValueError, KeyError, TypeError):
            with open(self._path, encoding="utf-8") as file:
                content = json.load(file)
            if content["made_by"] == self._made_by:
                self._before = dict(content["files"])

    def recall(self, path: str, identity: list[int] | None) -> Row | None:
        """What the file said, if it is still the same file."""
        entry = self._before.get(path)
        if identity is None or not isinstance(entry, dict) or entry.get("identity") != identity:
            return None
        self._after[path] = entry
        said: Row = entry["said"]
        return said

    def keep(self, path: str, identity: list[int] | None, said: Row) -> None:
        """For the next time."""
        if identity is not None and time.time() - max(identity[:2]) / 1e9 > _SETTLED_S:
            self._after[path] = {"identity": identity, "said": said}

    def save(self, *, everything: bool) -> None:
        """Where there is anything new; what was not among everything is gone. One that cannot be saved is no loss."""
        files = self._after if everything else self._before | self._after
        if files == self._before:
            return
        temporary = f"{self._path}.{os.getpid()}"
        with suppress(OSError, ValueError):  # ValueError: a name that is no UTF-8
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            with open(temporary, "w", encoding="utf-8", opener=_private) as file:
                json.dump({"made_by": self._made_by, "files": files}, file)
            os.replace(temporary, self._path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _code() -> str:
    """What the reading depends on besides the file: which sidecar reads it, down to the last edit of a checkout."""
    newest = 0
    for package in _READERS:
        with os.scandir(os.path.join(os.path.dirname(os.path.abspath(sidecar.__file__)), package)) as entries:
            newest = max(newest, *(entry.stat().st_mtime_ns for entry in entries if entry.name.endswith(".py")))
    return f"{sidecar.__version__} {newest}"
