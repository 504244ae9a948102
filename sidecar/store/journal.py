"""Runs and what happened to them: an ordered journal of events, with exactly one end for each start or resume."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from sidecar.errors import StoreError
from sidecar.model.run import RunEvent
from sidecar.store import sql
from sidecar.store.sealed import dump, load, plain, seal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from sidecar.store.db import Database

Ending = Literal["paused", "completed", "failed", "aborted", "stopped", "interrupted"]
Status = Literal["pending", "running"] | Ending
OPEN = frozenset({"pending", "running", "paused", "interrupted"})  # a run that stands like this has not ended
STATUSES: tuple[str, ...] = ("pending", "running", *get_args(Ending))
STARTED, RESUMED, ENDED = "run_started", "run_resumed", "run_ended"
_ALL = -1  # as SQLite has it: no limit
_BEHIND_ALL = 2**63 - 1
_PAGE = 100


@dataclass(frozen=True, slots=True)
class Run:
    """One run as it stands. `start` counts its starts and resumes; 0: it has not begun."""

    run_id: str
    workflow: str
    workspace: str | None
    driver: str
    definition: str  # which one: the hash of its text
    inputs: dict[str, Any]
    details: dict[str, Any]
    status: Status
    start: int
    reason: str | None
    created_at: float
    updated_at: float
    ended_at: float | None


# What the run computed, and computes with when it is told again: that it gets as it was.
_REPLAYED = ("outcome", "names")
_KEPT = "kept"


class Mask(Protocol):
    """Knows the secrets of a run."""

    def are_in(self, text: str) -> bool:
        """Whether one of them is in this JSON."""

    def masked_event(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """What an event tells, without them."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, as everybody may see it. `seq` has no gaps; `closes` marks the end of a start."""

    run_id: str
    seq: int
    start: int
    at: float
    kind: str
    closes: bool
    data: dict[str, Any]
    kept: Mapping[str, Any] | None = None  # values of the run in it that have secrets, for a replay only

    @property
    def whole(self) -> dict[str, Any]:
        """The data with the values that the run had: for a replay only."""
        return {**self.data, **self.kept} if self.kept else self.data

    @property
    def told(self) -> RunEvent:
        """As those hear it who watch the run."""
        return RunEvent(self.run_id, self.kind, self.at, self.data, self.seq)


@dataclass(frozen=True, slots=True)
class StateVersion:
    """One transaction of a run's state: what it changed, and which step did."""

    version: int
    at: float
    cause: str
    changes: Any


@dataclass(frozen=True, slots=True)
class AppliedSignal:
    """A signal that this run has taken or refused, and will not take again."""

    signal_id: str
    kind: str
    outcome: str
    start: int
    at: float


