"""Runs and what happened to them: an ordered journal of events, with exactly one end for each start or resume."""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from sidecar.errors import StoreError
from sidecar.model.agent import AgentRecord
from sidecar.model.run import RunEvent
from sidecar.store.db import dump, load, pack, plain, seal, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from sidecar.model.agent import AgentEnded
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
class StoredRun:
    """One run as it stands. `start` counts its starts and resumes; 0: it has not begun."""

    run_id: str
    workflow: str
    workspace: str | None
    driver: str
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
_VALUES, _WRITES = "values", "writes"


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
    replayed: str | None = None  # JSON, for a replay only: values of the run that have secrets, writes of its states

    @property
    def whole(self) -> dict[str, Any]:
        """The data with the values that the run had: for a replay only."""
        return {**self.data, **load(self.replayed).get(_VALUES, {})} if self.replayed else self.data

    @property
    def writes(self) -> list[Any]:
        """What was written to the run's states since the event before, in order: each a state's path and its writes."""
        found: list[Any] = load(self.replayed).get(_WRITES, []) if self.replayed else []
        return found

    @property
    def told(self) -> RunEvent:
        """As those hear it who watch the run."""
        return RunEvent(self.run_id, self.kind, self.at, self.data, self.seq)


@dataclass(frozen=True, slots=True)
class AppliedSignal:
    """A signal that this run has taken or refused, and will not take again."""

    signal_id: str
    kind: str
    outcome: str
    start: int
    at: float


