"""The journal of a project: its runs, what happened to them, and what a later sidecar needs to go on with them.

Each call is a transaction, or a part of the one that is open.
"""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

from sidecar.errors import StoreError
from sidecar.model.events import RUN_ENDED, RUN_RESUMED, RUN_STARTED, RunEvent
from sidecar.store.db import Table, dump, load, pack, plain, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from sidecar.model.agent import AgentEnded, AgentRecord
    from sidecar.store.db import Database

Ending = Literal["paused", "completed", "failed", "aborted", "stopped", "interrupted"]
Status = Literal["pending", "running"] | Ending
StepStatus = Literal["begun", "completed", "failed", "interrupted"]
OPEN = frozenset({"pending", "running", "paused", "interrupted"})  # a run that stands like this has not ended
_NO_LIMIT = -1  # as SQLite has it
_AFTER_ALL = 2**63 - 1
_PAGE = 100  # rows
_REPLAYED = ("outcome", "names")  # of an event: what the run computed, and computes with when it is replayed
_VALUES, _WRITES = "values", "writes"


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


class RunSummary(NamedTuple):
    """What a list of runs shows of one. `last_end`: the data of the last of its ends."""

    run_id: str
    workflow: str
    workspace: str | None
    driver: str
    status: Status
    reason: str | None
    created_at: float
    ended_at: float | None
    step: str | None
    iteration: int | None
    cost_usd: float | None
    tokens: int
    last_end: dict[str, Any]


# Correlated, since few events are looked at: SQLite reads a run's events from the last one backwards.
_SUMMARY = """SELECT run_id, workflow, workspace, driver, status, reason, created_at, ended_at,
    (SELECT json_extract(data, '$.step') FROM events WHERE run_id = runs.run_id
        AND kind IN ('step_started', 'step_completed') AND json_extract(data, '$.task') IS NULL
        ORDER BY seq DESC LIMIT 1),
    (SELECT json_extract(data, '$.iteration') FROM events WHERE run_id = runs.run_id
        AND kind = 'iteration' AND json_extract(data, '$.task') IS NULL ORDER BY seq DESC LIMIT 1),
    (SELECT json_array(SUM(json_extract(data, '$.cost_usd')), SUM(json_extract(data, '$.tokens'))) FROM events
        WHERE run_id = runs.run_id AND kind = 'usage'),
    (SELECT data FROM events WHERE run_id = runs.run_id AND closes = 1 ORDER BY start DESC LIMIT 1)
    FROM runs"""


