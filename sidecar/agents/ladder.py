"""Ends a process tree by the ladder (interrupt, close stdin, SIGTERM, SIGKILL) and proves that it is empty.

A rung follows because processes live, and for no other reason. `reap` does the same after a crash, for what dead owners
left.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint

from sidecar.agents import cgroup
from sidecar.agents.lineage import (
    EMPTY_SNAPSHOTS,
    Identity,
    KillRounds,
    Lineage,
    boot_id,
    owner_in,
    pid_namespace,
    variable_in,
)
from sidecar.model.agent import RUNGS, EndedProcess, Rung

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sidecar.agents.containment import Containment
    from sidecar.agents.lineage import ProcessTable, Row, Snapshot
    from sidecar.model.agent import AgentRecord

KILL_AFTER_S = 5.0
_LAST_RUNG_S = 10.0  # a killed process is gone in milliseconds, unless the kernel or the disk is stuck
_INTERRUPT_S = 1.0
_STDIN_S = 0.05
_SHORTEST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.064  # the shortest, doubled: all pauses end on one beat
_START_TIME_ERROR_S = 0.02  # start times are counted in hundredths of a second, and rounded down


class Endable:
    """A process tree to end. By itself one whose owner is dead: its pipes are closed, so only signals reach it."""

    def __init__(self, tree: Tree, kill_at: float) -> None:
        self.tree = tree
        self.root = Identity(0, 0.0)  # pid 0: it is not known whether the command itself still runs
        self.program = ""
        self.kill_at = kill_at  # when (monotonic) the last rung is due; a more urgent request may bring it forward

    async def interrupt(self) -> bool:
        """Interrupt it in the agent's own way; whether there is one."""
        return False

    def close_stdin(self) -> bool:
        """Close its stdin; whether it was open."""
        return False

    async def wait_news(self, within_s: float) -> None:
        """Wait for news of it, for so long at most."""
        await anyio.sleep(within_s)


async def end_tree(endable: Endable, *, polite: bool) -> Casualties:
    """End the whole tree. Returns when a reading of the process table found it empty, or the last rung's time is up.

    `polite`: with the first two rungs, for an agent that runs.
    """
    casualties = Casualties(endable.tree)
    with anyio.CancelScope(shield=True):
        if endable.root.pid:
            casualties.add(endable.root, endable.program)
        # A snapshot of a crowded table takes its time, and that is not to come out of the agent's grace: as long as the
        # agent itself lives, it is asked first, and the rest of the tree is looked for then.
        casualties.record(endable.tree.still_living([endable.root]))
        if not casualties.living:
            await casualties.refresh()
        if polite:
            await _ask(endable, casualties)
        await _terminate(endable, casualties)
        if casualties.living:
            await _kill(endable, casualties)
    return casualties


def casualties_of_clean_exit(endable: Endable, *, orphans: bool) -> Casualties | None:
    """The casualties of a command that exited and left no process; None where the table has to be read.

    `orphans`: whether the sentinel has adopted processes that live.
    """
    if orphans or not endable.tree.has_empty_group():
        return None
    casualties = Casualties(endable.tree)
    casualties.add(endable.root, endable.program)
    casualties.record([])
    return casualties


async def _ask(endable: Endable, casualties: Casualties) -> None:
    """The agent's own way, then the end of its input. Both take their time out of the grace."""
    if casualties.living:
        limit_s = min(_INTERRUPT_S, max(endable.kill_at - time.monotonic(), 0))
        asked = True
        with anyio.move_on_after(limit_s):
            try:
                asked = await endable.interrupt()
            except Exception:  # noqa: S110 - whatever an adapter's interrupt does, the next rung follows
                pass
        if asked:
            await casualties.refresh()
    if endable.close_stdin() and casualties.living:
        casualties.reach("stdin")
        until = time.monotonic() + _STDIN_S
        await _while_living(endable, casualties, until_s=until)