class Journal:
    """Runs, events and signals. Each call is a transaction, or a part of the one that is open."""

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
    ) -> StoredRun:
        """A run that is pending, with the text of the definition that it will keep for life."""
        now = self._db.clock()
        run = StoredRun(run_id, workflow, workspace, driver, inputs, details or {}, "pending", 0, None, now, now, None)
        columns = _columns(run)
        with self._db.transaction():
            self._db.execute(_ADD_RUN, (*columns, seal(*columns), pack(definition)), f"run {run_id}")
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

    def begin_again(self, run_id: str) -> StoredRun:
        """A run that had ended is to go on, and is pending until somebody does."""
        with self._db.transaction():
            return self._change(self.run(run_id), status="pending", reason=None, ended_at=None)

    def take_back_beginning(self, run_id: str) -> StoredRun:
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

    def change(self, run_id: str, **changes: Any) -> StoredRun:
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
        self, run_id: str, start: int, last: int, entries: Sequence[tuple[str, dict[str, Any], list[Any]]]
    ) -> list[RunEvent]:
        """Several events with their writes of states, inside a transaction, by the owner of the run, which knows its
        start and its last event: cheaper than one after the other. Refused where another process has written one
        since."""
        at = self._db.clock()
        mask = self._mask_of(run_id)
        made = [(kind, *_made(data, writes, mask)) for kind, data, writes in entries]
        rows = [(run_id, last + n, start, at, kind, 0, *texts) for n, (kind, *texts, _) in enumerate(made, 1)]
        self._db.execute_all(_ADD_EVENT, [(*columns, seal(*columns)) for columns in rows], f"run {run_id}")
        return [RunEvent(run_id, kind, at, data, last + n) for n, (kind, _, _, data) in enumerate(made, 1)]

    def events(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Event]:
        """In order, those behind a sequence number."""
        rows = self._db.rows(_EVENTS, (run_id, after, _ALL if limit is None else limit))
        for expected, (*columns, sealed) in enumerate(rows, start=after + 1):
            if columns[1] != expected or seal(*columns) != sealed:
                raise self._db.damaged(f"event {expected} of run {run_id}")
        return list(map(_event, rows))

    def newest(self, run_id: str, kinds: Collection[str], containing: str = "") -> Iterator[Event]:
        """Events of these kinds, the last one first, read as they are asked for. `containing`: only those whose data
        contains this as JSON text: SQLite passes over the others quickly, however many there are."""
        before = _BEHIND_ALL
        while rows := self._db.rows(_NEWEST_EVENTS, (run_id, before, dump(sorted(kinds)), containing, _PAGE)):
            for row in rows:
                *columns, sealed = row
                before = columns[1]
                if seal(*columns) != sealed:
                    raise self._db.damaged(f"event {before} of run {run_id}")
                yield _event(row)

    def last_seq(self, run_id: str) -> int:
        """The number of its last event; 0 before the first."""
        found = self._db.rows(_LAST_EVENT, (run_id,))
        return int(found[0][1]) if found else 0

    def run(self, run_id: str) -> StoredRun:
        """One run; `StoreError` of kind `missing` where there is none."""
        rows = self._db.rows(_RUN, (run_id,))
        if not rows:
            raise StoreError(f"the journal knows no run {run_id}; `sidecar status` lists them", kind="missing")
        return self._read(rows[0])

    def find(self, run_id: str) -> StoredRun | None:
        """One run; None where there is none."""
        rows = self._db.rows(_RUN, (run_id,))
        return self._read(rows[0]) if rows else None

    def runs(
        self, *, workspace: str | None = None, statuses: Collection[str] | None = None, limit: int | None = None
    ) -> list[StoredRun]:
        """Newest first; those of one workspace, or those that stand like this, where one is given."""
        most = _ALL if limit is None else limit
        if workspace is not None:
            found = self._db.rows(_RUNS_OF_WORKSPACE, (dump(workspace), most))
        elif statuses is not None:
            found = self._db.rows(_RUNS_OF_STATUS, (dump(sorted(statuses)), most))
        else:
            found = self._db.rows(_RUNS, (most,))
        return [self._read(row) for row in found]

    def standings(self) -> list[tuple[str, str, float]]:
        """Of every run its id, its status and when it changed last, newest first. What a run carries along (the
        environment of whoever started it) stays on the disk: a long-lived process asks for thousands of them."""
        return [(run_id, status, changed_at) for run_id, status, changed_at in self._db.rows(_STANDINGS)]

    def definition(self, run_id: str) -> str:
        """The text of the definition that the run started with."""
        rows = self._db.rows(_DEFINITION, (run_id,))
        if not rows:
            raise StoreError(f"the journal knows no run {run_id}", kind="missing")
        try:
            return str(unpack(rows[0][0]))
        except (TypeError, ValueError, zlib.error):
            raise self._db.damaged(f"the definition of run {run_id}") from None

    def take_signal(self, run_id: str, signal_id: str, kind: str, outcome: str = "applied") -> bool:
        """Note that the run has taken this signal; False where it already had."""
        with self._db.transaction():
            columns = (run_id, signal_id, kind, outcome, self.run(run_id).start, self._db.clock())
            return self._db.execute(_ADD_SIGNAL, (*columns, seal(*columns))) == 1

    def signals(self, run_id: str) -> dict[str, AppliedSignal]:
        """Every signal that the run has taken, by id."""
        rows = self._db.rows(_SIGNALS, (run_id,))
        if any(seal(*columns) != sealed for *columns, sealed in rows):
            raise self._db.damaged(f"the signals of run {run_id}")
        return {row[1]: AppliedSignal(*row[1:6]) for row in rows}

    def _append(self, run_id: str, kind: str, data: dict[str, Any], *, closes: bool) -> Event:
        start, last = self._last_event(run_id)
        text, replayed, data = _made(data, [], self._mask_of(run_id))
        columns = (run_id, last + 1, start, self._db.clock(), kind, int(closes), text, replayed)
        self._db.execute(_ADD_EVENT, (*columns, seal(*columns)), f"run {run_id}, {kind}")
        return Event(run_id, last + 1, start, columns[3], kind, closes, data)

    def _last_event(self, run_id: str) -> tuple[int, int]:
        found = self._db.rows(_LAST_EVENT, (run_id,))
        if not found:
            raise StoreError(f"the journal knows no run {run_id}; `sidecar status` lists them", kind="missing")
        return found[0][0], found[0][1]

    def _change(self, run: StoredRun, **changes: Any) -> StoredRun:
        run = replace(run, updated_at=self._db.clock(), **changes)
        columns = _columns(run)
        _, _, _, driver, _, details, status, start, reason, _, updated_at, ended_at = columns
        values = (driver, details, status, start, reason, updated_at, ended_at, seal(*columns), run.run_id)
        self._db.execute(_CHANGE_RUN, values, f"run {run.run_id}")
        return run

    def _read(self, row: tuple[Any, ...]) -> StoredRun:
        *columns, sealed = row
        if seal(*columns) != sealed:
            raise self._db.damaged(f"run {row[0]}")
        run_id, workflow, workspace, driver, inputs, details, status, start, reason, *times = columns
        known = (run_id, workflow, load(workspace), driver, load(inputs), load(details))
        return StoredRun(*known, status, start, load(reason), *times)


