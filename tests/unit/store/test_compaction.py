"""Old runs go with everything they had; what is live, or young and resumable, stays."""

from __future__ import annotations

import os
from typing import Any

import pytest

from sidecar.model.agent import AgentRecord
from sidecar.store.db import Database
from sidecar.store.journal import Agents, Checkpoints, Handouts, Journal, Keep, Steps, compact

KEEP = Keep(newest=2, age_s=100)
TABLES = ("events", "steps", "checkpoints", "handouts", "signals", "runs")


@pytest.fixture
def journal(database: Database) -> Journal:
    return Journal(database)


def ended(journal: Journal, run_id: str, status: Any) -> None:
    journal.create(run_id, "x", definition=f"name: {run_id}", inputs={})
    if status != "pending":
        journal.begin(run_id)
    if status not in ("pending", "running"):
        journal.end(run_id, status)


def left(journal: Journal) -> list[str]:
    return [run.run_id for run in journal.runs()]


def test_completed_runs_beyond_the_newest_go(journal: Journal, database: Database) -> None:
    for number in range(5):
        ended(journal, f"R{number}", "completed")
    assert compact(database, KEEP) == ["R2", "R1", "R0"]
    assert left(journal) == ["R4", "R3"]
    assert compact(database, KEEP) == []


def test_what_ended_longer_ago_than_the_limit_goes_unless_it_is_live(
    journal: Journal, database: Database, clock: Any
) -> None:
    for status in ("completed", "failed", "aborted", "stopped"):
        ended(journal, status, status)
    clock.now += 101
    assert set(compact(database, KEEP, live={"failed"})) == {"completed", "aborted", "stopped"}
    assert left(journal) == ["failed"]


@pytest.mark.parametrize("status", ["pending", "running", "paused", "interrupted"])
def test_a_run_that_has_not_ended_stays_however_old_it_is(
    journal: Journal, database: Database, clock: Any, status: str
) -> None:
    ended(journal, "open", status)
    clock.now += 1_000_000
    assert compact(database, Keep(newest=0, age_s=100)) == []


def test_so_many_go_at_a_time_as_may(journal: Journal, database: Database) -> None:
    for number in range(5):
        ended(journal, f"R{number}", "completed")
    assert compact(database, KEEP, at_most=2) == ["R2", "R1"]
    assert compact(database, KEEP, at_most=2) == ["R0"]


@pytest.mark.parametrize("status", ["pending", "running", "paused", "failed", "aborted", "stopped", "interrupted"])
def test_a_run_that_can_be_resumed_stays_while_it_is_young_however_many_are_newer(
    journal: Journal, database: Database, clock: Any, status: str
) -> None:
    ended(journal, "resumable", status)
    clock.now += 99
    for number in range(5):
        ended(journal, f"R{number}", "completed")
    compact(database, KEEP)
    assert left(journal) == ["R4", "R3", "resumable"]


def test_everything_that_a_run_had_goes_with_it_except_agents_that_may_be_alive(
    journal: Journal, database: Database, run_id: str
) -> None:
    Steps(database).begin(run_id, "one")
    Checkpoints(database).save(run_id, {"text": "x" * 100_000})
    Handouts(database).hand_out(run_id, "", "two", {})
    journal.take_signal(run_id, "sig", "stop")
    alive, dead = (AgentRecord(name, run_id, 1, 1.0, "boot", "m", 1) for name in ("alive", "dead"))
    Agents(database).started(alive)
    Agents(database).started(dead)
    Agents(database).ended("dead")
    journal.end(run_id, "completed")
    assert compact(database, Keep(newest=0)) == [run_id]
    assert [table for table in TABLES if database.rows(f"SELECT * FROM {table}")] == []
    assert Agents(database).not_ended() == [alive]


def test_the_file_gives_back_the_room(journal: Journal, database: Database, run_id: str) -> None:
    Checkpoints(database).save(run_id, {"text": os.urandom(500_000).hex()})
    journal.end(run_id, "completed")
    before = database.rows("PRAGMA page_count")[0][0]
    compact(database, Keep(newest=0))
    assert database.rows("PRAGMA page_count")[0][0] < before / 4
