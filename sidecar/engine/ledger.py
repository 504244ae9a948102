"""The journal of one run as its interpreter writes it: what has no effect outside waits for what has.

A condition that was evaluated twice did no harm, so such entries are kept until the next effect, some number of them,
or a moment, whatever comes first. What goes out into the world is on the disk before it goes, and again when it is
done; where one effect follows the other at once, one transaction says both. Whoever watches the run is told after the
journal was.

A journal that another process has locked keeps nobody from going on: what cannot be written now is kept, in order, and
written when the lock is free. Only what must not go on without it (the next effect, a checkpoint, the end) waits.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from sidecar.errors import JournalLocked, StoreError
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent
from sidecar.store.db import AGAIN_S, TRY_S
from sidecar.store.journal import Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sidecar.signals.files import Signal
    from sidecar.store.checkpoints import Checkpoints
    from sidecar.store.db import Database
    from sidecar.store.journal import Journal


_MOST_WAITING = 256
_LONGEST_WAIT_S = 0.1
_TELL_AFTER_S = 2.0  # of a locked journal

Result = TypeVar("Result")


class Ledger:
    """Entries of one run, in order. What is awaited has kept its promise when it returns, or raised StoreError."""

    def __init__(
        self,
        database: Database,
        journal: Journal,
        checkpoints: Checkpoints,
        run_id: str,
        tell: Callable[[RunEvent], None],
        *,
        seq: int = 0,
    ) -> None:
        self._db = database
        self._journal = journal
        self._checkpoints = checkpoints
        self._steps = Steps(database)
        self.keep_trail: Callable[[], None] = lambda: None  # journals how fields were computed since the last call
        self._tell = tell
        self.run_id = run_id
        self.start = journal.run(run_id).start
        self.seq = seq  # of the last event in the journal
        self.since_checkpoint = 0
        self._waiting: list[tuple[str | None, Any]] = []
        self._owed: list[Callable[[], None]] = []  # what else goes into the next transaction: effects that are over
        self._since = 0.0
        self._locked_since: float | None = None  # when another process was found to have the journal locked
        self._locked_told = False
        self._behind = anyio.Event()
        self.patience_s = math.inf  # how long a journal that another process has locked is waited for
        self.lost: StoreError | None = None  # why nothing is written any more

    def note(self, kind: str, /, **data: Any) -> None:
        """Something happened that may be journalled a moment later."""
        self._add((kind, data))

    def wrote(self, path: tuple[str, ...], changes: list[Any]) -> None:
        """A transaction of a state; it belongs to the event that is noted next."""
        self._add((None, (path, changes)))

    def attempts(self, key: str) -> int:
        """How many attempts at a step there were."""
        last = self._steps.last(self.run_id, key)
        return last.attempt if last else 0

    async def begin(self, key: str, **told: Any) -> int:
        """A step is about to have its effect: all that led here is on the disk. Gives the attempt's number."""

        def write() -> int:
            with self._kept():
                self._settle()
                attempt = self._steps.begin(self.run_id, key)
                self._waiting.append((kinds.STEP_STARTED, {**told, "attempt": attempt}))
                events = self._write()
            self._told(events)
            return attempt

        return await self._when_free(write)

    def owe(self, act: Callable[[], None]) -> None:
        """Something else that goes into the next transaction."""
        self._owed.append(act)

    def complete(self, key: str, attempt: int, result: object = None, *, owe: bool = False) -> None:
        """The effect is over, and all that was noted with it. To `owe` it is to go on to what may be the next effect:
        whoever does so calls `pay` before anything that takes time."""
        self.owe(partial(self._steps.complete, self.run_id, key, attempt, result))
        if not owe:
            self.pay()

    def pay(self) -> None:
        """What is owed is on the disk, or will be as soon as the journal is free."""
        if self._owed:
            self.commit(durable=True)

    def fail(self, key: str, attempt: int, error: object) -> None:
        """The attempt is over without success."""
        self.owe(partial(self._steps.fail, self.run_id, key, attempt, error))
        self.pay()

    def commit(self, *, durable: bool = False) -> None:
        """Journal what waits; where the journal is locked, `keep_up` does so later."""
        if not (self._waiting or self._owed) or (self.is_behind and self.lost is None):
            return
        try:
            with self._kept(durable=durable or bool(self._owed)):
                told = self._write()
        except JournalLocked:
            return
        self._told(told)

    async def checkpoint(self, image: Callable[[], dict[str, Any]]) -> None:
        """From here a resume goes on, without reading what was before."""

        def write() -> None:
            with self._kept():
                told = self._write()
                self._checkpoints.save(self.run_id, {**image(), "seq": self.seq})
                self._waiting = []  # writes without an event: the checkpoint has them
            self.since_checkpoint = 0
            self._told(told)

        await self._when_free(write)

    @property
    def is_behind(self) -> bool:
        """Whether something waits for a journal that another process has locked."""
        return self._locked_since is not None

    async def caught_up(self) -> None:
        """Wait until all that was to be journalled is on the disk."""

        def write() -> None:
            with self._kept():
                told = self._write()
            self._told(told)

        if self.is_behind:
            await self._when_free(write)

    async def keep_up(self) -> None:
        """Write what a locked journal has kept from being written, as soon as it is free; until cancelled."""
        while True:
            await self._behind.wait()
            await self.caught_up()

    def give_up(self) -> None:
        """No longer wait for a locked journal: what it does not have is done again at a resume."""
        self.patience_s = 0.0

    async def end(
        self,
        status: Any,
        reason: str | None,
        image: Callable[[], dict[str, Any]],
        *,
        take: Callable[[], Sequence[Signal]] = tuple,
        **data: Any,
    ) -> None:
        """Checkpoint, and the one end of this start, at once, with the signals that it is to take then."""

        def write() -> None:
            with self._kept():
                for signal in take():
                    self._journal.take_signal(self.run_id, signal.signal_id, signal.kind)
                told = self._write()
                self._checkpoints.save(self.run_id, {**image(), "seq": self.seq + 1})
                event = self._journal.end(self.run_id, status, reason=reason, data=data)
                told.append(event.told)
            self.seq = event.seq
            self._told(told)

        with anyio.CancelScope(shield=True):
            await self._when_free(write)

    def _add(self, entry: tuple[Any, Any]) -> None:
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append(entry)
        if entry[0] is not None and (
            len(self._waiting) >= _MOST_WAITING or time.monotonic() - self._since > _LONGEST_WAIT_S
        ):
            self.commit()

    @contextmanager
    def _kept(self, *, durable: bool = True) -> Iterator[None]:
        """One transaction. After one that failed there is no other: what it held is gone, and a journal that has what
        came later without it would bring a resume to a place where the run never was. JournalLocked: nothing of it was
        begun, and it can be tried again."""
        if self.lost is not None:
            raise StoreError(str(self.lost), kind=self.lost.kind)
        try:
            with self._db.transaction(durable=durable, wait_s=0.0 if self.is_behind else TRY_S):
                yield
        except JournalLocked as error:
            self._locked(error)
            raise
        except StoreError as error:
            self.lost = error
            raise
        if self._locked_told:
            self._warn("the journal is free again")
        self._locked_since, self._locked_told, self._behind = None, False, anyio.Event()

    async def _when_free(self, write: Callable[[], Result]) -> Result:
        while True:
            try:
                return write()
            except JournalLocked:
                await anyio.sleep(AGAIN_S)

    def _locked(self, error: JournalLocked) -> None:
        now = time.monotonic()
        if self._locked_since is None:
            self._locked_since = now
            self._behind.set()
        if now - self._locked_since >= self.patience_s:
            self.lost = StoreError(str(error), kind=error.kind)
            raise self.lost
        if not self._locked_told and now - self._locked_since > _TELL_AFTER_S:
            self._locked_told = True
            self._warn(f"another process has locked {self._db.path}: the run waits until that is free")

    def _warn(self, text: str) -> None:
        self._tell(RunEvent(self.run_id, kinds.WARNING, self._db.clock(), {"text": text}))

    def _write(self) -> list[RunEvent]:
        """What waits goes into the transaction that is open, a write of a state with the event that follows it."""
        self._settle()
        entries: list[tuple[str, dict[str, Any], list[Any]]] = []
        writes: list[Any] = []
        for kind, content in self._waiting:
            if kind is None:
                writes.append(content)
            else:
                entries.append((kind, content, writes))
                writes = []
        told = self._journal.append_all(self.run_id, self.start, self.seq, entries) if entries else []
        self.keep_trail()
        self._waiting = [(None, write) for write in writes]
        if told:
            self.seq = told[-1].seq
        self.since_checkpoint += len(told)
        return told

    def _settle(self) -> None:
        for act in self._owed:
            act()
        self._owed = []

    def _told(self, events: list[RunEvent]) -> None:
        for event in events:
            self._tell(event)
