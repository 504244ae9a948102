"""The tables of the journal, and the one version of them that this sidecar reads and writes.

The rules that must never be broken are here, as indexes and triggers: no caller, and no second process, gets past them.
"""

from __future__ import annotations

from sidecar.errors import StoreError

VERSION = 4

STATEMENTS = (
    # AUTOINCREMENT: the newest run has the highest number, even after others were deleted and if the clock went back.
    # `workspace` and `reason` are JSON, because a path can hold bytes that are no text.
    """CREATE TABLE runs (
        number INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL UNIQUE, workflow TEXT NOT NULL,
        workspace TEXT NOT NULL, driver TEXT NOT NULL, inputs TEXT NOT NULL, details TEXT NOT NULL,
        status TEXT NOT NULL, start INTEGER NOT NULL, reason TEXT NOT NULL, created_at REAL NOT NULL,
        updated_at REAL NOT NULL, ended_at REAL, seal INTEGER NOT NULL, definition BLOB)""",
    """CREATE TRIGGER runs_one_start_after_the_other BEFORE UPDATE OF start ON runs WHEN NEW.start != OLD.start BEGIN
        SELECT RAISE(ABORT, 'the starts of a run follow each other') WHERE NEW.start != OLD.start + 1;
        SELECT RAISE(ABORT, 'a completed run is not started again') WHERE OLD.status = 'completed';
        SELECT RAISE(ABORT, 'the start before has not ended yet') WHERE OLD.start > 0 AND NOT EXISTS
            (SELECT 1 FROM events WHERE run_id = OLD.run_id AND start = OLD.start AND closes = 1);
    END""",
    """CREATE TABLE events (
        run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE, seq INTEGER NOT NULL, start INTEGER NOT NULL,
        at REAL NOT NULL, kind TEXT NOT NULL, closes INTEGER NOT NULL CHECK (closes IN (0, 1)), data TEXT NOT NULL,
        replayed TEXT, seal INTEGER NOT NULL, PRIMARY KEY (run_id, seq)) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX events_one_end_per_start ON events (run_id, start) WHERE closes = 1",
    """CREATE TRIGGER events_none_after_the_end BEFORE INSERT ON events WHEN EXISTS
        (SELECT 1 FROM events WHERE run_id = NEW.run_id AND start = NEW.start AND closes = 1)
    BEGIN SELECT RAISE(ABORT, 'this start of the run has ended already'); END""",
    """CREATE TRIGGER events_stand BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'an event that is journalled never changes'); END""",
    """CREATE TABLE signals (
        run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE, signal_id TEXT NOT NULL, kind TEXT NOT NULL,
        outcome TEXT NOT NULL, start INTEGER NOT NULL, at REAL NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (run_id, signal_id)) WITHOUT ROWID""",
    """CREATE TABLE steps (
        run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE, number INTEGER NOT NULL, key TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('begun', 'completed', 'failed', 'interrupted')),
        began_at REAL NOT NULL, ended_at REAL, outcome TEXT NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (run_id, number)) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX steps_attempts ON steps (run_id, key, attempt)",
    # Triggers instead of further unique indexes: each index is one more page to write for every step, and
    # the lock is held meanwhile. INDEXED BY: left alone, SQLite looks through all steps of the run each time.
    """CREATE TRIGGER steps_done_is_done BEFORE INSERT ON steps BEGIN
        SELECT RAISE(ABORT, 'a completed step is never begun or completed again') WHERE EXISTS
            (SELECT 1 FROM steps INDEXED BY steps_attempts
                WHERE run_id = NEW.run_id AND key = NEW.key AND status = 'completed');
        SELECT RAISE(ABORT, 'another attempt at this step is in flight') WHERE EXISTS
            (SELECT 1 FROM steps INDEXED BY steps_attempts
                WHERE run_id = NEW.run_id AND key = NEW.key AND status = 'begun');
    END""",
    """CREATE TRIGGER steps_ended_stands BEFORE UPDATE ON steps WHEN OLD.status != 'begun'
    BEGIN SELECT RAISE(ABORT, 'an attempt that has ended never changes'); END""",
    """CREATE TRIGGER steps_stay_who_they_are BEFORE UPDATE OF run_id, number, key, attempt ON steps
    BEGIN SELECT RAISE(ABORT, 'an attempt never becomes another one'); END""",
    """CREATE TABLE handouts (
        run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE, task_id TEXT NOT NULL, key TEXT NOT NULL,
        step TEXT NOT NULL, handed_at REAL NOT NULL, seal INTEGER NOT NULL, PRIMARY KEY (run_id, task_id))
        WITHOUT ROWID""",
    "CREATE UNIQUE INDEX handouts_to_one_task ON handouts (run_id, key)",
    # With a rowid: rows as large as these make a table without one slow.
    """CREATE TABLE checkpoints (
        run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE, number INTEGER NOT NULL, at REAL NOT NULL,
        content BLOB NOT NULL, seal INTEGER NOT NULL, PRIMARY KEY (run_id, number))""",
    # An agent can belong to no run, and what may still be alive must not go with its run: no reference here.
    """CREATE TABLE agents (
        agent_id TEXT PRIMARY KEY, run_id TEXT, record TEXT NOT NULL, ended TEXT, seal INTEGER NOT NULL)""",
    "CREATE INDEX agents_of_runs ON agents (run_id)",
    "CREATE INDEX agents_not_ended ON agents (agent_id) WHERE ended IS NULL",
    """CREATE TRIGGER agents_end_once BEFORE UPDATE ON agents WHEN OLD.ended IS NOT NULL
    BEGIN SELECT RAISE(ABORT, 'an agent ends only once'); END""",
    """CREATE TABLE transformations (
        run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE, number INTEGER NOT NULL,
        applied INTEGER NOT NULL, traces TEXT NOT NULL, seal INTEGER NOT NULL, PRIMARY KEY (run_id, number))
        WITHOUT ROWID""",
)


def refuse_other(path: str, version: int) -> None:
    """StoreError where a database was written by a sidecar whose tables are others; 0 is one without tables yet."""
    if version > VERSION:
        raise StoreError(
            f"{path} was written by a newer sidecar (version {version} of the database; this sidecar knows {VERSION}): "
            "upgrade sidecar",
            kind="newer",
        )
    if 0 < version < VERSION:
        raise StoreError(
            f"{path} was written by an older sidecar (version {version} of the database; this sidecar reads only "
            f"{VERSION}): end its runs with that sidecar, then move it away (and its -wal and -shm)",
            kind="older",
        )