class Mask(Protocol):
    """Knows the secrets of a run."""

    in_json: tuple[str, ...]  # the secrets as JSON spells them

    def masked_event(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The data of an event without them."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, as everybody may see it. `seq` has no gaps; `closes` marks the end of a start."""

    run_id: str
    seq: int
    start: int
    at: float
    kind: str
    closes: int  # 1 or 0
    data: dict[str, Any]
    replayed: str | None  # JSON, for a replay only: values of the run that have secrets, writes of its states

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
    def run_event(self) -> RunEvent:
        """For the listeners of the run."""
        return RunEvent(self.run_id, self.kind, self.at, self.data, self.seq)


@dataclass(frozen=True, slots=True)
class AppliedSignal:
    """A signal that this run has taken or refused, and will not take again."""

    run_id: str
    signal_id: str
    kind: str
    outcome: str
    start: int
    at: float


# `workspace` and `reason` are JSON, because a path can hold bytes that are no text.
_RUNS = Table("runs", StoredRun, "run {run_id}", json=("workspace", "inputs", "details", "reason"))
_EVENTS = Table("events", Event, "event {seq} of run {run_id}, {kind}", json=("data",))
_SIGNALS = Table("signals", AppliedSignal, "signal {signal_id} of run {run_id}")


class Journal:
    """Runs with their events, and exactly one end for each start or resume; the signals that a run has taken."""

    def __init__(self, database: Database, mask_of: Callable[[str], Mask | None] = lambda _: None) -> None:
        """`mask_of`: the mask of a run, for the events that are made here."""
        self._db = database
        self._mask_of = mask_of

    def transaction(self) -> AbstractContextManager[None]:
        """Several calls as one: all of it or nothing, and no other process writes in between."""
        return self._db.transaction()

    # --- runs

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
        now, packed = self._db.clock(), pack(definition)
        run = StoredRun(run_id, workflow, workspace, driver, inputs, details or {}, "pending", 0, None, now, now, None)
        with self._db.transaction():
            self._db.insert(_RUNS, run)
            self._db.execute("UPDATE runs SET definition = ? WHERE run_id = ?", (packed, run_id))
            return self.run(run_id)

    def begin(self, run_id: str, data: dict[str, Any] | None = None) -> int:
        """A start or a resume: the run is running. Refused until the start before has its end. Returns its number."""
        with self._db.transaction():
            run = self.run(run_id)
            self._change(run, status="running", start=run.start + 1, reason=None, ended_at=None)
            self.append(run_id, RUN_RESUMED if run.start else RUN_STARTED, data)
        return run.start + 1

    def end(
        self, run_id: str, status: Ending, *, reason: str | None = None, data: dict[str, Any] | None = None
    ) -> Event:
        """The one end of this start: the event and the run's status, together."""
        if status not in get_args(Ending):
            raise StoreError(f"{status} is not how a run ends", kind="value")
        with self._db.transaction():
            data = {**(data or {}), "status": status, "reason": reason}
            event = self._append(run_id, RUN_ENDED, data, closes=True)
            self._change(self.run(run_id), status=status, reason=event.data["reason"], ended_at=event.at)
        return event

    def end_unheld(self, run_id: str, status: Ending, *, reason: str | None = None) -> Event:
        """The end of an open run that no process executes. Where its last start has an end already (it is paused, or
        was interrupted), this is the end of one more, without an event that would say that it went on."""
        with self._db.transaction():
            run = self.run(run_id)
            if run.status != "running":
                self._change(run, start=run.start + 1)
            return self.end(run_id, status, reason=reason)

    def begin_again(self, run_id: str) -> StoredRun:
        """A run that had ended is to go on, and is pending until a process does."""
        with self._db.transaction():
            return self._change(self.run(run_id), status="pending", reason=None, ended_at=None)

    def take_back_beginning(self, run_id: str) -> StoredRun:
        """The run does not go on after all: it stands as its last end has it."""
        with self._db.transaction():
            last = self.last_end(run_id)
            if last is None:
                raise StoreError(f"run {run_id} never ended before", kind="value")
            status, reason = last.data["status"], last.data["reason"]
            return self._change(self.run(run_id), status=status, reason=reason, ended_at=last.at)

    def change(self, run_id: str, **changes: Any) -> StoredRun:
        """The run's driver or details, or a status between start and end."""
        allowed = changes.keys() <= {"driver", "details", "status"}
        if not allowed or changes.get("status", "running") not in ("running", "paused"):
            raise StoreError(f"a run is not changed like this: {changes}", kind="value")
        with self._db.transaction():
            return self._change(self.run(run_id), **plain(changes))

    def run(self, run_id: str) -> StoredRun:
        """One run; `StoreError` of kind `missing` where there is none."""
        run = self.find(run_id)
        if run is None:
            raise _unknown(run_id)
        return run

    def find(self, run_id: str) -> StoredRun | None:
        """One run; None where there is none."""
        return next(iter(self._db.select(_RUNS, "WHERE run_id = ?", (run_id,))), None)

    def runs(
        self, *, workspace: str | None = None, statuses: Collection[str] | None = None, limit: int | None = None
    ) -> list[StoredRun]:
        """Newest first; those of one workspace, or those that stand like this, where one is given."""
        where, values = "", []
        if workspace is not None:
            where, values = "WHERE workspace = ?", [dump(workspace)]
        elif statuses is not None:
            where, values = "WHERE status IN (SELECT value FROM json_each(?))", [dump(sorted(statuses))]
        most = _NO_LIMIT if limit is None else limit
        return self._db.select(_RUNS, f"{where} ORDER BY number DESC LIMIT ?", (*values, most))

    def ids_like(self, part: str) -> list[str]:
        """The ids that begin or end so, newest first."""
        where = "substr(run_id, 1, length(?1)) = ?1 OR substr(run_id, -length(?1)) = ?1"
        return self._ids(where, part)

    def ids_not_completed(self, *, driver: str) -> list[str]:
        """Those of the runs with this driver that can be resumed, newest first."""
        return self._ids("status != 'completed' AND driver = ?", driver)

    def _ids(self, where: str, *values: str) -> list[str]:
        rows = self._db.rows(f"SELECT run_id FROM runs WHERE {where} ORDER BY number DESC", values)  # noqa: S608
        return [run_id for (run_id,) in rows]

    def summaries(self, *, run_id: str | None = None, limit: int | None = None) -> list[RunSummary]:
        """What a list shows, newest first, in one query; of one run, where one is given."""
        if run_id is not None:
            rows = self._db.rows(f"{_SUMMARY} WHERE run_id = ?", (run_id,))
            if not rows:
                raise _unknown(run_id)
        else:
            rows = self._db.rows(f"{_SUMMARY} ORDER BY number DESC LIMIT ?", (_NO_LIMIT if limit is None else limit,))
        return list(map(_summary, rows))

    def standings(self) -> list[tuple[str, str, float]]:
        """Of every run its id, its status and when it changed last, newest first. What a run carries along (the
        environment that it was started with) stays on the disk: a long-lived process asks for thousands of them."""
        rows = self._db.rows("SELECT run_id, status, updated_at FROM runs ORDER BY number DESC")
        return [(run_id, status, changed_at) for run_id, status, changed_at in rows]

    def definition(self, run_id: str) -> str:
        """The text of the definition that the run started with."""
        rows = self._db.rows("SELECT definition FROM runs WHERE run_id = ?", (run_id,))
        if not rows:
            raise _unknown(run_id)
        try:
            return str(unpack(rows[0][0]))
        except (TypeError, ValueError, zlib.error):
            raise self._db.damaged(f"the definition of run {run_id}") from None

    def _change(self, run: StoredRun, **changes: Any) -> StoredRun:
        run = replace(run, updated_at=self._db.clock(), **changes)
        self._db.update(_RUNS, run, ("updated_at", *changes), "WHERE run_id = ?", (run.run_id,))
        return run

    # --- events

    def append(self, run_id: str, kind: str, data: dict[str, Any] | None = None, *, durable: bool = False) -> Event:
        """One more event. Durable where it must be known after a power loss that it came this far."""
        with self._db.transaction(durable=durable):
            return self._append(run_id, kind, data or {}, closes=False)

    def append_all(
        self,
        run_id: str,
        start: int,
        last: int,
        entries: Sequence[tuple[str, dict[str, Any], list[Any]]],
        mask: Mask | None = None,
    ) -> list[RunEvent]:
        """Several events with their writes of states, inside a transaction, by the process that executes the run and
        knows its start, its last event and its mask: cheaper than one after the other. Refused where another process
        has written one since."""
        # One search for all, since hardly any event has a secret in it.
        if mask is not None and not (mask.in_json and _has_secret([data for _, data, _ in entries], mask)):
            mask = None
        at = self._db.clock()
        events = [
            Event(run_id, seq, start, at, kind, 0, *_shown(data, writes, mask))
            for seq, (kind, data, writes) in enumerate(entries, last + 1)
        ]
        self._db.insert(_EVENTS, *events)
        return [event.run_event for event in events]

    def events(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Event]:
        """In order, those behind a sequence number."""
        values = (run_id, after, _NO_LIMIT if limit is None else limit)
        events = self._db.select(_EVENTS, "WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?", values)
        for expected, event in enumerate(events, start=after + 1):
            if event.seq != expected:
                raise self._db.damaged(f"event {expected} of run {run_id} is missing")
        return events

    def newest(self, run_id: str, kinds: Collection[str], containing: str = "") -> Iterator[Event]:
        """Events of these kinds, the last one first, read as they are asked for. `containing`: only those whose data
        contains this as JSON text: SQLite passes over the others quickly, however many there are."""
        where = """WHERE run_id = ? AND seq < ? AND kind IN (SELECT value FROM json_each(?)) AND instr(data, ?) > 0
            ORDER BY seq DESC LIMIT ?"""
        before, wanted = _AFTER_ALL, dump(sorted(kinds))
        while events := self._db.select(_EVENTS, where, (run_id, before, wanted, containing, _PAGE)):
            yield from events
            before = events[-1].seq

    def last_end(self, run_id: str) -> Event | None:
        """The end of its last start that has one."""
        last = self.last_seq(run_id)
        events = self.events(run_id, after=max(last - 1, 0))
        return events[-1] if events and events[-1].closes else None

    def last_seq(self, run_id: str) -> int:
        """The number of its last event; 0 before the first."""
        return int(self._db.rows("SELECT COALESCE(MAX(seq), 0) FROM events WHERE run_id = ?", (run_id,))[0][0])

    def _append(self, run_id: str, kind: str, data: dict[str, Any], *, closes: bool) -> Event:
        found = self._db.rows("SELECT start FROM runs WHERE run_id = ?", (run_id,))
        if not found:
            raise _unknown(run_id)
        seq, at, shown = self.last_seq(run_id) + 1, self._db.clock(), _shown(data, [], self._mask_of(run_id))
        event = Event(run_id, seq, found[0][0], at, kind, int(closes), *shown)
        self._db.insert(_EVENTS, event)
        return event

    # --- signals

    def take_signal(self, run_id: str, signal_id: str, kind: str, outcome: str = "applied") -> bool:
        """Note that the run has taken this signal; False where it already had."""
        with self._db.transaction():
            start = self.run(run_id).start
            if self._db.select(_SIGNALS, "WHERE run_id = ? AND signal_id = ?", (run_id, signal_id)):
                return False
            self._db.insert(_SIGNALS, AppliedSignal(run_id, signal_id, kind, outcome, start, self._db.clock()))
            return True

    def signals(self, run_id: str) -> dict[str, AppliedSignal]:
        """Every signal that the run has taken, by id."""
        found = self._db.select(_SIGNALS, "WHERE run_id = ? ORDER BY signal_id", (run_id,))
        return {signal.signal_id: signal for signal in found}


def _summary(row: Sequence[Any]) -> RunSummary:
    run_id, workflow, workspace, driver, status, reason, created_at, ended_at, step, iteration, used, end = row
    cost_usd, tokens = load(used)
    stands = (run_id, workflow, load(workspace), driver, status, load(reason), created_at, ended_at, step, iteration)
    return RunSummary(*stands, cost_usd, tokens or 0, load(end) if end else {})


# --- compaction

_DAY_S = 86_400.0
_FREED_PAGES = 1_000  # given back at a time, so that no other process waits long


@dataclass(frozen=True, slots=True)
class Keep:
    """What stays of the runs that have ended: of the completed ones the newest, up to an age; of the others every one
    that is not older than that."""

    newest: int = 200
    age_s: float = 30 * _DAY_S


def surplus(database: Database, keep: Keep, live: Collection[str] = ()) -> list[tuple[str, str, float]]:
    """The runs that may be deleted now, each with its status and its last change. Only reads."""
    oldest = database.clock() - keep.age_s
    completed = 0
    found: list[tuple[str, str, float]] = []
    for run_id, status, changed_at in Journal(database).standings():
        completed += status == "completed"
        is_too_many = status == "completed" and completed > keep.newest
        if status not in OPEN and run_id not in live and (is_too_many or changed_at < oldest):
            found.append((run_id, status, changed_at))
    return found


def compact(database: Database, keep: Keep, live: Collection[str] = (), *, at_most: int | None = None) -> list[str]:
    """Delete old runs: never one that has not ended, and no young one that can be resumed. `live` are the runs that are
    executed now. Returns the ids of those that went, `at_most` so many.

    The age is counted from the last change. A clock that jumped back makes runs younger, which keeps them.
    """
    journal = Journal(database)
    gone: list[str] = []
    for run_id, status, changed_at in surplus(database, keep, live):
        if len(gone) == at_most:
            break
        # A transaction each: a process that wants to write meanwhile waits for one run, not for a year of them.
        with database.transaction(durable=False):
            run = journal.find(run_id)
            # Another process may have resumed or deleted it since it was listed.
            if run is not None and (run.status, run.updated_at) == (status, changed_at):
                database.execute("DELETE FROM agents WHERE run_id = ? AND ended IS NOT NULL", (run_id,))
                database.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))
                gone.append(run_id)
    if gone:
        with database.transaction():
            database.execute("DELETE FROM agents WHERE run_id IS NULL AND ended IS NOT NULL")
        database.shrink(_FREED_PAGES)
    return gone


