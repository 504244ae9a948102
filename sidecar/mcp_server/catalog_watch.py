"""Notices that workflows, agents or prompts appeared, changed or went, by looking at their files every second.

A look is a few dozen `stat`s. That is late by a second at most, and cannot miss anything on any file system.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import anyio

from sidecar.catalog import naming

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.mcp_server.connections import Lists

TICK_S = 1.0
_KINDS: dict[str, set[Lists]] = {"workflows": {"tools"}, "agents": {"tools"}, "prompts": {"tools", "prompts"}}
_SUFFIXES = (".yaml", ".yml", ".md")
_Look = dict[str, frozenset[tuple[str, int, int, int]]]


async def watch(root: str, changed: Callable[[set[Lists]], None], tick_s: float = TICK_S) -> None:
    """Call back with the lists that are different now, until cancelled."""
    before = look(root)
    while True:
        await anyio.sleep(tick_s)
        now = look(root)
        different = {name for kind, lists in _KINDS.items() if now[kind] != before[kind] for name in lists}
        before = now
        if different:
            changed(different)


def look(root: str) -> _Look:
    """Every file that may be a definition, by kind, with enough to tell whether it is another."""
    return {kind: frozenset(_files(root, kind)) for kind in _KINDS}


def _files(root: str, kind: str) -> list[tuple[str, int, int, int]]:
    found = []
    for _, directory in naming.directories(root, kind):  # what is built in changes with the program only
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if not entry.name.endswith(_SUFFIXES):
                        continue
                    try:
                        status = entry.stat()
                    except OSError:  # gone meanwhile, or a link to nowhere
                        continue
                    found.append((entry.path, status.st_ino, status.st_mtime_ns, status.st_size))
        except OSError:
            continue
    return found
