"""Which processes belong to an agent, by every trace that they cannot all lose, and how such a set is killed.

Standard library only: owner and sentinel sweep by the same rules.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sidecar.agents.proc_table import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sidecar.agents.proc_table import Row, Table

_ROUNDS_OF_STOPPING = 50
# A look lists the pids first and reads each one after: who is listed can fork and be gone before it is read, and the
# child is in no list. Only a look that finds nobody after one that found nobody proves that nobody is there.
EMPTY_LOOKS = 2


@dataclass(slots=True)
class Lineage:
    """Everything that can lead from a process back to its agent."""

    marker: str
    tag: int
    root: Identity | None = None
    ancestor: int | None = None  # a sub-reaper of which every descendant counts
    known: set[Identity] = field(default_factory=set)  # who was seen to belong before it lost its traces
    strangers: frozenset[int] = frozenset()  # never members: the owner, the sentinel
    outside: frozenset[int] = frozenset()  # their sessions

    def members(self, table: Table) -> list[Row]:
        """Who belongs and lives: marked, or known, or born in the tree, or in a session that was made in the tree."""
        found: dict[int, Row] = {}
        todo = self._seeds(table)
        sessions: set[int] = {0, *self.outside}
        while todo:
            row = table.rows.get(todo.pop())
            if row is None or row.pid in found or row.pid in self.strangers:
                continue
            found[row.pid] = row
            todo += table.children.get(row.pid, ())
            # A process cannot join a session, only make one: everybody in a member's session is a member.
            if row.session not in sessions:
                sessions.add(row.session)
                todo += table.sessions.get(row.session, ())
        living = [row for row in found.values() if not row.zombie]
        self.known = {row.identity for row in living}
        return living

    def _seeds(self, table: Table) -> list[int]:
        seeds = [identity.pid for identity in self.known if table.has(identity)]
        if self.marker:
            seeds += table.tokens.get(self.marker, ())
        if self.tag:
            seeds += table.tags.get(self.tag, ())
        if self.root is not None and table.has(self.root):
            seeds.append(self.root.pid)
        if self.ancestor is not None:
            seeds += table.children.get(self.ancestor, ())
        return seeds


class Killing:
    """Stop until nobody new turns up, then kill: processes that respawn each other have no moment to do it in."""

    def __init__(self, send: Callable[[Identity, signal.Signals], bool]) -> None:
        self._send = send
        self._stopped: set[Identity] = set()
        self._rounds = 0

    def round(self, living: Collection[Identity]) -> bool:
        """One turn, with who a fresh look found alive; True where they were killed and not only stopped."""
        fresh = set(living) - self._stopped
        self._rounds += 1
        # Somebody who forks faster than we look is not waited out for ever.
        if fresh and self._rounds % _ROUNDS_OF_STOPPING:
            for identity in fresh:
                self._send(identity, signal.SIGSTOP)
            self._stopped |= fresh
            return False
        for identity in living:
            self._send(identity, signal.SIGKILL)
        return True