def _unknown(run_id: str) -> StoreError:
    return StoreError(f"no such run: {run_id}; `sidecar status` lists them", kind="missing")


def _has_secret(data: object, mask: Mask) -> bool:
    """Whether a value has a secret in it. A search of its JSON costs less than a look at each of its values."""
    text = dump(data)
    return any(secret in text for secret in mask.in_json)


def _shown(data: dict[str, Any], writes: list[Any], mask: Mask | None) -> tuple[dict[str, Any], str | None]:
    """An event's data as everybody may see them, without secrets, and what only a replay reads."""
    replayed: dict[str, Any] = {_WRITES: writes} if writes else {}
    if mask is not None and _has_secret(data, mask):
        shown = mask.masked_event(data)
        values = {name: data[name] for name in _REPLAYED if name in data and shown[name] != plain(data[name])}
        replayed |= {_VALUES: values} if values else {}
        data = shown
    return data, dump(replayed) if replayed else None


class Step(NamedTuple):
    """One attempt at a step. `key` distinguishes it from every other of the run: its id with the iterations around
    it."""

    run_id: str
    number: int  # in the order in which attempts were begun
    key: str
    attempt: int
    status: StepStatus
    began_at: float
    ended_at: float | None
    outcome: Any  # its result, or why it failed


_STEPS = Table("steps", Step, "step {key} of run {run_id}", json=("outcome",))