def _made(data: dict[str, Any], writes: list[Any], mask: Mask | None) -> tuple[str, str | None, dict[str, Any]]:
    """An event's data and what only a replay reads, as they are written; and the data as everybody may see them:
    secrets are masked here."""
    text = dump(data)
    replayed: dict[str, Any] = {_WRITES: writes} if writes else {}
    if mask is not None and mask.are_in(text):
        shown = mask.masked_event(data)
        values = {name: data[name] for name in _REPLAYED if name in data and shown[name] != plain(data[name])}
        replayed |= {_VALUES: values} if values else {}
        text, data = dump(shown), shown
    return text, dump(replayed) if replayed else None, data


def _event(row: tuple[Any, ...]) -> Event:
    run_id, seq, start, at, kind, closes, text, replayed, _ = row
    return Event(run_id, seq, start, at, kind, bool(closes), load(text), replayed)


def _columns(run: StoredRun) -> tuple[Any, ...]:
    return (
        *(run.run_id, run.workflow, dump(run.workspace), run.driver, dump(run.inputs)),
        *(dump(run.details), run.status, run.start, dump(run.reason), run.created_at, run.updated_at, run.ended_at),
    )


# Steps and their attempts: what has completed is never done again, what was in flight is, with the next number.


StepStatus = Literal["begun", "completed", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class Step:
    """One attempt at a step. `key` tells it from every other of the run: its id with the iterations around it."""

    run_id: str
    number: int  # in the order in which attempts were begun
    key: str
    attempt: int
    status: StepStatus
    began_at: float
    ended_at: float | None
    outcome: Any  # its result, or why it failed


class Steps:
    """Each call is a transaction, or a part of the one that is open. Durable unless told otherwise."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._begun: dict[tuple[str, str, int], tuple[Any, ...]] = {}  # rows of our own that are in flight

    def begin(self, run_id: str, key: str) -> int:
        """Before its effect: the step is in flight. Returns the attempt's number.

        An attempt that is still in flight belonged to an owner that died: it ends as interrupted, and if that owner
        should be alive after all, its result is refused.
        """
        with self._db.transaction():
            last = self._last(run_id, key)
            if last is not None and last[4] == "begun":
                self._end(last, "interrupted", None)
            attempt: int = last[3] + 1 if last else 1
            number = self._db.rows(_LAST_STEP, (run_id,))[0][0] + 1
            columns = (run_id, number, key, attempt, "begun", self._db.clock(), None, "null")
            self._db.execute(_ADD_STEP, (*columns, seal(*columns)), f"run {run_id}, step {key}")
            self._begun[run_id, key, attempt] = columns
        return attempt

    def complete(self, run_id: str, key: str, attempt: int, result: object = None) -> None:
        """After its effect: done for ever."""
        with self._db.transaction():
            self._end_attempt(run_id, key, attempt, "completed", result)

    def fail(self, run_id: str, key: str, attempt: int, error: object) -> None:
        """This attempt is over; another may begin."""
        with self._db.transaction():
            self._end_attempt(run_id, key, attempt, "failed", error)

    def last(self, run_id: str, key: str) -> Step | None:
        """The latest attempt at it."""
        row = self._last(run_id, key)
        return _step(row) if row else None

    def steps(self, run_id: str) -> list[Step]:
        """Every attempt, in the order in which they were begun."""
        rows = self._db.rows(_STEPS, (run_id,))
        for expected, row in enumerate(rows, start=1):
            if row[1] != expected:
                raise self._db.damaged(f"step {expected} of run {run_id} is missing")
        return [_step(self._checked(row)) for row in rows]

    def _last(self, run_id: str, key: str) -> tuple[Any, ...] | None:
        rows = self._db.rows(_LAST_ATTEMPT, (run_id, key))
        return self._checked(rows[0]) if rows else None

    def _in_flight(self, run_id: str, key: str, attempt: int) -> tuple[Any, ...]:
        row = self._last(run_id, key)
        if row is None:
            raise StoreError(f"run {run_id}, step {key}: it was never begun", kind="missing")
        last, status = row[3:5]
        if (last, status) != (attempt, "begun"):
            message = f"run {run_id}, step {key}: attempt {attempt} is not in flight: attempt {last} is {status}"
            raise StoreError(message, kind="conflict")
        return row

    def _end_attempt(self, run_id: str, key: str, attempt: int, status: StepStatus, outcome: object) -> None:
        row = self._begun.pop((run_id, key, attempt), None)
        # Somebody who took us for dead may have ended it since: then nothing is changed, and the row says what it is.
        if row is None or not self._end(row, status, outcome):
            self._end(self._in_flight(run_id, key, attempt), status, outcome)

    def _end(self, row: tuple[Any, ...], status: StepStatus, outcome: object) -> bool:
        run_id, number, key, attempt, _, began_at, _, _ = row
        now, text = self._db.clock(), dump(outcome)
        sealed = seal(run_id, number, key, attempt, status, began_at, now, text)
        values = (status, now, text, sealed, run_id, number)
        return self._db.execute(_END_STEP, values, f"run {run_id}, step {key}") == 1

    def _checked(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        *columns, sealed = row
        if seal(*columns) != sealed:
            raise self._db.damaged(f"step {row[2]} of run {row[0]}")
        return tuple(columns)


def _step(columns: tuple[Any, ...]) -> Step:
    run_id, number, key, attempt, status, began_at, ended_at, outcome = columns
    return Step(run_id, number, key, attempt, status, began_at, ended_at, load(outcome))


# The agents that were started, so that a later sidecar finds those whose owner died; each of them ends once.


class Agents:
    """Each call is a transaction, or a part of the one that is open; durable, since a process is at stake."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def started(self, record: AgentRecord) -> None:
        """It runs."""
        columns = (record.agent_id, record.run_id, dump(asdict(record)), None)
        with self._db.transaction():
            self._db.execute(_ADD_AGENT, (*columns, seal(*columns)), f"agent {record.agent_id}")

    def ended(self, agent_id: str, ended: AgentEnded | None = None) -> None:
        """Its tree is empty; None: that is all that is known, as after its owner's death."""
        told = dump(asdict(ended) if ended else {})
        with self._db.transaction():
            rows = self._db.rows(_AGENT, (agent_id,))
            if not rows:
                raise StoreError(f"the journal knows no agent {agent_id}", kind="missing")
            sealed = seal(*rows[0][:3], told)
            self._db.execute(_END_AGENT, (told, sealed, agent_id), f"agent {agent_id}")

    def not_ended(self) -> list[AgentRecord]:
        """Those that may be alive, in every run of the project."""
        return [record for record, _ in self._read(self._db.rows(_AGENTS_NOT_ENDED))]

    def of_run(self, run_id: str) -> list[tuple[AgentRecord, dict[str, Any] | None]]:
        """Every agent of a run, with what became of it; None: it has not ended."""
        return self._read(self._db.rows(_AGENTS_OF_RUN, (run_id,)))

    def _read(self, rows: list[tuple[Any, ...]]) -> list[tuple[AgentRecord, dict[str, Any] | None]]:
        for *columns, sealed in rows:
            if seal(*columns) != sealed:  # to end a process by a wrong pid would be worse than to fail
                raise self._db.damaged(f"agent {columns[0]}")
        return [(AgentRecord(**load(row[2])), load(row[3]) if row[3] else None) for row in rows]


# Steps that were handed out to an agent outside: the same one until it is done.


@dataclass(frozen=True, slots=True)
class Handout:
    """What a task has in hand. The run itself is the task with the empty id."""

    run_id: str
    task_id: str
    key: str
    step: Any
    handed_at: float


class Handouts:
    """Each call is a transaction, or a part of the one that is open; durable, since an agent acts on it."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def hand_out(self, run_id: str, task_id: str, key: str, step: object) -> Handout:
        """Give this step to a task; where it has one in hand already, that one again."""
        with self._db.transaction():
            if (held := self.held(run_id, task_id)) is not None:
                return held
            handout = Handout(run_id, task_id, key, plain(step), self._db.clock())
            columns = _handout_columns(handout)
            self._db.execute(_ADD_HANDOUT, (*columns, seal(*columns)), f"run {run_id}, step {key}")
            return handout

    def take_back(self, run_id: str, task_id: str) -> bool:
        """It is done, or given up; False where nothing was handed out."""
        with self._db.transaction():
            return self._db.execute(_DROP_HANDOUT, (run_id, task_id)) == 1

    def held(self, run_id: str, task_id: str = "") -> Handout | None:
        """What the task has in hand."""
        rows = self._db.rows(_HANDOUT, (run_id, task_id))
        return self._read(rows[0]) if rows else None

    def all_held(self, run_id: str) -> list[Handout]:
        """What every task of the run has in hand."""
        return [self._read(row) for row in self._db.rows(_HANDOUTS, (run_id,))]

    def age_s(self, handout: Handout) -> float:
        """How long ago it was handed out."""
        return self._db.clock() - handout.handed_at

    def _read(self, row: tuple[Any, ...]) -> Handout:
        *columns, sealed = row
        if seal(*columns) != sealed:
            raise self._db.damaged(f"the step in hand of task {row[1]} of run {row[0]}")
        run_id, task_id, key, step, handed_at = columns
        return Handout(run_id, task_id, key, load(step), handed_at)


def _handout_columns(handout: Handout) -> tuple[Any, ...]:
    return (handout.run_id, handout.task_id, handout.key, dump(handout.step), handout.handed_at)


# How a run's computed fields were computed: the trail stays as long as the run does, whoever executed it.


_AT_ONCE = 100  # rows; each has what one transaction of the journal brought


class Transformations:
    """Each call is a transaction, or a part of the one that is open."""

    def __init__(self, database: Database, mask_of: Callable[[str], Mask | None] = lambda _: None) -> None:
        """`mask_of`: the mask of a run, for what is told of it here."""
        self._db = database
        self._mask_of = mask_of

    def told(self, run_id: str, traces: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """As everybody may see them."""
        mask = self._mask_of(run_id) if traces else None
        return list(traces) if mask is None else [mask.masked_event(one) for one in traces]

    def add(self, run_id: str, traces: Sequence[dict[str, Any]]) -> None:
        """What was computed since the last call. Those with `applied` false were undone, and are not counted."""
        if not traces:
            return
        applied = sum(bool(trace["applied"]) for trace in traces)
        with self._db.transaction(durable=False):
            number: int = self._db.rows(_LAST_TRANSFORMATIONS, (run_id,))[0][0] + 1
            columns = (run_id, number, applied, dump(self.told(run_id, traces)))
            self._db.execute(_ADD_TRANSFORMATIONS, (*columns, seal(*columns)), f"run {run_id}")

    def total(self, run_id: str) -> int:
        """How many there were."""
        return int(self._db.rows(_TOTAL_TRANSFORMATIONS, (run_id,))[0][0])

    def newest(self, run_id: str, most: int, field: str | None = None) -> list[dict[str, Any]]:
        """The last ones, or the last ones of a field, in the order in which they happened."""
        found: list[dict[str, Any]] = []
        containing = "" if field is None else f'"field":{dump(field)}'
        before = None
        while len(found) < most:
            rows = self._db.rows(_NEWEST_TRANSFORMATIONS, (run_id, before, before, containing, _AT_ONCE))
            for *columns, sealed in rows:
                if seal(*columns) != sealed:
                    raise self._db.damaged(f"transformations {columns[1]} of run {run_id}")
                found += reversed([one for one in load(columns[3]) if field in (None, one["field"])])
            if len(rows) < _AT_ONCE:
                break
            before = rows[-1][1]
        return found[:most][::-1]


# ruff: noqa: S608 - what is put into these texts are the names of columns below

_RUN_COLUMNS = (
    "run_id, workflow, workspace, driver, inputs, details, status, start, reason, created_at, updated_at, ended_at"
)
_DEFINITION = "SELECT definition FROM runs WHERE run_id = ?"
_ADD_RUN = f"INSERT INTO runs ({_RUN_COLUMNS}, seal, definition) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_CHANGE_RUN = """UPDATE runs SET driver = ?, details = ?, status = ?, start = ?, reason = ?, updated_at = ?,
    ended_at = ?, seal = ? WHERE run_id = ?"""
_RUN = f"SELECT {_RUN_COLUMNS}, seal FROM runs WHERE run_id = ?"
_RUNS = f"SELECT {_RUN_COLUMNS}, seal FROM runs ORDER BY number DESC LIMIT ?"
_STANDINGS = "SELECT run_id, status, updated_at FROM runs ORDER BY number DESC"
_RUNS_OF_STATUS = f"""SELECT {_RUN_COLUMNS}, seal FROM runs WHERE status IN (SELECT value FROM json_each(?))
    ORDER BY number DESC LIMIT ?"""
_RUNS_OF_WORKSPACE = f"SELECT {_RUN_COLUMNS}, seal FROM runs WHERE workspace = ? ORDER BY number DESC LIMIT ?"

_LAST_EVENT = """SELECT runs.start, (SELECT COALESCE(MAX(seq), 0) FROM events WHERE run_id = runs.run_id) FROM runs
    WHERE run_id = ?"""
_ADD_EVENT = """INSERT INTO events (run_id, seq, start, at, kind, closes, data, replayed, seal)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_NEWEST_EVENTS = """SELECT run_id, seq, start, at, kind, closes, data, replayed, seal FROM events
    WHERE run_id = ? AND seq < ? AND kind IN (SELECT value FROM json_each(?)) AND instr(data, ?) > 0
    ORDER BY seq DESC LIMIT ?"""
_EVENTS = """SELECT run_id, seq, start, at, kind, closes, data, replayed, seal FROM events
    WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?"""

_ADD_SIGNAL = """INSERT INTO signals (run_id, signal_id, kind, outcome, start, at, seal) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING"""
_SIGNALS = "SELECT run_id, signal_id, kind, outcome, start, at, seal FROM signals WHERE run_id = ? ORDER BY signal_id"

_STEP_COLUMNS = "run_id, number, key, attempt, status, began_at, ended_at, outcome"
_LAST_STEP = "SELECT COALESCE(MAX(number), 0) FROM steps WHERE run_id = ?"
_LAST_ATTEMPT = f"SELECT {_STEP_COLUMNS}, seal FROM steps WHERE run_id = ? AND key = ? ORDER BY attempt DESC LIMIT 1"
_ADD_STEP = f"INSERT INTO steps ({_STEP_COLUMNS}, seal) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_END_STEP = """UPDATE steps SET status = ?, ended_at = ?, outcome = ?, seal = ?
    WHERE run_id = ? AND number = ? AND status = 'begun'"""
_STEPS = f"SELECT {_STEP_COLUMNS}, seal FROM steps WHERE run_id = ? ORDER BY number"

_HANDOUT_COLUMNS = "run_id, task_id, key, step, handed_at"
_HANDOUT = f"SELECT {_HANDOUT_COLUMNS}, seal FROM handouts WHERE run_id = ? AND task_id = ?"
_HANDOUTS = f"SELECT {_HANDOUT_COLUMNS}, seal FROM handouts WHERE run_id = ? ORDER BY task_id"
_ADD_HANDOUT = f"INSERT INTO handouts ({_HANDOUT_COLUMNS}, seal) VALUES (?, ?, ?, ?, ?, ?)"
_DROP_HANDOUT = "DELETE FROM handouts WHERE run_id = ? AND task_id = ?"

_LAST_TRANSFORMATIONS = "SELECT COALESCE(MAX(number), 0) FROM transformations WHERE run_id = ?"
_ADD_TRANSFORMATIONS = "INSERT INTO transformations (run_id, number, applied, traces, seal) VALUES (?, ?, ?, ?, ?)"
_TOTAL_TRANSFORMATIONS = "SELECT COALESCE(SUM(applied), 0) FROM transformations WHERE run_id = ?"
_NEWEST_TRANSFORMATIONS = """SELECT run_id, number, applied, traces, seal FROM transformations WHERE run_id = ?
    AND (? IS NULL OR number < ?) AND instr(traces, ?) > 0 ORDER BY number DESC LIMIT ?"""

_ADD_AGENT = "INSERT INTO agents (agent_id, run_id, record, ended, seal) VALUES (?, ?, ?, ?, ?)"
_END_AGENT = "UPDATE agents SET ended = ?, seal = ? WHERE agent_id = ?"
_AGENT = "SELECT agent_id, run_id, record, ended, seal FROM agents WHERE agent_id = ?"
_AGENTS_NOT_ENDED = "SELECT agent_id, run_id, record, ended, seal FROM agents WHERE ended IS NULL ORDER BY rowid"
_AGENTS_OF_RUN = "SELECT agent_id, run_id, record, ended, seal FROM agents WHERE run_id = ? ORDER BY rowid"
