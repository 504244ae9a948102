"""After a crash: what a dead owner left running is found, by what was recorded and by its marks, and ended."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import anyio

from sidecar.agents import kill, lineage
from sidecar.agents.lineage import Identity, Lineage
from sidecar.agents.tree import SharedLook, Tree

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.agents.containment import Containment
    from sidecar.agents.lineage import ProcessTable, Snapshot
    from sidecar.model.agent import AgentRecord, EndedProcess

_GRACE_S = 2.0


class Remains:
    """A tree without an owner: nobody holds its pipes, so only signals reach it."""

    def __init__(self, shared: SharedLook, lineage: Lineage, group: str | None, grace_s: float) -> None:
        self.tree = Tree(shared, lineage, group)
        self.root = Identity(0, 0.0)  # nobody knows whether it is still there: the ladder's look tells
        self.program = ""
        self._kill_at = time.monotonic() + grace_s

    async def interrupt(self) -> bool:
        """There is no way to it any more."""
        return False

    def close_stdin(self) -> bool:
        """Its pipe went with the owner."""
        return False

    def kill_at(self) -> float:
        """When the last rung is due."""
        return self._kill_at

    async def news(self, within_s: float) -> None:
        """Nobody tells of it: only looking does."""
        await anyio.sleep(within_s)


async def reap(
    records: Iterable[AgentRecord], project: str, containment: Containment, kill_after_s: float = _GRACE_S
) -> tuple[list[EndedProcess], int]:
    """End what dead owners left in a project: who was ended, and how many live on in spite of it.

    A record, or a mark in a process, counts only if its owner is gone; a pid counts only with its start time and boot.
    """
    shared = SharedLook(containment.table())
    table = await shared.snapshot()
    left: list[Remains] = []
    runs: dict[int, str | None] = {}
    found: set[str] = set()
    untouchable = _ourselves(table)
    for record in records:
        if record.boot_id == lineage.boot_id() and _is_orphaned(record.marker, table):
            root = Identity(record.pid, record.started)
            traces = Lineage(record.marker, record.tag, root, excluded_pids=untouchable)
            found.add(record.marker)
            left.append(Remains(shared, traces, record.group, kill_after_s))
            runs[id(left[-1])] = record.run_id
    unrecorded = _unrecorded(table, shared.table, project) - found
    left += [Remains(shared, Lineage(token, 0, excluded_pids=untouchable), None, kill_after_s) for token in unrecorded]
    ended: list[EndedProcess] = []
    survivors = 0

    async def end(remains: Remains) -> None:
        nonlocal survivors
        ledger = await kill.climb(remains, polite=False)
        ended.extend(ledger.processes(runs.get(id(remains))))
        survivors += len(ledger.living)
        remains.tree.forget()

    async with anyio.create_task_group() as tasks:
        for remains in left:
            tasks.start_soon(end, remains)
    return ended, survivors


def _is_orphaned(token: str, table: Snapshot) -> bool:
    """Whether the owner that a token names is gone. A token of another boot or pid namespace tells us nothing."""
    owner = lineage.owner_in(token)
    if owner is None or owner.pid_namespace != lineage.pid_namespace():
        return False
    row = table.rows.get(owner.pid)
    return row is None or row.zombie or row.started != owner.started


def _unrecorded(table: Snapshot, source: ProcessTable, project: str) -> set[str]:
    """Tokens of dead owners on processes of this project."""
    tokens = {token for token in table.markers if _is_orphaned(token, table)}
    return {token for token in tokens if any(_project_of(source, pid) == project for pid in table.markers[token])}


def _project_of(source: ProcessTable, pid: int) -> str | None:
    return lineage.variable_in(source.environ(pid), "SIDECAR_PROJECT")


def _ourselves(table: Snapshot) -> frozenset[int]:
    """This process and its ancestors: a sidecar started from an orphan's shell does not end its own shell."""
    pids = {1}
    pid = os.getpid()
    while pid not in pids and pid in table.rows:
        pids.add(pid)
        pid = table.rows[pid].parent
    return frozenset(pids)