class Steps:
    """Steps and their attempts, durably: what has completed is never done again; what was in flight is, with the next
    number."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._begun: dict[tuple[str, str, int], Step] = {}  # attempts of our own that are in flight

    def begin(self, run_id: str, key: str) -> int:
        """Before its effect: the step is in flight. Returns the attempt's number.

        An attempt that is still in flight belonged to an owner that died: it ends as interrupted, and if that owner
        should be alive after all, its result is refused.
        """
        with self._db.transaction():
            last = self.last(run_id, key)
            if last is not None and last.status == "begun":
                self._end(last, "interrupted", None)
            attempt = last.attempt + 1 if last else 1
            number = self._db.rows("SELECT COALESCE(MAX(number), 0) FROM steps WHERE run_id = ?", (run_id,))[0][0] + 1
            step = Step(run_id, number, key, attempt, "begun", self._db.clock(), None, None)
            self._db.insert(_STEPS, step)
            self._begun[run_id, key, attempt] = step
        return attempt

    def complete(self, run_id: str, key: str, attempt: int, result: object = None) -> None:
        """After its effect: done for ever."""
        self._end_attempt(run_id, key, attempt, "completed", result)

    def fail(self, run_id: str, key: str, attempt: int, error: object) -> None:
        """This attempt is over; another may begin."""
        self._end_attempt(run_id, key, attempt, "failed", error)

    def last(self, run_id: str, key: str) -> Step | None:
        """The latest attempt at it."""
        where = "WHERE run_id = ? AND key = ? ORDER BY attempt DESC LIMIT 1"
        return next(iter(self._db.select(_STEPS, where, (run_id, key))), None)

    def steps(self, run_id: str) -> list[Step]:
        """Every attempt, in the order in which they were begun."""
        steps = self._db.select(_STEPS, "WHERE run_id = ? ORDER BY number", (run_id,))
        for expected, step in enumerate(steps, start=1):
            if step.number != expected:
                raise self._db.damaged(f"step {expected} of run {run_id} is missing")
        return steps

    def _end_attempt(self, run_id: str, key: str, attempt: int, status: StepStatus, outcome: object) -> None:
        step = self._begun.pop((run_id, key, attempt), None)
        with self._db.transaction():
            # Another process that took us for dead may have ended it since: then nothing is changed: read the row.
            if step is None or not self._end(step, status, outcome):
                self._end(self._in_flight(run_id, key, attempt), status, outcome)

    def _in_flight(self, run_id: str, key: str, attempt: int) -> Step:
        last = self.last(run_id, key)
        if last is None:
            raise StoreError(f"run {run_id}, step {key}: it was never begun", kind="missing")
        if (last.attempt, last.status) != (attempt, "begun"):
            message = f"attempt {attempt} is not in flight: attempt {last.attempt} is {last.status}"
            raise StoreError(f"run {run_id}, step {key}: {message}", kind="conflict")
        return last

    def _end(self, step: Step, status: StepStatus, outcome: object) -> bool:
        ended = step._replace(status=status, ended_at=self._db.clock(), outcome=outcome)
        where = "WHERE run_id = ? AND number = ? AND status = 'begun'"
        return self._db.update(_STEPS, ended, ("status", "ended_at", "outcome"), where, (step.run_id, step.number)) == 1


class _AgentRow(NamedTuple):
    agent_id: str
    run_id: str | None
    record: dict[str, Any]
    ended: str | None  # JSON


_AGENTS = Table("agents", _AgentRow, "agent {agent_id}", json=("record",))


class Agents:
    """The agents that were started, durably, so that a later sidecar finds those whose owner died; each ends once."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def started(self, record: AgentRecord) -> None:
        """It runs."""
        with self._db.transaction():
            self._db.insert(_AGENTS, _AgentRow(record.agent_id, record.run_id, asdict(record), None))

    def ended(self, agent_id: str, ended: AgentEnded | None = None) -> None:
        """Its tree is empty; None: that is all that is known, as after its owner's death."""
        text = dump(asdict(ended) if ended else {})
        with self._db.transaction():
            rows = self._db.select(_AGENTS, "WHERE agent_id = ?", (agent_id,))
            if not rows:
                raise StoreError(f"the journal knows no agent {agent_id}", kind="missing")
            row = rows[0]._replace(ended=text)
            self._db.update(_AGENTS, row, ("ended",), "WHERE agent_id = ?", (agent_id,))

    def not_ended(self) -> list[AgentRecord]:
        """Those that may be alive, in every run of the project."""
        from sidecar.model.agent import AgentRecord  # noqa: PLC0415 - pydantic: whoever only looks at runs does without

        rows = self._db.select(_AGENTS, "WHERE ended IS NULL ORDER BY rowid")
        return [AgentRecord(**row.record) for row in rows]

    def not_ended_of(self, run_id: str) -> set[str]:
        """The ids of the agents of a run that have not ended."""
        rows = self._db.rows("SELECT agent_id FROM agents WHERE run_id = ? AND ended IS NULL", (run_id,))
        return {agent_id for (agent_id,) in rows}


