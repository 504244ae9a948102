"""Reads what is known of runs: their status objects, which run a text means, their events as they come, their logs.

Whoever executes a run, this reads its journal and its files. Nothing here needs the engine.
"""

from __future__ import annotations

import json
import math
import os
from codecs import getincrementaldecoder
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sidecar import layout
from sidecar.errors import InputError, NotFound
from sidecar.model import events as kinds
from sidecar.signals import files, run_lock, targets
from sidecar.store.db import NAME, open_database
from sidecar.store.journal import Agents, Journal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from sidecar.model.events import RunEvent
    from sidecar.store.db import Database
    from sidecar.store.journal import Event, RunSummary, StoredRun

Json = dict[str, Any]
_STARTS_AND_GATES = (kinds.RUN_STARTED, kinds.RUN_RESUMED, kinds.GATE)
_AGENT = ("pid", "name", "step", "log")  # of the event of its start
_SHORTEST = 4  # part of an id that means a run
_LAST = "last"
_NO_RUN = "no run was named, and none fits"
_SHOWN = 5
# SQLite tells nobody that something was written, and the writer may be any process.
_LOOK_S = 0.1
_SOON_S = 0.01  # behind something new: more may be about to come
_LOOKS = 5  # without an owner: one that is just being replaced is none that died
_LAST_EVENTS, _LAST_LINES = 40, 10
_RUN_LOG = "run.log"
_PIECE = 64 * 1024
_INSIDE = frozenset({"thread", "outcome", "boot"})  # of an event: what a resume needs, and nobody else understands


def describe_all(database: Database, root: str, *, limit: int | None = None) -> list[Json]:
    """Every run, newest first, as `status --json` has them."""
    signals: dict[str, list[Json]] = {}
    return [_described(database, root, run, signals) for run in Journal(database).summaries(limit=limit)]


def describe(database: Database, root: str, run_id: str) -> Json:
    """One run, as `status --json` has it."""
    (run,) = Journal(database).summaries(run_id=run_id)
    return _described(database, root, run, {})


def effective_status(root: str, run: RunSummary | StoredRun) -> str:
    """The run's status; one whose owner died is interrupted, though the journal does not say so yet."""
    if run.status == "running" and run.driver == "server" and not run_lock.is_live(root, run.run_id):
        return "interrupted"
    return run.status


def messages(database: Database, run_id: str) -> list[str]:
    """What the run said to the person."""
    return [event.data["text"] for event in Journal(database).events(run_id) if event.kind == kinds.MESSAGE]


def last_lines(database: Database, run_id: str) -> list[str]:
    """The last events of a run, a line each."""
    lines = map(event_as_text, Journal(database).events(run_id)[-_LAST_EVENTS:])
    return [line.rstrip("\n") for line in lines if line is not None][-_LAST_LINES:]


def _described(database: Database, root: str, run: RunSummary, signals: dict[str, list[Json]]) -> Json:
    status = effective_status(root, run)
    has_ended = run.status not in ("running", "pending")
    return {
        "run_id": run.run_id,
        "workflow": run.workflow,
        "workspace": run.workspace,
        "status": status,
        "step": None if run.status == "completed" else run.step,
        "iteration": run.iteration,
        "started_at": iso_timestamp(run.created_at),
        "ended_at": iso_timestamp(run.ended_at) if has_ended and run.ended_at is not None else None,
        "reason": run.reason or "",
        "limit": run.last_end.get("limit") if has_ended else None,
        "needs": _needs(database, run, status),
        "waiting": None,
        "cost_usd": run.cost_usd,
        "tokens": run.tokens,
        "driver": run.driver,
        "signals": _signals(root, run, signals),
        "agents": _agents(database, run.run_id) if status == "running" else [],
    }


def _needs(database: Database, run: RunSummary, status: str) -> Json | None:
    """What the run needs from a person: an answer, or the approval of a stage or plan; the latter is known while the
    agents that submitted it are still being ended."""
    if status == "paused":
        found = run.last_end.get("waits")
    elif status == "running":
        last = next(Journal(database).newest(run.run_id, _STARTS_AND_GATES), None)
        found = last.data if last is not None and last.kind == kinds.GATE else None
    else:
        return None
    if found is None or "stage" not in found:
        return None if found is None else {**found, "kind": "answer"}
    return {**found, "kind": "approval", "submitted": found["kind"]}


def _signals(root: str, run: RunSummary, seen: dict[str, list[Json]]) -> list[Json]:
    if run.status not in ("running", "pending", "paused"):
        return []
    places = layout.signal_directories(root, run.run_id, run.workspace)
    for place in places:
        if place not in seen:
            seen[place] = _signals_in(place)
    return [signal for place in places for signal in seen[place]]


