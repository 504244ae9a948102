"""Versions of the database: brought forward once, and never misread."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from sidecar.errors import StoreError
from sidecar.store import schema
from sidecar.store.db import Database
from sidecar.store.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path

ADD_COLUMN = ("ALTER TABLE runs ADD COLUMN colour TEXT",)


def with_one_more(monkeypatch: pytest.MonkeyPatch, *statements: str) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, statements))


def test_an_older_database_is_brought_forward_and_keeps_its_runs(
    database: Database, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.close()
    with_one_more(monkeypatch, *ADD_COLUMN)
    for _ in range(2):
        with Database(database.path) as newer:
            assert newer.rows("PRAGMA user_version") == [(len(schema.MIGRATIONS),)]
            assert newer.rows("SELECT colour FROM runs") == [(None,)]
            assert Journal(newer).run(run_id).status == "running"


def test_an_older_sidecar_refuses_a_newer_database_in_one_line(tmp_path: Path) -> None:
    path = str(tmp_path / "sidecar.db")
    Database(path).close()
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(StoreError, match=r"version 99 of the database; .* upgrade sidecar") as refused:
        Database(path)
    assert refused.value.kind == "newer"
    assert "\n" not in str(refused.value)


def test_an_older_sidecar_that_has_it_open_stops_using_it_when_a_newer_one_migrates(
    database: Database, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_one_more(monkeypatch, *ADD_COLUMN)
    Database(database.path).close()
    for attempt in (lambda: Journal(database).append(run_id, "old"), lambda: Journal(database).events(run_id)):
        with pytest.raises(StoreError) as refused:
            attempt()
        assert refused.value.kind == "newer"


def test_a_migration_that_fails_leaves_the_version_before(
    database: Database, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        with_one_more(broken, *ADD_COLUMN, "CREATE TABLE runs (again)")
        with pytest.raises(StoreError):
            Database(database.path)
    assert database.rows("PRAGMA user_version") == [(len(schema.MIGRATIONS),)]
    assert "colour" not in [row[1] for row in database.rows("PRAGMA table_info(runs)")]
    assert Journal(database).run(run_id).status == "running"
