"""The journal of a project as another program reads it: plain SQLite. Every SQL statement of the tests is here."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.ids import new_id

NAME = "sidecar.db"


@dataclass(frozen=True)
class RunRow:
    """A run as the journal has it: its status is the recorded one, also where its owner died since."""

    run_id: str
    workflow: str
    driver: str
    status: str
    workspace: str | None
    reason: str | None
    inputs: dict[str, Any]
    details: dict[str, Any]


@dataclass(frozen=True)
class Event:
    """One event of a run."""

    seq: int
    at: float
    kind: str
    data: dict[str, Any]


def path(root: Path) -> Path:
    """Where the journal of a project is."""
    return root / ".swissarmyhammer" / NAME


def runs(root: Path) -> list[RunRow]:
    """Every run, newest first; none where there is no journal yet."""
    columns = "run_id, workflow, driver, status, workspace, reason, inputs, details"
    found = _read(root, f"SELECT {columns} FROM runs ORDER BY number DESC")
    return [RunRow(*row[:4], *map(json.loads, row[4:])) for row in found]


def events(root: Path, run_id: str, *kinds: str) -> list[Event]:
    """The events of a run, in order; only those of the given kinds where there are any."""
    found = _read(root, "SELECT seq, at, kind, data FROM events WHERE run_id = ? ORDER BY seq", run_id)
    return [Event(seq, at, kind, json.loads(data)) for seq, at, kind, data in found if not kinds or kind in kinds]


def attempts(root: Path, run_id: str) -> dict[str, list[str]]:
    """The attempts at every step that acts itself, in order: `begun`, `completed`, `failed` or `interrupted`.

    One that was begun and has no end is interrupted where the step was begun once more.
    """
    found: dict[str, list[str]] = {}
    for event in events(root, run_id, "step_started", "step_completed", "step_failed"):
        if event.kind == "step_started" and event.data["type"] not in ("parallel_foreach", "include_workflow"):
            earlier = found.setdefault(event.data["step"], [])
            earlier[-1:] = ["interrupted" if last == "begun" else last for last in earlier[-1:]]
            earlier.append("begun")
        elif event.kind != "step_started" and event.data["step"] in found:
            found[event.data["step"]][-1] = event.kind.removeprefix("step_")
    return found


def applied_signals(root: Path) -> set[str]:
    """The ids of the signals that a run has taken."""
    return {signal_id for (signal_id,) in _read(root, "SELECT signal_id FROM signals")}


def agents_not_ended(root: Path) -> list[str]:
    """The ids of the agents whose end is not recorded."""
    return [agent_id for (agent_id,) in _read(root, "SELECT agent_id FROM agents WHERE ended IS NULL")]


def assert_sound(root: Path) -> None:
    """Every page of the database can be read."""
    found = _read(root, "PRAGMA integrity_check(1)")
    assert found in ([], [("ok",)]), found


def merge_log(root: Path) -> None:
    """Bring the write-ahead log into the database, as the last process does that closes it."""
    with closing(sqlite3.connect(path(root))) as journal:
        journal.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Another process holds the database's lock: here this one."""
    with closing(sqlite3.connect(path(root), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


# --- a journal that is tampered with


def forget_signals(root: Path, signal_ids: list[str]) -> None:
    _change(root, f"DELETE FROM signals WHERE signal_id IN ({', '.join('?' * len(signal_ids))})", *signal_ids)


def shift_times(root: Path, seconds_s: float, every: int) -> None:
    """Of every n-th event."""
    _change(root, "UPDATE events SET at = at + ? WHERE seq % ? = 0", seconds_s, every)


def replace_in_checkpoints(root: Path, old: str, new: str) -> None:
    """A text in the values of every checkpoint, whose content is compressed JSON."""
    for number, content in _read(root, "SELECT rowid, content FROM checkpoints"):
        text = zlib.decompress(content).decode()
        assert old in text
        changed = zlib.compress(text.replace(old, new).encode())
        _change(root, "UPDATE checkpoints SET content = ? WHERE rowid = ?", changed, number)


def forget_the_end(root: Path) -> None:
    """Of the newest run."""
    _change(root, "DELETE FROM events WHERE kind = 'run_ended' AND run_id = (SELECT MAX(run_id) FROM runs)")


def set_status(root: Path, status: str) -> None:
    """Of the newest run."""
    _change(root, "UPDATE runs SET status = ? WHERE run_id = (SELECT MAX(run_id) FROM runs)", status)


def repeat_newest_run(root: Path, times: int) -> None:
    """The row of the newest run with other ids, without its events. Lists show it; nothing else reads a row whose seal
    is that of another."""
    columns = (
        "workflow, workspace, driver, inputs, details, status, start, reason, created_at, updated_at, ended_at, seal"
    )
    statement = f"INSERT INTO runs (run_id, {columns}) SELECT ?, {columns} FROM runs WHERE number = ?"
    with closing(sqlite3.connect(path(root))) as journal:
        ((newest,),) = journal.execute("SELECT MAX(number) FROM runs").fetchall()
        journal.executemany(statement, [(new_id(), newest) for _ in range(times)])
        journal.commit()


def last_step_of_any_run(root: Path) -> tuple[str, int, int]:
    """A run, the number of its start, and the sequence number of its last `step_started`."""
    statement = (
        "SELECT run_id, start, MAX(seq) FROM events WHERE kind = 'step_started' AND seq > 2 GROUP BY run_id LIMIT 1"
    )
    ((run_id, start, seq),) = _read(root, statement)
    return run_id, start, seq


def _change(root: Path, statement: str, *values: Any) -> None:
    """Past the journal's own triggers."""
    with closing(sqlite3.connect(path(root))) as journal:
        for (name,) in journal.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            journal.execute(f"DROP TRIGGER {name}")
        assert journal.execute(statement, values).rowcount != 0, statement
        journal.commit()


def _read(root: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    if not path(root).exists():
        return []
    # Read only: the last connection that can write would bring the log into the database when it is closed.
    with closing(sqlite3.connect(f"{path(root).as_uri()}?mode=ro", uri=True, timeout=60)) as journal:
        try:
            return journal.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return []  # its owner has yet to create the tables