def _signals_in(directory: str) -> list[Json]:
    found = [files.read(directory, kind) for kind in files.FILE_NAMES]
    return [
        {"signal": one.kind, "path": one.path, "reason": one.reason, "since": iso_timestamp(one.arrived_at)}
        for one in found
        if one is not None
    ]


def _agents(database: Database, run_id: str) -> list[Json]:
    """Those that live, in the order in which they were started."""
    living = Agents(database).not_ended_of(run_id)
    found: list[Json] = []
    for event in Journal(database).newest(run_id, [kinds.AGENT_STARTED]) if living else ():
        if event.data["agent_id"] in living:
            living.remove(event.data["agent_id"])
            started_at = iso_timestamp(event.at)
            found.insert(0, {**{key: event.data[key] for key in _AGENT}, "started_at": started_at})
        if not living:
            break
    return found


# --- which run is meant


@contextmanager
def journal_of(root: str) -> Iterator[Database | None]:
    """The project's database, to read; None where there is none: to look must not make one."""
    if not os.path.exists(os.path.join(layout.state_directory(root), NAME)):
        yield None
        return
    if layout.foreign(root, os.environ) is not None:
        from sidecar import config  # noqa: PLC0415 - to look costs no parser

        config.refuse_foreign(root, os.environ)
    with open_database(root) as database:
        yield database


@contextmanager
def journal_with(
    root: str, text: str | None, default: Callable[[Journal, str], StoredRun | None] | None = None
) -> Iterator[tuple[Database, StoredRun]]:
    """The database, and the run that a text names, or without one the run that `default` takes. NotFound, or
    InputError where it could be several."""
    with journal_of(root) as database:
        if database is None:
            raise NotFound(f"{_NO_RUN if text is None else f'no such run: {text}'}; no run has been started in {root}")
        journal = Journal(database)
        if text is not None:
            yield database, find(journal, root, text)
            return
        run = default(journal, root) if default is not None else None
        if run is None:
            raise NotFound(f"{_NO_RUN}; `sidecar status` lists the runs of {root}")
        yield database, run


def find(journal: Journal, root: str, text: str) -> StoredRun:
    """The run that a text names: by its id, as the `last` one, by its workspace, or by a part of its id."""
    found = journal.find(text.upper())
    if found is None and text == _LAST:
        found = next(iter(journal.runs(limit=1)), None)
    if found is None and layout.is_name(text):
        directory = os.path.realpath(os.path.join(targets.workspaces_directory(root, os.environ), text))
        found = next(iter(journal.runs(workspace=directory, limit=1)), None)
    if found is not None:
        return found
    if len(text) < _SHORTEST:
        raise InputError(
            f"{text!r} is too short for a run: give its id, {_SHORTEST} or more characters of its beginning or end, "
            f"the name of its workspace, or {_LAST!r}"
        )
    run_ids = journal.ids_like(text.upper())
    if not run_ids:
        raise NotFound(f"no such run: {text}; `sidecar status` lists them")
    if len(run_ids) > 1:
        more = f" and {len(run_ids) - _SHOWN} more" if len(run_ids) > _SHOWN else ""
        raise InputError(f"{text!r} could be any of {len(run_ids)} runs: {', '.join(run_ids[:_SHOWN])}{more}")
    return journal.run(run_ids[0])


def to_look_at(journal: Journal, root: str) -> StoredRun | None:
    """Which run is looked at where none is named: the only one that is live, else the newest."""
    live = run_lock.live_runs(root)
    if len(live) == 1:
        return journal.find(live[0])
    return next(iter(journal.runs(limit=1)), None)


def to_resume(journal: Journal, root: str) -> StoredRun | None:
    """Which run is resumed where none is named: the newest that can be and is not agent-driven."""
    for run_id in journal.ids_not_completed(driver="server"):
        if not run_lock.is_live(root, run_id):
            return journal.run(run_id)
    return None


# --- a run as it goes on


async def follow(database: Database, root: str, run_id: str, after: int = 0) -> AsyncIterator[RunEvent]:
    """Every event behind a sequence number, as it comes, up to the end of the start that is under way then, or to the
    death of its owner, of which the journal does not know.

    Looked for ten times a second, more often where much happens: the writer may be any process, and SQLite tells nobody
    that something was written.
    """
    import anyio  # noqa: PLC0415 - whoever looks only once does without an event loop

    journal = Journal(database)
    without_owner = 0
    wait_s = _SOON_S
    while True:
        for event in journal.events(run_id, after):
            wait_s = _SOON_S
            after = event.seq
            yield event.run_event
            if event.kind == kinds.RUN_ENDED and event.seq == journal.last_seq(run_id):
                return
        run = journal.run(run_id)
        gone = run.status == "running" and run.driver == "server" and not run_lock.is_live(root, run_id)
        without_owner = without_owner + (wait_s == _LOOK_S) if gone else 0
        if without_owner >= _LOOKS:
            return
        await anyio.sleep(wait_s)
        wait_s = min(2 * wait_s, _LOOK_S)