@dataclass(frozen=True, slots=True)
class Handout:
    """A step that an agent outside has in hand for a task. The run itself is the task with the empty id."""

    run_id: str
    task_id: str
    key: str
    step: Any
    handed_at: float


_HANDOUTS = Table("handouts", Handout, "the step in hand of task {task_id} of run {run_id}", json=("step",))


class Handouts:
    """Steps that were handed out to agents outside, durably, since an agent acts on it: the same one until it is
    done."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def hand_out(self, run_id: str, task_id: str, key: str, step: object) -> Handout:
        """Give this step to a task; where it has one in hand already, that one again."""
        with self._db.transaction():
            handout = self.held(run_id, task_id)
            if handout is None:
                handout = Handout(run_id, task_id, key, plain(step), self._db.clock())
                self._db.insert(_HANDOUTS, handout)
            return handout

    def take_back(self, run_id: str, task_id: str) -> bool:
        """It is done, or given up; False where nothing was handed out."""
        with self._db.transaction():
            return self._db.execute("DELETE FROM handouts WHERE run_id = ? AND task_id = ?", (run_id, task_id)) == 1

    def held(self, run_id: str, task_id: str = "") -> Handout | None:
        """What the task has in hand."""
        return next(iter(self._db.select(_HANDOUTS, "WHERE run_id = ? AND task_id = ?", (run_id, task_id))), None)

    def all_held(self, run_id: str) -> list[Handout]:
        """What every task of the run has in hand."""
        return self._db.select(_HANDOUTS, "WHERE run_id = ? ORDER BY task_id", (run_id,))

    def age_s(self, handout: Handout) -> float:
        """How long ago it was handed out."""
        return self._db.clock() - handout.handed_at


class _TransformationsRow(NamedTuple):
    run_id: str
    number: int
    applied: int
    traces: list[dict[str, Any]]  # of one transaction of the journal


_TRANSFORMATIONS = Table(
    "transformations", _TransformationsRow, "transformations {number} of run {run_id}", json=("traces",)
)


class Transformations:
    """How a run's computed fields were computed: the trail stays as long as the run does."""

    def __init__(self, database: Database, mask_of: Callable[[str], Mask | None] = lambda _: None) -> None:
        """`mask_of`: the mask of a run, for what is written here."""
        self._db = database
        self._mask_of = mask_of

    def masked(self, run_id: str, traces: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """As everybody may see them."""
        mask = self._mask_of(run_id) if traces else None
        return list(traces) if mask is None else [mask.masked_event(one) for one in traces]

    def add(self, run_id: str, traces: Sequence[dict[str, Any]]) -> None:
        """What was computed since the last call. Those with `applied` false were undone, and are not counted."""
        if not traces:
            return
        applied = sum(bool(trace["applied"]) for trace in traces)
        last = "SELECT COALESCE(MAX(number), 0) FROM transformations WHERE run_id = ?"
        with self._db.transaction(durable=False):
            number = self._db.rows(last, (run_id,))[0][0] + 1
            self._db.insert(_TRANSFORMATIONS, _TransformationsRow(run_id, number, applied, self.masked(run_id, traces)))

    def total(self, run_id: str) -> int:
        """How many there were."""
        total = "SELECT COALESCE(SUM(applied), 0) FROM transformations WHERE run_id = ?"
        return int(self._db.rows(total, (run_id,))[0][0])

    def newest(self, run_id: str, most: int, field: str | None = None) -> list[dict[str, Any]]:
        """The last ones, or the last ones of a field, in the order in which they happened."""
        found: list[dict[str, Any]] = []
        containing = "" if field is None else f'"field":{dump(field)}'
        where = "WHERE run_id = ? AND number < ? AND instr(traces, ?) > 0 ORDER BY number DESC LIMIT ?"
        before = _AFTER_ALL
        while len(found) < most:
            rows = self._db.select(_TRANSFORMATIONS, where, (run_id, before, containing, _PAGE))
            for row in rows:
                found += reversed([one for one in row.traces if field in (None, one["field"])])
            if len(rows) < _PAGE:
                break
            before = rows[-1].number
        return found[:most][::-1]


class Checkpoint(NamedTuple):
    """The last boundary that a run has passed."""

    run_id: str
    number: int
    at: float
    content: Any  # packed in the table


_CHECKPOINTS = Table("checkpoints", Checkpoint, "checkpoint {number} of run {run_id}")
_KEPT_CHECKPOINTS = 2


class Checkpoints:
    """The cursor and the states of a run at a boundary, from which a resume goes on."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def save(self, run_id: str, content: object, *, durable: bool = True) -> int:
        """One more checkpoint; the oldest goes. Returns its number."""
        packed = pack(content)
        last = "SELECT COALESCE(MAX(number), 0) FROM checkpoints WHERE run_id = ?"
        with self._db.transaction(durable=durable):
            number: int = self._db.rows(last, (run_id,))[0][0] + 1
            self._db.insert(_CHECKPOINTS, Checkpoint(run_id, number, self._db.clock(), packed))
            older = (run_id, number - _KEPT_CHECKPOINTS)
            self._db.execute("DELETE FROM checkpoints WHERE run_id = ? AND number <= ?", older)
        return number

    def last(self, run_id: str) -> Checkpoint | None:
        """The newest; None where the run has passed no boundary yet."""
        rows = self._db.select(_CHECKPOINTS, "WHERE run_id = ? ORDER BY number DESC LIMIT 1", (run_id,))
        return rows[0]._replace(content=unpack(rows[0].content)) if rows else None