async def _terminate(endable: Endable, casualties: Casualties) -> None:
    """SIGTERM to each process, until none lives or the grace is over.

    A process born after that is not signalled as long as the agent itself lives: its handler may clean up through
    others.
    """
    asked_at = time.monotonic()

    def ask_to_leave() -> None:
        cleans_up = any(row.identity == endable.root for row in casualties.living)
        for row in casualties.living:
            # By its age, for which the wall clock is read at one moment only: it may be set meanwhile.
            age_s = time.time() - endable.tree.epoch_s(row.identity)
            is_new = age_s < time.monotonic() - asked_at + _START_TIME_ERROR_S
            if not casualties.was_sent(row.identity, "term") and not (
                cleans_up and is_new and row.identity != endable.root
            ):
                casualties.sent(row.identity, "term")
                endable.tree.send(row.identity, signal.SIGTERM)
                # A stopped process keeps the signal pending until it goes on.
                endable.tree.send(row.identity, signal.SIGCONT)

    await _while_living(endable, casualties, ask_to_leave)


async def _kill(endable: Endable, casualties: Casualties) -> None:
    """SIGKILL, and read the table again until nothing is left."""
    deadline = time.monotonic() + _LAST_RUNG_S
    pause_s = _SHORTEST_PAUSE_S
    while casualties.living and time.monotonic() < deadline:
        # A snapshot is old by the time it is done: who left meanwhile was not killed.
        casualties.record(endable.tree.still_living([row.identity for row in casualties.living]))
        casualties.reach("kill")
        if endable.tree.kill(casualties.living):
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        # Between stopping and killing every moment counts; and what is killed takes no time from anybody.
        await casualties.refresh(at_once=True)


