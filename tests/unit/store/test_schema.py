"""Versions of the database: created once, and one of another version is never misread."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.errors import StoreError
from sidecar.store import schema
from sidecar.store.db import Database
from sidecar.store.journal import Journal


def set_version(path: str, version: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize(
    ("version", "kind", "message"),
    [
        (schema.VERSION + 95, "newer", r"version 99 of the database; .* upgrade sidecar"),
        (schema.VERSION - 1, "older", r"version 3 of the database; .* move it away"),
    ],
)
def test_a_database_of_another_version_is_refused_in_one_line(
    tmp_path: Path, version: int, kind: str, message: str
) -> None:
    path = str(tmp_path / "sidecar.db")
    Database(path).close()
    set_version(path, version)
    with pytest.raises(StoreError, match=message) as refused:
        Database(path)
    assert refused.value.kind == kind
    assert path in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_sidecar_that_has_it_open_stops_using_it_when_a_newer_one_changes_it(database: Database, run_id: str) -> None:
    set_version(database.path, 99)
    for attempt in (lambda: Journal(database).append(run_id, "old"), lambda: Journal(database).events(run_id)):
        with pytest.raises(StoreError) as refused:
            attempt()
        assert refused.value.kind == "newer"


def test_there_are_at_most_eight_tables(database: Database) -> None:
    found = database.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    assert len(found) <= 8, found


def test_tables_that_cannot_be_created_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "sidecar.db")
    with monkeypatch.context() as broken:
        broken.setattr(schema, "STATEMENTS", (*schema.STATEMENTS, "CREATE TABLE runs (again)"))
        with pytest.raises(StoreError):
            Database(path)
    with Database(path) as database:
        assert Journal(database).runs() == []
