"""Signs of life that an agent does not print: CPU time of its tree, changes in the files that it works on."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from sidecar import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_OURS = os.fsencode(layout.STATE_DIRECTORY)
# Signals and what is written beside them: somebody else's word to the run, and no work of its agent.
_SIGNAL = re.compile(rb"\.(stop|abort)(\..*)?", re.DOTALL)
# Where git does not say what is ignored.
_NOT_WORK = frozenset({b".git", b"node_modules", b".venv", b"__pycache__", _OURS})
# It reads the index and the ignore rules, and executes nothing that the project's configuration names.
_LIST = ("git", "-c", "core.fsmonitor=false", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
_LIST_S = 60.0


def cpu_s(pids: Iterable[int]) -> float:
    """The CPU time that these processes and their waited-for children have used."""
    total = 0.0
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:  # gone since the look
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


@dataclass(frozen=True, slots=True)
class Files:
    """The files that an agent works on: the trees that git sees, without what it ignores, and all of its workspace."""

    trees: Sequence[str]
    workspace: str | None = None

    def token(self) -> tuple[int, int]:
        """Something that differs when one of them was made, changed or removed. It takes seconds where there are
        millions of files."""
        seen = changes = 0
        for found in self._found():
            seen += 1
            # Not the newest time of them: after a clock was set back, what is written looks old for a long time.
            changes += hash(found)
        return seen, changes

    def _found(self) -> Iterator[tuple[bytes, int, int]]:
        for tree in dict.fromkeys(tree for tree in self.trees if tree != self.workspace):
            listed = _listed(tree)
            yield from _walked(os.fsencode(tree)) if listed is None else _looked_at(os.fsencode(tree), listed)
        if self.workspace is not None:  # most are where git does not look
            yield from _walked(os.fsencode(self.workspace))


def _listed(tree: str) -> list[bytes] | None:
    """The paths that git knows of below a directory, or would if they were added; None where there is no git."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        told = subprocess.run(  # noqa: S603 - words of ours
            _LIST,
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LIST_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.split(b"\0")[:-1]


def _looked_at(tree: bytes, paths: Iterable[bytes]) -> Iterator[tuple[bytes, int, int]]:
    for path in paths:
        *around, name = path.removesuffix(b"/").split(b"/")
        if _OURS in around or name == _OURS or _SIGNAL.fullmatch(name):
            continue
        whole = os.path.join(tree, path)
        try:
            found = os.lstat(whole)
        except OSError:  # removed, and not yet for git
            yield path, -1, -1
            continue
        if path.endswith(b"/"):  # a repository of its own inside
            yield from _walked(whole)
        else:
            yield path, found.st_mtime_ns, found.st_size


def _walked(directory: bytes) -> Iterator[tuple[bytes, int, int]]:
    waiting = [directory]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.name in _NOT_WORK or _SIGNAL.fullmatch(entry.name):
                continue
            try:
                # Only what is in a directory counts: its own time also changes by our files.
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield entry.path, found.st_mtime_ns, found.st_size