async def _while_living(
    endable: Endable,
    casualties: Casualties,
    act: Callable[[], None] = lambda: None,
    until_s: float = float("inf"),
) -> None:
    pause_s = _SHORTEST_PAUSE_S
    while casualties.living:
        act()
        left_s = min(until_s, endable.kill_at) - time.monotonic()
        if left_s <= 0:
            return
        # On a common beat, not each at its own time: so those that are ended together read the table together.
        await endable.wait_news(min(pause_s - time.monotonic() % pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        await casualties.refresh()


@dataclass(slots=True)
class _Seen:
    program: str
    started_at: str
    rung: Rung
    dead_after_s: float | None = None


class Casualties:
    """The processes of a tree that is being ended: which rung each one needed, and when it was gone."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._begun = time.monotonic()
        self._seen: dict[Identity, _Seen] = {}
        self._reached: Rung = "exited"
        self.living: list[Row] = []

    async def refresh(self, *, at_once: bool = False) -> None:
        """Record a fresh reading of the tree."""
        self.record(await self._tree.living(at_once=at_once))

    def record(self, living: list[Row]) -> None:
        """Record who a reading found."""
        self.living = living
        now = time.monotonic() - self._begun
        present = {row.identity for row in self.living}
        for row in self.living:
            if row.identity not in self._seen:
                self.add(row.identity)
        for identity, seen in self._seen.items():
            if seen.dead_after_s is None and identity not in present:
                seen.dead_after_s = now

    def add(self, identity: Identity, program: str | None = None) -> None:
        """A process belongs to the tree."""
        born = datetime.fromtimestamp(self._tree.epoch_s(identity), UTC)
        name = self._tree.program(identity.pid) if program is None else program
        started_at = born.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._seen[identity] = _Seen(name, started_at, self._reached)

    def sent(self, identity: Identity, rung: Rung) -> None:
        """A rung was tried on a process."""
        self._seen[identity].rung = rung

    def was_sent(self, identity: Identity, rung: Rung) -> bool:
        """Whether that rung was tried on it."""
        return self._seen[identity].rung == rung

    def reach(self, rung: Rung) -> None:
        """All that live are on this rung now."""
        self._reached = rung
        for row in self.living:
            self._seen[row.identity].rung = rung

    def processes(self, run_id: str | None) -> tuple[EndedProcess, ...]:
        """The rows of the receipt: all that are gone."""
        return tuple(
            [
                EndedProcess(run_id, identity.pid, seen.started_at, seen.program, seen.rung, round(1000 * dead_s, 1))
                for identity, seen in self._seen.items()
                if (dead_s := seen.dead_after_s) is not None
            ]
        )

    def highest_rung(self) -> Rung:
        """The last rung that any of them needed."""
        if self.living:
            return "kill"
        return max([seen.rung for seen in self._seen.values()], key=RUNGS.index, default="exited")


# --- a tree's processes


_DYING_S = 0.001
_LONG_DYING_S = 1.0


class SharedTable:
    """The process table of one owner: all that ask for a snapshot at the same time get the same one."""

    def __init__(self, table: ProcessTable) -> None:
        self.table = table
        self._next: _Pending | None = None
        self._cost_s = 0.0
        self._last = 0.0
        self.snapshots = 0

    async def snapshot(self, *, at_once: bool = False) -> Snapshot:
        """A reading that was begun after this call; `at_once`: without the pause that spares the machine."""
        pending = self._next
        if pending is not None:
            if at_once:
                pending.hurry.set()
            await pending.done.wait()
            assert pending.snapshot is not None
            return pending.snapshot
        self._next = pending = _Pending()
        with anyio.CancelScope(shield=True):  # others wait for this snapshot: the task that began it completes it
            await checkpoint()
            # A crowded table is not read all the time: waiting for processes to leave takes half the time at most.
            rest_s = self._last + self._cost_s - time.monotonic()
            if rest_s > 0 and not at_once:
                with anyio.move_on_after(rest_s):
                    await pending.hurry.wait()
        self._next = None
        before = time.monotonic()
        try:
            pending.snapshot = self.table.snapshot()
        finally:
            self._last = time.monotonic()
            self._cost_s = self._last - before
            self.snapshots += 1
            pending.done.set()
        return pending.snapshot


class _Pending:
    def __init__(self) -> None:
        self.done = anyio.Event()
        self.hurry = anyio.Event()
        self.snapshot: Snapshot | None = None


class Tree:
    """One agent's processes: who lives now, and ways to signal them."""

    def __init__(
        self, shared: SharedTable, lineage: Lineage, group: str | None, adopter: Callable[[], int | None] = lambda: None
    ) -> None:
        """`adopter`: the sub-reaper, while all that it adopted must come from this agent."""
        self._shared = shared
        self._adopter = adopter
        self._lineage = lineage
        self._group = group

    @cached_property
    def _rounds(self) -> KillRounds:
        return KillRounds(self._shared.table.send)

    async def living(self, *, at_once: bool = False) -> list[Row]:
        """A fresh reading of who lives; `at_once`: without the pause that spares the machine."""
        deadline = time.monotonic() + _LONG_DYING_S
        while self._group is not None and cgroup.is_populated(self._group) and time.monotonic() < deadline:
            rows = [self._shared.table.row(pid) for pid in cgroup.pids(self._group)]
            members = [row for row in rows if row is not None and not row.zombie]
            if members:
                self._lineage.known |= {row.identity for row in members}
                return members
            await anyio.sleep(_DYING_S)  # counted, yet no longer listed: a process is dying
        # The group is empty, or does not show who is in it. Only now the whole table is read: did a process leave it?
        for _ in range(1 if self._group else EMPTY_SNAPSHOTS):
            snapshot = await self._shared.snapshot(at_once=at_once)
            # An orphan that dropped every mark has an agent: the only one, where there is only one.
            self._lineage.ancestor = self._adopter()
            if members := self._lineage.members(snapshot):
                return members
        return []

    def still_living(self, identities: list[Identity]) -> list[Row]:
        """Which of these live at this moment, known without a snapshot of the whole table."""
        rows = [self._shared.table.row(identity.pid) for identity in identities]
        return [row for row in rows if row is not None and not row.zombie and row.identity in identities]

    def has_empty_group(self) -> bool:
        """Whether its control group, where it has one, is empty."""
        return self._group is None or not cgroup.is_populated(self._group)

    def send(self, identity: Identity, number: signal.Signals) -> bool:
        """Signal one of them."""
        return self._shared.table.send(identity, number)

    def kill(self, living: list[Row]) -> bool:
        """One round of killing; True where SIGKILL was sent, False where they are only stopped for the next."""
        killed = self._group is not None and cgroup.kill(self._group)
        return self._rounds.next_round({row.identity for row in living}) or killed

    def kill_now(self) -> int:
        """Kill without waiting, for when the ladder itself broke; how many a last reading still found."""
        members = self._lineage.members(self._shared.table.snapshot())
        while members and not self.kill(members):
            members = self._lineage.members(self._shared.table.snapshot())
        return len(self._lineage.members(self._shared.table.snapshot()))

    def program(self, pid: int) -> str:
        """The name of a process's program."""
        return self._shared.table.program(pid)

    def epoch_s(self, identity: Identity) -> float:
        """When a process was born, in seconds since the epoch."""
        return self._shared.table.epoch_s(identity.started)

    def forget(self) -> bool:
        """The tree is empty: its group goes; False where it cannot."""
        return self._group is None or cgroup.remove(self._group)


# --- after a crash


_REAP_GRACE_S = 2.0


async def reap(
    records: Iterable[AgentRecord], project: str, containment: Containment, kill_after_s: float = _REAP_GRACE_S
) -> tuple[list[EndedProcess], int]:
    """End what dead owners left running in a project: the ended processes, and how many live on in spite of it.

    A record, or a marker in a process, counts only if its owner is gone; a pid only with its start time and boot.
    """
    shared = SharedTable(containment.table())
    snapshot = await shared.snapshot()
    ourselves = _ourselves(snapshot)
    orphaned: list[tuple[str | None, Lineage, str | None]] = []  # run, lineage, cgroup
    found: set[str] = set()
    for record in records:
        if record.boot_id == boot_id() and _is_orphaned(record.marker, snapshot):
            found.add(record.marker)
            root = Identity(record.pid, record.started)
            lineage = Lineage(record.marker, record.tag, root, excluded_pids=ourselves)
            orphaned.append((record.run_id, lineage, record.group))
    unrecorded = _unrecorded(snapshot, shared.table, project) - found
    orphaned += [(None, Lineage(marker, 0, excluded_pids=ourselves), None) for marker in unrecorded]
    ended: list[EndedProcess] = []
    survivors = 0

    async def end(run_id: str | None, lineage: Lineage, group: str | None) -> None:
        nonlocal survivors
        tree = Tree(shared, lineage, group)
        casualties = await end_tree(Endable(tree, time.monotonic() + kill_after_s), polite=False)
        ended.extend(casualties.processes(run_id))
        survivors += len(casualties.living)
        tree.forget()

    async with anyio.create_task_group() as tasks:
        for one in orphaned:
            tasks.start_soon(end, *one)
    return ended, survivors


def _is_orphaned(marker: str, snapshot: Snapshot) -> bool:
    """Whether the owner that a marker names is gone. A marker of another boot or pid namespace says nothing here."""
    owner = owner_in(marker)
    if owner is None or owner.pid_namespace != pid_namespace():
        return False
    row = snapshot.rows.get(owner.pid)
    return row is None or row.zombie or row.started != owner.started


def _unrecorded(snapshot: Snapshot, table: ProcessTable, project: str) -> set[str]:
    """Markers of dead owners on processes of this project."""
    return {
        marker
        for marker, pids in snapshot.markers.items()
        if _is_orphaned(marker, snapshot)
        and any(variable_in(table.environ(pid), "SIDECAR_PROJECT") == project for pid in pids)
    }


def _ourselves(snapshot: Snapshot) -> frozenset[int]:
    """This process and its ancestors: a sidecar started from an orphan's shell does not end its own shell."""
    pids = {1}
    pid = os.getpid()
    while pid not in pids and pid in snapshot.rows:
        pids.add(pid)
        pid = snapshot.rows[pid].parent
    return frozenset(pids)
