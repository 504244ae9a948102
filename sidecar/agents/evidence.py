"""Signs of life that an agent does not print: CPU time of its tree, changes in the files where it works."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

# Enough to see somebody at work, few enough to look at every second. What is left out is found by the other signs.
_ENTRIES = 4000
_NOT_WORK = frozenset({".git", "node_modules", ".venv", "__pycache__", ".swissarmyhammer"})


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


def files_token(directory: str) -> tuple[int, int]:
    """Something that differs when a file near the top of the directory was made, changed or removed."""
    seen = times = 0
    waiting = deque([directory])
    while waiting and seen < _ENTRIES:
        try:
            entries = list(os.scandir(waiting.popleft()))
        except OSError:
            continue
        for entry in entries:
            seen += 1
            try:
                # Not the newest of them: after a clock was set back, what is written looks old for a long time.
                times += entry.stat(follow_symlinks=False).st_mtime_ns
                if entry.is_dir(follow_symlinks=False) and entry.name not in _NOT_WORK:
                    waiting.append(entry.path)
            except OSError:
                continue
    return seen, times