class Journal:
    """Runs, events, states and signals. Each call is a transaction, or a part of the one that is open."""

    def __init__(self, database: Database, mask_of: Callable[[str], Mask | None] = lambda _: None) -> None:
        """`mask_of`: the mask of a run, for the events that are made here."""
        self._db = database
        self._mask_of = mask_of

    def transaction(self) -> AbstractContextManager[None]:
        """Several calls as one: all of it or nothing, and nobody else writes in between."""
        return self._db.transaction()

    def create(
        self,
        run_id: str,
        workflow: str,
        *,
        definition: str,
        inputs: dict[str, Any],
        workspace: str | None = None,
        driver: str = "server",
        details: dict[str, Any] | None = None,
    ) -> Run:
        """A run that is pending, with the text of the definition that it will keep for life."""
        now = self._db.clock()
        text = dump(definition)
        name = hashlib.sha256(text.encode()).hexdigest()
        given = (
            run_id,
            workflow,
            workspace,
            driver,
            name,
            plain(inputs),
            plain(details or {}),
            "pending",
            0,
            None,
            now,
            now,
            None,
        )
        columns = _columns(Run(*given))  # type: ignore[arg-type]
        with self._db.transaction():
            self._db.execute(sql.ADD_DEFINITION, (name, text))
            self._db.execute(sql.ADD_RUN, (*columns, seal(*columns)), f"run {run_id}")
        return self.run(run_id)

    def begin(self, run_id: str, data: dict[str, Any] | None = None) -> int:
        """A start or a resume: the run is running. Refused until the start before has its end. Gives its number."""
        with self._db.transaction():
            run = self.run(run_id)
            self._change(run, status="running", start=run.start + 1, reason=None, ended_at=None)
            self.append(run_id, RESUMED if run.start else STARTED, data)
        return run.start + 1

    def end(
        self, run_id: str, status: Ending, *, reason: str | None = None, data: dict[str, Any] | None = None
    ) -> Event:
        """The one end of this start: the event and the run's status, together."""
        if status not in get_args(Ending):
            raise StoreError(f"{status} is not how a run ends", kind="value")
        with self._db.transaction():
            told = {**(data or {}), "status": status, "reason": reason}
            event = self._append(run_id, ENDED, told, closes=True)
            self._change(self.run(run_id), status=status, reason=event.data["reason"], ended_at=event.at)
        return event

    def end_unheld(self, run_id: str, status: Ending, *, reason: str | None = None) -> Event:
        """The end of an open run that nobody executes. Where its last start has an end already (it is paused, or was
        interrupted), this is the end of one more, without an event that would say that it went on."""
        with self._db.transaction():
            run = self.run(run_id)
            if run.status != "running":
                self._change(run, start=run.start + 1)
            return self.end(run_id, status, reason=reason)

    def begin_again(self, run_id: str) -> Run:
        """A run that had ended is to go on, and is pending until somebody does."""
        with self._db.transaction():
            return self._change(self.run(run_id), status="pending", reason=None, ended_at=None)

    def take_back_beginning(self, run_id: str) -> Run:
        """Nobody goes on with it after all: it stands as its last end has it."""
        with self._db.transaction():
            last = self.last_end(run_id)
            if last is None:
                raise StoreError(f"run {run_id} never ended before", kind="value")
            status, reason = last.data["status"], last.data["reason"]
            return self._change(self.run(run_id), status=status, reason=reason, ended_at=last.at)

    def last_end(self, run_id: str) -> Event | None:
        """The end of its last start that has one."""
        last = self.last_seq(run_id)
        events = self.events(run_id, after=max(last - 1, 0))
        return events[-1] if events and events[-1].closes else None

    def change(self, run_id: str, **changes: Any) -> Run:
        """The run's driver or details, or a status between start and end."""
        allowed = changes.keys() <= {"driver", "details", "status"}
        if not allowed or changes.get("status", "running") not in ("running", "paused"):
            raise StoreError(f"a run is not changed like this: {changes}", kind="value")
        with self._db.transaction():
            return self._change(self.run(run_id), **plain(changes))

    def append(self, run_id: str, kind: str, data: dict[str, Any] | None = None, *, durable: bool = False) -> Event:
        """One more event. Durable where it must be known after a power loss that it came this far."""
        with self._db.transaction(durable=durable):
            return self._append(run_id, kind, data or {}, closes=False)

    def append_all(
        self, run_id: str, start: int, last: int, entries: Sequence[tuple[str, dict[str, Any]]]
    ) -> list[RunEvent]:
        """Several events, inside a transaction, by whoever has the run and knows its start and its last event: cheaper
        than one after the other. Refused where somebody else has written one since."""
        at = self._db.clock()
        mask = self._mask_of(run_id)
        made = [(kind, *_made(data, mask)) for kind, data in entries]
        rows = [(run_id, last + n, start, at, kind, 0, text) for n, (kind, text, _) in enumerate(made, 1)]
        self._db.execute_all(sql.ADD_EVENT, [(*columns, seal(*columns)) for columns in rows], f"run {run_id}")
        return [RunEvent(run_id, kind, at, data, last + n) for n, (kind, _, data) in enumerate(made, 1)]

    def events(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Event]:
        """In order, those behind a sequence number."""
        rows = self._db.rows(sql.EVENTS, (run_id, after, _ALL if limit is None else limit))
        for expected, (*columns, sealed) in enumerate(rows, start=after + 1):
            if columns[1] != expected or seal(*columns) != sealed:
                raise self._db.damaged(f"event {expected} of run {run_id}")
        return list(map(_event, rows))

    def newest(self, run_id: str, kinds: Collection[str], containing: str = "") -> Iterator[Event]:
        """Events of these kinds, the last one first, read as they are asked for. `containing`: only those whose data
        contains this as JSON text: SQLite passes over the others quickly, however many there are."""
        before = _BEHIND_ALL
        while rows := self._db.rows(sql.NEWEST_EVENTS, (run_id, before, dump(sorted(kinds)), containing, _PAGE)):
            for row in rows:
                *columns, sealed = row
                before = columns[1]
                if seal(*columns) != sealed:
                    raise self._db.damaged(f"event {before} of run {run_id}")
                yield _event(row)

    def last_seq(self, run_id: str) -> int:
        """The number of its last event; 0 before the first."""
        found = self._db.rows(sql.LAST_EVENT, (run_id,))
        return int(found[0][1]) if found else 0

    def run(self, run_id: str) -> Run:
        """One run; `StoreError` of kind `missing` where there is none."""
        rows = self._db.rows(sql.RUN, (run_id,))
        if not rows:
            raise StoreError(f"the journal knows no run {run_id}; `sidecar status` lists them", kind="missing")
        return self._read(rows[0])

    def find(self, run_id: str) -> Run | None:
        """One run; None where there is none."""
        rows = self._db.rows(sql.RUN, (run_id,))
        return self._read(rows[0]) if rows else None

    def runs(
        self, *, workspace: str | None = None, statuses: Collection[str] | None = None, limit: int | None = None
    ) -> list[Run]:
        """Newest first; those of one workspace, or those that stand like this, where one is given."""
        most = _ALL if limit is None else limit
        if workspace is not None:
            found = self._db.rows(sql.RUNS_OF_WORKSPACE, (dump(workspace), most))
        elif statuses is not None:
            found = self._db.rows(sql.RUNS_OF_STATUS, (dump(sorted(statuses)), most))
        else:
            found = self._db.rows(sql.RUNS, (most,))
        return [self._read(row) for row in found]

    def standings(self) -> list[tuple[str, str, float]]:
        """Of every run its id, its status and when it changed last, newest first. What a run carries along (the
        environment of whoever started it) stays on the disk: a long-lived process asks for thousands of them."""
        return [(run_id, status, changed_at) for run_id, status, changed_at in self._db.rows(sql.STANDINGS)]

    def definition(self, run_id: str) -> str:
        """The text of the definition that the run started with."""
        for name, text in self._db.rows(sql.DEFINITION, (run_id,)):
            if hashlib.sha256(text.encode("utf-8", "replace")).hexdigest() != name:
                raise self._db.damaged(f"the definition of run {run_id}")
            return str(load(text))
        raise StoreError(f"the journal knows no run {run_id}", kind="missing")

    def take_signal(self, run_id: str, signal_id: str, kind: str, outcome: str = "applied") -> bool:
        """Note that the run has taken this signal; False where it already had."""
        with self._db.transaction():
            columns = (run_id, signal_id, kind, outcome, self.run(run_id).start, self._db.clock())
            return self._db.execute(sql.ADD_SIGNAL, (*columns, seal(*columns))) == 1

    def signals(self, run_id: str) -> dict[str, AppliedSignal]:
        """Every signal that the run has taken, by id."""
        rows = self._db.rows(sql.SIGNALS, (run_id,))
        if any(seal(*columns) != sealed for *columns, sealed in rows):
            raise self._db.damaged(f"the signals of run {run_id}")
        return {row[1]: AppliedSignal(*row[1:6]) for row in rows}

    def add_state(self, run_id: str, changes: object, cause: str, *, durable: bool = False) -> int:
        """One more transaction of the run's state; its version."""
        text = dump(changes)
        with self._db.transaction(durable=durable):
            version: int = self._db.rows(sql.LAST_STATE, (run_id,))[0][0] + 1
            columns = (run_id, version, self._db.clock(), cause, text)
            self._db.execute(sql.ADD_STATE, (*columns, seal(*columns)), f"run {run_id}")
        return version

    def add_states(self, run_id: str, entries: Sequence[tuple[object, str]]) -> int:
        """Several transactions of the run's state, inside one of ours; the last version."""
        last, at = self.last_state(run_id), self._db.clock()
        rows = [(run_id, last + n, at, cause, dump(changes)) for n, (changes, cause) in enumerate(entries, 1)]
        self._db.execute_all(sql.ADD_STATE, [(*columns, seal(*columns)) for columns in rows], f"run {run_id}")
        return last + len(entries)

    def last_state(self, run_id: str) -> int:
        """The newest version; 0 before the first."""
        return int(self._db.rows(sql.LAST_STATE, (run_id,))[0][0])

    def states(self, run_id: str, after: int = 0) -> list[StateVersion]:
        """In order, those behind a version."""
        rows = self._db.rows(sql.STATES, (run_id, after))
        for expected, (*columns, sealed) in enumerate(rows, start=after + 1):
            if columns[1] != expected or seal(*columns) != sealed:
                raise self._db.damaged(f"state version {expected} of run {run_id}")
        return [StateVersion(version, at, cause, load(changes)) for _, version, at, cause, changes, _ in rows]

    def _append(self, run_id: str, kind: str, data: dict[str, Any], *, closes: bool) -> Event:
        start, last = self._last_event(run_id)
        text, data = _made(data, self._mask_of(run_id))
        columns = (run_id, last + 1, start, self._db.clock(), kind, int(closes), text)
        self._db.execute(sql.ADD_EVENT, (*columns, seal(*columns)), f"run {run_id}, {kind}")
        return Event(run_id, last + 1, start, columns[3], kind, closes, data)

    def _last_event(self, run_id: str) -> tuple[int, int]:
        found = self._db.rows(sql.LAST_EVENT, (run_id,))
        if not found:
            raise StoreError(f"the journal knows no run {run_id}; `sidecar status` lists them", kind="missing")
        return found[0][0], found[0][1]

    def _change(self, run: Run, **changes: Any) -> Run:
        run = replace(run, updated_at=self._db.clock(), **changes)
        columns = _columns(run)
        _, _, _, driver, _, _, details, status, start, reason, _, updated_at, ended_at = columns
        values = (driver, details, status, start, reason, updated_at, ended_at, seal(*columns), run.run_id)
        self._db.execute(sql.CHANGE_RUN, values, f"run {run.run_id}")
        return run

    def _read(self, row: tuple[Any, ...]) -> Run:
        *columns, sealed = row
        if seal(*columns) != sealed:
            raise self._db.damaged(f"run {row[0]}")
        run_id, workflow, workspace, driver, definition, inputs, details, status, start, reason, *times = columns
        known = (run_id, workflow, load(workspace), driver, definition, load(inputs), load(details))
        return Run(*known, status, start, load(reason), *times)


def _made(data: dict[str, Any], mask: Mask | None) -> tuple[str, dict[str, Any]]:
    """An event's data as they are written and as they are told: secrets are masked here, for everybody who sees it."""
    text = dump(data)
    if mask is None or not mask.are_in(text):
        return text, data
    told = mask.masked_event(data)
    kept = {name: data[name] for name in _REPLAYED if name in data and told[name] != plain(data[name])}
    return dump({**told, _KEPT: kept} if kept else told), told


def _event(row: tuple[Any, ...]) -> Event:
    run_id, seq, start, at, kind, closes, text, _ = row
    data = load(text)
    return Event(run_id, seq, start, at, kind, bool(closes), data, data.pop(_KEPT, None))


def _columns(run: Run) -> tuple[Any, ...]:
    return (
        *(run.run_id, run.workflow, dump(run.workspace), run.driver, run.definition, dump(run.inputs)),
        *(dump(run.details), run.status, run.start, dump(run.reason), run.created_at, run.updated_at, run.ended_at),
    )
