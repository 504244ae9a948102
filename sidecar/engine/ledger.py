"""Collects the journal entries of one run and decides when they are written to the disk.

Entries without an outside effect (a condition that was evaluated) may be lost: a resume evaluates it again. They wait
for the next effect, for `_MOST_WAITING` entries or for `_LONGEST_WAIT_S`, whatever comes first. A step with an effect
is on the disk before it begins, and again when it is complete; where one such step follows another at once, one
transaction has both. Events are emitted after they were journalled.

While another process has the journal locked, entries are kept in order and written when it is free. Only the next
effect, a checkpoint and the end of the run wait for that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio

from sidecar.agents.output import Secrets
from sidecar.engine.owner import Owner
from sidecar.engine.run import Run
from sidecar.errors import JournalLocked, StoreError
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent
from sidecar.signals.files import Signal
from sidecar.store.db import AGAIN_S, TRY_S
from sidecar.store.journal import Steps

_MOST_WAITING = 256
_LONGEST_WAIT_S = 0.1
_WARN_AFTER_S = 2.0  # of a locked journal

Result = TypeVar("Result")


class Ledger:
    """Pending journal entries of one run, in order. StoreError where the journal cannot be written."""

    def __init__(
        self, owner: Owner, run_id: str, run: Run, mask: Secrets, on_events: Callable[[Sequence[RunEvent]], None]
    ) -> None:
        self._owner = owner
        self._steps = Steps(owner.database)
        self._run = run
        self._on_events = on_events
        self._mask = mask
        self.run_id = run_id
        self.start = owner.journal.run(run_id).start
        self.seq = owner.journal.last_seq(run_id)  # of the last event in the journal
        self.since_checkpoint = 0
        self._waiting: list[tuple[str | None, Any]] = []
        self._deferred: list[Callable[[], None]] = []  # other writes for the next transaction: attempts that are over
        self._written: list[RunEvent] = []  # in the open transaction: emitted after it
        self._since = 0.0
        self.is_behind = False  # whether something waits for a journal that another process has locked
        self._locked_since = 0.0
        self._lock_reported = False
        self._behind = anyio.Event()
        self.patience_s = math.inf  # how long a journal that another process has locked is waited for
        self.lost: StoreError | None = None  # why nothing is written any more

    def record(self, kind: str, /, **data: Any) -> None:
        """Add an event, which may be journalled a moment later."""
        self._add((kind, data))

    def record_writes(self, path: tuple[str, ...], changes: list[Any]) -> None:
        """Add a transaction of a state; it is journalled with the event that is recorded next."""
        self._add((None, (path, changes)))

    def attempts(self, key: str) -> int:
        """How many attempts at a step there were."""
        last = self._steps.last(self.run_id, key)
        return last.attempt if last else 0

    async def begin(self, key: str, **data: Any) -> int:
        """Journal that a step is about to have its effect, with all that led to it; the number of the attempt."""

        def write() -> int:
            self._write_deferred()
            attempt = self._steps.begin(self.run_id, key)
            self._waiting.append((kinds.STEP_STARTED, {**data, "attempt": attempt}))
            self._write()
            return attempt

        return await self._when_free(write)

    def defer(self, write: Callable[[], None]) -> None:
        """Add something else to the next transaction."""
        self._deferred.append(write)

    def complete(self, key: str, attempt: int, result: object = None, *, defer: bool = False) -> None:
        """Journal that an attempt is complete, with all that was recorded of it. `defer`: in the transaction of the
        step that follows; the caller flushes before anything that takes time."""
        self.defer(partial(self._steps.complete, self.run_id, key, attempt, result))
        if not defer:
            self.flush()

    def fail(self, key: str, attempt: int, error: object) -> None:
        """Journal that an attempt has failed."""
        self.defer(partial(self._steps.fail, self.run_id, key, attempt, error))
        self.flush()

    def flush(self) -> None:
        """Journal what was deferred, now or as soon as the journal is free."""
        if self._deferred:
            self.commit(durable=True)

    def commit(self, *, durable: bool = False) -> None:
        """Journal what waits; where the journal is locked, `keep_up` does so later."""
        if not (self._waiting or self._deferred) or (self.is_behind and self.lost is None):
            return
        try:
            self._commit(self._write, durable=durable or bool(self._deferred))
        except JournalLocked:
            return
        self._emit()

    async def checkpoint(self) -> None:
        """Save the run, so that a resume reads nothing that was journalled before."""

        def write() -> None:
            self._write()
            self._owner.checkpoints.save(self.run_id, {**self._run.to_json(), "seq": self.seq})
            self._waiting = []  # writes without an event: the checkpoint has them
            self.since_checkpoint = 0

        await self._when_free(write)

    async def caught_up(self) -> None:
        """Wait until all that was to be journalled is on the disk."""
        if self.is_behind:
            await self._when_free(self._write)

    async def keep_up(self) -> None:
        """Until cancelled: write what a locked journal has held up, as soon as it is free."""
        while True:
            await self._behind.wait()
            await self.caught_up()

    def give_up(self) -> None:
        """Stop waiting for a locked journal: a resume does again what is not in it."""
        self.patience_s = 0.0

    async def end(self, status: Any, reason: str | None, *, take: Callable[[], Sequence[Signal]], **data: Any) -> None:
        """Journal the end of this execution, with a checkpoint and the signals that are taken by it."""

        def write() -> None:
            for signal in take():
                self._owner.journal.take_signal(self.run_id, signal.signal_id, signal.kind)
            self._write()
            self._owner.checkpoints.save(self.run_id, {**self._run.to_json(), "seq": self.seq + 1})
            event = self._owner.journal.end(self.run_id, status, reason=reason, data=data)
            self._written.append(event.run_event)
            self.seq = event.seq

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

    def _commit(self, write: Callable[[], Result], *, durable: bool = True) -> Result:
        """Write in one transaction. After one that failed there is no other: its entries are lost, and a journal that
        had later ones without them would lead a resume to a place where the run never was. JournalLocked: it was not
        begun, and can be tried again."""
        if self.lost is not None:
            raise StoreError(str(self.lost), kind=self.lost.kind)
        try:
            with self._owner.database.transaction(durable=durable, wait_s=0.0 if self.is_behind else TRY_S):
                result = write()
        except JournalLocked as error:
            self._on_locked(error)
            raise
        except StoreError as error:
            self.lost = error
            raise
        if self._lock_reported:
            self._warn("the journal is free again")
        if self.is_behind:
            self.is_behind, self._lock_reported, self._behind = False, False, anyio.Event()
        return result

    async def _when_free(self, write: Callable[[], Result]) -> Result:
        """Write in a transaction as soon as the journal is free, then emit what was written."""
        while True:
            try:
                result = self._commit(write)
            except JournalLocked:
                await anyio.sleep(AGAIN_S)
                continue
            self._emit()
            return result

    def _on_locked(self, error: JournalLocked) -> None:
        now = time.monotonic()
        if not self.is_behind:
            self.is_behind, self._locked_since = True, now
            self._behind.set()
        if now - self._locked_since >= self.patience_s:
            self.lost = StoreError(str(error), kind=error.kind)
            raise self.lost
        if not self._lock_reported and now - self._locked_since > _WARN_AFTER_S:
            self._lock_reported = True
            self._warn(f"another process has locked {self._owner.database.path}: the run waits until that is free")

    def _warn(self, text: str) -> None:
        self._on_events([RunEvent(self.run_id, kinds.WARNING, self._owner.database.clock(), {"text": text})])

    def _write(self) -> None:
        """Write what waits into the open transaction, the writes of a state with the event that follows them."""
        self._write_deferred()
        entries: list[tuple[str, dict[str, Any], list[Any]]] = []
        writes: list[Any] = []
        for kind, content in self._waiting:
            if kind is None:
                writes.append(content)
            else:
                entries.append((kind, content, writes))
                writes = []
        if entries:
            events = self._owner.journal.append_all(self.run_id, self.start, self.seq, entries, self._mask)
            self._written += events
            self.seq = events[-1].seq
            self.since_checkpoint += len(events)
        if self._run.states.traces:
            self._owner.transformations.add(self.run_id, self._run.states.take_traces())
        self._waiting = [(None, write) for write in writes] if writes else []

    def _write_deferred(self) -> None:
        for write in self._deferred:
            write()
        self._deferred = []

    def _emit(self) -> None:
        events, self._written = self._written, []
        if events:
            self._on_events(events)
