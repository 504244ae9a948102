"""Transactions are whole, and what cannot be done is refused in one clear line."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import pytest

from sidecar.errors import StoreError
from sidecar.store.db import Database
from sidecar.store.journal import Journal
from tests.kit.waiting import until


def kinds(journal: Journal, run_id: str) -> list[str]:
    return [event.kind for event in journal.events(run_id)]


def test_it_logs_ahead_and_syncs_fully_where_it_must(database: Database) -> None:
    def level() -> int:
        found: int = database.rows("PRAGMA synchronous")[0][0]
        return found

    assert database.rows("PRAGMA journal_mode") == [("wal",)]
    with database.transaction():
        assert level() == 2
    with database.transaction(durable=False):
        assert level() == 1
    with database.transaction():
        assert level() == 2


def test_a_transaction_that_fails_leaves_nothing(database: Database, run_id: str) -> None:
    journal = Journal(database)

    def lost() -> None:
        with database.transaction():
            journal.append(run_id, "lost")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lost()
    assert kinds(journal, run_id) == ["run_started"]


def test_a_part_that_failed_takes_the_whole_along_even_if_its_error_is_caught(database: Database, run_id: str) -> None:
    journal = Journal(database)

    def half() -> None:
        with database.transaction():
            journal.append(run_id, "half")
            raise ZeroDivisionError

    def both() -> None:
        with database.transaction():
            with pytest.raises(ZeroDivisionError):
                half()
            journal.append(run_id, "other half")

    with pytest.raises(StoreError, match="a part of the transaction failed"):
        both()
    assert kinds(journal, run_id) == ["run_started"]
    journal.append(run_id, "later")
    assert kinds(journal, run_id) == ["run_started", "later"]


def test_a_durable_part_is_refused_where_the_whole_is_not_durable(database: Database, run_id: str) -> None:
    journal = Journal(database)
    with pytest.raises(StoreError, match="not durable"), database.transaction(durable=False):
        journal.end(run_id, "stopped")
    with database.transaction():
        journal.append(run_id, "tick", durable=False)
    assert kinds(journal, run_id) == ["run_started", "tick"]


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_a_file_that_is_removed_while_open_is_noticed(
    database: Database, run_id: str, suffix: str, replaced: bool
) -> None:
    journal = Journal(database)
    os.unlink(database.path + suffix)
    if replaced:
        open(database.path + suffix, "x").close()
    for attempt in (lambda: journal.append(run_id, "lost"), lambda: journal.events(run_id)):
        with pytest.raises(StoreError, match="removed or replaced while in use") as refused:
            attempt()
        assert refused.value.kind == "removed"


def test_a_file_that_is_removed_is_noticed_by_reads_alone(database: Database, run_id: str) -> None:
    def refused() -> bool:
        try:
            Journal(database).events(run_id)
        except StoreError as error:
            return error.kind == "removed"
        return False

    os.rename(database.path, f"{database.path}.moved")
    until(refused)


def test_reads_look_at_the_files_at_most_once_a_second(database: Database, run_id: str) -> None:
    statements: list[str] = []
    database._connection.set_trace_callback(statements.append)
    begin = time.monotonic()
    for _ in range(200):
        Journal(database).run(run_id)
    assert statements.count("PRAGMA user_version") <= time.monotonic() - begin + 1
    assert len(statements) >= 200


def test_a_file_that_is_removed_during_a_durable_transaction_is_noticed(database: Database, run_id: str) -> None:
    def lost() -> None:
        with database.transaction():
            Journal(database).append(run_id, "lost")
            os.unlink(database.path)

    with pytest.raises(StoreError, match="removed or replaced"):
        lost()


def test_what_sqlite_cannot_keep_is_refused(database: Database, run_id: str) -> None:
    with pytest.raises(StoreError) as refused:
        Journal(database).append(run_id, "half a \ud800 pair")
    assert refused.value.kind == "value"
    with pytest.raises(StoreError, match="JSON only") as refused:
        Journal(database).append(run_id, "object", {"value": object()})
    assert refused.value.kind == "value"
    Journal(database).append(run_id, "text", {"value": "half a \ud800 pair"})
    assert Journal(database).events(run_id)[-1].data == {"value": "half a \ud800 pair"}


def test_something_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.db"
    path.write_bytes(b"not a database, but long enough to be looked at\n" * 100)
    with pytest.raises(StoreError, match="not a database of sidecar's") as refused:
        Database(str(path))
    assert refused.value.kind == "damaged"


def test_a_lock_that_is_not_given_up_is_reported_after_the_timeout(database: Database, run_id: str) -> None:
    holder = sqlite3.connect(database.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with Database(database.path, busy_timeout_s=0.05) as other:
        with pytest.raises(StoreError, match=r"kept it locked for 0\.05 s") as refused:
            Journal(other).append(run_id, "waiting")
        assert refused.value.kind == "locked"
        assert kinds(Journal(other), run_id) == ["run_started"]  # reading needs no lock
        holder.execute("ROLLBACK")
        Journal(other).append(run_id, "waiting")
    holder.close()
    assert kinds(Journal(database), run_id) == ["run_started", "waiting"]