def may_go_on(database: Database, root: str, run: StoredRun) -> bool:
    """Whether more can be expected. The journal alone does not know that an owner has died."""
    if run_lock.is_live(root, run.run_id):
        return True
    now = Journal(database).run(run.run_id)
    return now.driver == "agent" and now.status == "running"


def log_reader(
    database: Database, root: str, run: StoredRun, *, agent: int | None = None, events: bool = False
) -> Callable[[], Iterator[str]]:
    """The run's log, what its process number `agent` printed, or its events as lines of JSON: each call gives what came
    since the last one."""
    if events:
        return _new_events(database, run, event_as_json)
    if agent is not None:
        return _new_text(_agent_log(root, run, agent))
    path = os.path.join(layout.run_directory(root, run.run_id), _RUN_LOG)
    # A run that an agent drives has nobody who would write it.
    return _new_text(path) if os.path.exists(path) else _new_events(database, run, event_as_text)


def _new_events(
    database: Database, run: StoredRun, shown: Callable[[Event], str | None]
) -> Callable[[], Iterator[str]]:
    """Events as text, those since the last time."""
    journal, after = Journal(database), 0

    def news() -> Iterator[str]:
        nonlocal after
        for event in journal.events(run.run_id, after):
            after = event.seq
            text = shown(event)
            if text is not None:
                yield text

    return news


def _agent_log(root: str, run: StoredRun, number: int) -> str:
    """The path of what its process of this number printed; InputError names those that there are."""
    directory = os.path.join(layout.run_directory(root, run.run_id), "agents")
    path = os.path.join(directory, f"{number}.log")
    if not os.path.exists(path):
        try:
            known = sorted(int(name[:-4]) for name in os.listdir(directory) if name[:-4].isdigit())
        except OSError:
            known = []
        there = f"available: {', '.join(map(str, known))}" if known else "it has started none"
        raise InputError(f"run {run.run_id} has no process {number}; {there}")
    return path


def _new_text(path: str) -> Callable[[], Iterator[str]]:
    """What was added to a file since the last time: whole lines, and at the end the rest."""
    from sidecar.agents.output import FORMER  # noqa: PLC0415 - whoever looks at no log does without

    decoder = getincrementaldecoder("utf-8")("replace")
    file = _open_log(path + FORMER if os.path.exists(path + FORMER) else path)

    def news() -> Iterator[str]:
        nonlocal file
        while True:
            while data := os.read(file, _PIECE):
                yield decoder.decode(data)
            if _is_at(path, file):
                return
            # The owner began another one. What this one got between the last look and that is read before it is left.
            following = _next_part(path, path + FORMER, file)
            if following is None:
                return
            while data := os.read(file, _PIECE):
                yield decoder.decode(data)
            os.close(file)
            file = following

    return news


def _next_part(path: str, former: str, file: int) -> int | None:
    """The part that comes next; not the newest one where the owner turned the log twice since the last look."""
    try:
        newest = _open_log(path)
    except FileNotFoundError:  # it is just being turned
        return None
    try:
        before = _open_log(former)  # in this order: whatever is turned meanwhile, the newest is no part behind the next
    except FileNotFoundError:  # somebody tidied up
        return newest
    if os.path.samestat(os.fstat(before), os.fstat(file)) or os.path.samestat(os.fstat(before), os.fstat(newest)):
        os.close(before)
        return newest
    os.close(newest)
    return before


def _open_log(path: str) -> int:
    # Not blocking, and no link: an agent may have put something else there.
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _is_at(path: str, file: int) -> bool:
    """Whether the file is still the one at the path; also where there is none now."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except OSError:
        return True


# --- as JSON, for other programs


def as_json(value: Any, *, indent: int | None = None) -> str:
    """As every reader of JSON takes it: NaN and the infinities, which JSON cannot write, are null as in JavaScript."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value


def event_as_json(event: RunEvent | Event) -> str:
    """An event on one line, with its newline."""
    data = {name: value for name, value in event.data.items() if name not in _INSIDE}
    at = iso_timestamp(event.at)
    return as_json({"run_id": event.run_id, "seq": event.seq, "at": at, "kind": event.kind, "data": data}) + "\n"


def iso_timestamp(at: float) -> str:
    """A time for programs."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def event_as_text(event: Event) -> str | None:
    """An event on one line, as `run.log` has it; None for a kind that has none there."""
    from sidecar.engine import run_log  # noqa: PLC0415

    found = run_log.line(event)  # type: ignore[arg-type]
    return None if found is None else found + "\n"
