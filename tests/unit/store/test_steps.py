"""Steps with attempts: done is done, for every caller and every process."""

from __future__ import annotations

import pytest

from sidecar.errors import StoreError
from sidecar.store.db import Database
from sidecar.store.journal import Steps


@pytest.fixture
def steps(database: Database) -> Steps:
    return Steps(database)


def test_a_completed_step_is_never_begun_or_completed_again(steps: Steps, run_id: str) -> None:
    steps.complete(run_id, "build", steps.begin(run_id, "build"), "first")
    for again in (
        lambda: steps.begin(run_id, "build"),
        lambda: steps.complete(run_id, "build", 1, "second"),
        lambda: steps.fail(run_id, "build", 1, "second"),
    ):
        with pytest.raises(StoreError) as refused:
            again()
        assert refused.value.kind == "conflict"
    assert [(step.status, step.outcome) for step in steps.steps(run_id)] == [("completed", "first")]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "INSERT INTO steps SELECT run_id, 9, key, 9, 'begun', 0, 0, '', 0 FROM steps WHERE number = 1",
            "completed",
        ),
        (
            "INSERT INTO steps SELECT run_id, 9, key, 9, 'begun', 0, 0, '', 0 FROM steps WHERE number = 2",
            "in flight",
        ),
        ("UPDATE steps SET outcome = '2' WHERE number = 1", "never changes"),
        ("UPDATE steps SET status = 'completed', key = 'done' WHERE number = 2", "another one"),
    ],
)
def test_the_schema_itself_refuses_it(
    steps: Steps, run_id: str, database: Database, statement: str, message: str
) -> None:
    steps.complete(run_id, "done", steps.begin(run_id, "done"), "first")
    steps.begin(run_id, "going")
    before = steps.steps(run_id)
    with pytest.raises(StoreError, match=message), database.transaction():
        database.execute(statement)
    assert steps.steps(run_id) == before


def test_a_step_in_flight_when_its_owner_died_is_begun_again_and_the_late_result_refused(
    steps: Steps, run_id: str
) -> None:
    steps.begin(run_id, "build")
    assert steps.begin(run_id, "build") == 2
    with pytest.raises(StoreError, match="attempt 1 is not in flight: attempt 2 is begun"):
        steps.complete(run_id, "build", 1, "late")
    steps.complete(run_id, "build", 2, "right")
    assert [(step.status, step.outcome) for step in steps.steps(run_id)] == [
        ("interrupted", None),
        ("completed", "right"),
    ]


@pytest.mark.parametrize(
    "damage", ["DELETE FROM steps WHERE number = 1", "UPDATE steps SET outcome = '2' WHERE number = 1"]
)
def test_a_step_that_was_changed_or_lost_behind_our_back_is_damage(
    steps: Steps, run_id: str, database: Database, damage: str
) -> None:
    steps.complete(run_id, "one", steps.begin(run_id, "one"), 1)
    steps.complete(run_id, "two", steps.begin(run_id, "two"), 1)
    database.rows("DROP TRIGGER steps_ended_stands")
    with database.transaction():
        database.execute(damage)
    with pytest.raises(StoreError, match="is damaged"):
        steps.steps(run_id)


def test_a_step_costs_no_more_work_in_a_long_run_than_in_a_short_one(
    steps: Steps, run_id: str, database: Database
) -> None:
    def work(key: str) -> int:
        """How often SQLite asked whether to go on, which it does once every ten of its instructions."""
        asked = []
        database._connection.set_progress_handler(lambda: asked.append(1), 10)
        steps.begin(run_id, key)
        database._connection.set_progress_handler(None, 0)
        return len(asked)

    short = work("first")
    with database.transaction():
        for number in range(2_000):
            steps.complete(run_id, f"step.{number}", steps.begin(run_id, f"step.{number}"))
    assert 0 < work("last") < 2 * short
