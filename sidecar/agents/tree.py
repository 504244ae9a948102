"""An agent's process tree as the ladder sees it: who lives now, and ways to signal them; one look serves everybody."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint

from sidecar.agents import cgroup
from sidecar.agents.lineage import EMPTY_SNAPSHOTS, KillRounds

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from sidecar.agents.lineage import Identity, Lineage, ProcessTable, Row, Snapshot

_DYING_S = 0.001
_LONG_DYING_S = 1.0


class SharedLook:
    """The process table of one owner: all who want a look at the same time get the same one."""

    def __init__(self, table: ProcessTable) -> None:
        self.table = table
        self._next: _Pending | None = None
        self._cost_s = 0.0
        self._last = 0.0
        self.looks = 0

    async def snapshot(self, *, at_once: bool = False) -> Snapshot:
        """A reading that was begun after this call; `at_once`: without the rest that spares the machine."""
        pending = self._next
        if pending is not None:
            if at_once:
                pending.hurry.set()
            await pending.done.wait()
            assert pending.table is not None
            return pending.table
        self._next = pending = _Pending()
        with anyio.CancelScope(shield=True):  # others wait for this look: whoever began it sees it through
            await checkpoint()
            # A crowded table is not read all the time: waiting for processes to leave takes half the time at most.
            rest_s = self._last + self._cost_s - time.monotonic()
            if rest_s > 0 and not at_once:
                with anyio.move_on_after(rest_s):
                    await pending.hurry.wait()
        self._next = None
        before = time.monotonic()
        try:
            pending.table = self.table.snapshot()
        finally:
            self._last = time.monotonic()
            self._cost_s = self._last - before
            self.looks += 1
            pending.done.set()
        return pending.table


class _Pending:
    def __init__(self) -> None:
        self.done = anyio.Event()
        self.hurry = anyio.Event()
        self.table: Snapshot | None = None


class Tree:
    """One agent's processes."""

    def __init__(
        self, shared: SharedLook, lineage: Lineage, group: str | None, adopter: Callable[[], int | None] = lambda: None
    ) -> None:
        self._shared = shared
        self._adopter = adopter
        self._lineage = lineage
        self._group = group
        self._killing = KillRounds(shared.table.send)

    async def living(self, *, at_once: bool = False) -> list[Row]:
        """A fresh reading of who lives; `at_once`: without the rest that spares the machine."""
        deadline = time.monotonic() + _LONG_DYING_S
        while self._group is not None and cgroup.is_populated(self._group) and time.monotonic() < deadline:
            rows = [self._shared.table.row(pid) for pid in cgroup.pids(self._group)]
            members = [row for row in rows if row is not None and not row.zombie]
            if members:
                self._lineage.known |= {row.identity for row in members}
                return members
            await anyio.sleep(_DYING_S)  # counted, yet no longer listed: somebody is between life and death
        # The group is empty, or does not tell who is in it. Only now the whole table is read: did somebody leave it?
        for _ in range(1 if self._group else EMPTY_SNAPSHOTS):
            table = await self._shared.snapshot(at_once=at_once)
            # An orphan that dropped every mark is somebody's: of the only agent, where there is only one.
            self._lineage.ancestor = self._adopter()
            if members := self._lineage.members(table):
                return members
        return []

    def still(self, identities: list[Identity]) -> list[Row]:
        """Who of these lives at this moment, told without a look at the whole table."""
        rows = [self._shared.table.row(identity.pid) for identity in identities]
        return [row for row in rows if row is not None and not row.zombie and row.identity in identities]

    def is_surely_empty(self, *, orphans: bool) -> bool:
        """Whether the agent's own exit left nobody, told without a look at the table."""
        return not orphans and not (self._group and cgroup.is_populated(self._group))

    def send(self, identity: Identity, number: signal.Signals) -> bool:
        """Signal one of them."""
        return self._shared.table.send(identity, number)

    def kill(self, living: list[Row]) -> bool:
        """One round of killing; True where SIGKILL was sent, False where they are only held still for the next."""
        killed = self._group is not None and cgroup.kill(self._group)
        return self._killing.next_round({row.identity for row in living}) or killed

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
        """When a process was born, on the clock that people use."""
        return self._shared.table.epoch_s(identity.started)

    def forget(self) -> bool:
        """The tree is empty: its group goes; False where it cannot."""
        return self._group is None or cgroup.remove(self._group)
