"""The ladder: ask, close stdin, SIGTERM, SIGKILL. A rung follows because processes live, and for no other reason."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import anyio

from sidecar.model.agent import EndedProcess, Rung

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.agents.lineage import Identity, Row
    from sidecar.agents.tree import Tree

KILL_AFTER_S = 5.0
_LAST_RUNG_S = 10.0  # a killed process is gone in milliseconds, unless the kernel or the disk is stuck
_INTERRUPT_S = 1.0
_STDIN_S = 0.05
_SHORTEST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.064  # the shortest, doubled: all pauses end on one beat
_START_TIME_ERROR_S = 0.02  # start times are counted in hundredths of a second, and rounded down


class Subject(Protocol):
    """What the ladder needs to know of whom it ends."""

    tree: Tree
    root: Identity
    program: str

    async def interrupt(self) -> bool:
        """The agent's own way; whether there is one."""

    def close_stdin(self) -> bool:
        """Close stdin; whether it was open."""

    def kill_at(self) -> float:
        """When (monotonic) the last rung is due. A second, more urgent request may bring it forward."""

    async def news(self, within_s: float) -> None:
        """Wait for word of this agent, for so long at most."""


@dataclass(slots=True)
class _Seen:
    program: str
    started_at: str
    rung: Rung
    dead_after_s: float | None = None


class Ledger:
    """Who was seen, which rung each one needed, and when it was gone."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._begun = time.monotonic()
        self._seen: dict[Identity, _Seen] = {}
        self.reached: Rung = "exited"
        self.living: list[Row] = []

    async def look(self, *, at_once: bool = False) -> None:
        """A fresh reading, noted."""
        self.note(await self._tree.living(at_once=at_once))

    def note(self, living: list[Row]) -> None:
        """Who a reading found."""
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
        """Somebody belongs to the tree."""
        born = datetime.fromtimestamp(self._tree.epoch_s(identity), UTC)
        name = self._tree.program(identity.pid) if program is None else program
        started_at = born.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._seen[identity] = _Seen(name, started_at, self.reached)

    def sent(self, identity: Identity, rung: Rung) -> None:
        """A rung was tried on somebody."""
        self._seen[identity].rung = rung

    def was_sent(self, identity: Identity, rung: Rung) -> bool:
        """Whether that rung was tried on it."""
        return self._seen[identity].rung == rung

    def reach(self, rung: Rung) -> None:
        """Everybody alive stands on this rung."""
        self.reached = rung
        for row in self.living:
            self._seen[row.identity].rung = rung

    def processes(self, run_id: str | None) -> tuple[EndedProcess, ...]:
        """The rows of the receipt: all who are gone."""
        return tuple(
            EndedProcess(run_id, identity.pid, seen.started_at, seen.program, seen.rung, round(1000 * dead_s, 1))
            for identity, seen in self._seen.items()
            if (dead_s := seen.dead_after_s) is not None
        )


async def climb(subject: Subject, *, polite: bool) -> Ledger:
    """End the whole tree; returns when a reading of the process table found it empty, or the last rung's time is up."""
    ledger = Ledger(subject.tree)
    with anyio.CancelScope(shield=True):
        if subject.root.pid:
            ledger.add(subject.root, subject.program)
        # A look at a crowded table takes its time, and that is not to come out of the agent's grace: as long as the
        # agent itself lives, it is asked first, and the rest of the tree is looked for then.
        ledger.note(subject.tree.still([subject.root]))
        if not ledger.living:
            await ledger.look()
        if polite:
            await _ask(subject, ledger)
        await _terminate(subject, ledger)
        if ledger.living:
            await _kill(subject, ledger)
    return ledger


async def _ask(subject: Subject, ledger: Ledger) -> None:
    """The agent's own way, then the end of its input. Both take their time out of the grace."""
    if ledger.living:
        limit_s = min(_INTERRUPT_S, max(subject.kill_at() - time.monotonic(), 0))
        asked = True
        with anyio.move_on_after(limit_s):
            try:
                asked = await subject.interrupt()
            except Exception:  # noqa: S110 - whatever an adapter's courtesy does, the next rung follows
                pass
        if asked:
            await ledger.look()
    if subject.close_stdin() and ledger.living:
        ledger.reach("stdin")
        until = min(time.monotonic() + _STDIN_S, subject.kill_at())
        await _while_living(subject, ledger, lambda: until)


async def _terminate(subject: Subject, ledger: Ledger) -> None:
    """SIGTERM to everybody, until nobody lives or the grace is over.

    Who is born after that is left alone as long as the agent itself lives: its handler may clean up through others.
    """
    asked_at = time.monotonic()

    def ask_to_leave() -> None:
        cleans_up = any(row.identity == subject.root for row in ledger.living)
        for row in ledger.living:
            # By its age, for which the wall clock is asked at one moment only: it may be set meanwhile.
            age_s = time.time() - subject.tree.epoch_s(row.identity)
            is_new = age_s < time.monotonic() - asked_at + _START_TIME_ERROR_S
            if not ledger.was_sent(row.identity, "term") and not (
                cleans_up and is_new and row.identity != subject.root
            ):
                ledger.sent(row.identity, "term")
                subject.tree.send(row.identity, signal.SIGTERM)
                # A stopped process keeps the signal pending until it goes on.
                subject.tree.send(row.identity, signal.SIGCONT)

    await _while_living(subject, ledger, subject.kill_at, ask_to_leave)


async def _kill(subject: Subject, ledger: Ledger) -> None:
    """SIGKILL, and look again until nothing is left."""
    deadline = time.monotonic() + _LAST_RUNG_S
    pause_s = _SHORTEST_PAUSE_S
    while ledger.living and time.monotonic() < deadline:
        # A look is old by the time it is done: who left meanwhile was not killed.
        ledger.note(subject.tree.still([row.identity for row in ledger.living]))
        ledger.reach("kill")
        if subject.tree.kill(ledger.living):
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        # Between stopping and killing every moment counts; and what is killed takes no time from anybody.
        await ledger.look(at_once=True)


async def _while_living(
    subject: Subject, ledger: Ledger, until: Callable[[], float], act: Callable[[], None] = lambda: None
) -> None:
    pause_s = _SHORTEST_PAUSE_S
    while ledger.living:
        act()
        left_s = until() - time.monotonic()
        if left_s <= 0:
            return
        # On a common beat, not each at its own time: so those who are ended together look together.
        await subject.news(min(pause_s - time.monotonic() % pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        await ledger.look()
