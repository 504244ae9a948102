"""A task is kept once, ends once, and tells what happened to it without a gap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sidecar.errors import StoreError
from sidecar.store import migrations
from sidecar.store.compaction import Keep, compact
from sidecar.store.db import Database
from sidecar.store.journal import Journal
from sidecar.store.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def tasks(database: Database) -> Tasks:
    return Tasks(database)


def ids(tasks: Tasks, *kinds: str) -> list[str]:
    return [task.task_id for task in tasks.not_ended(kinds)]


def test_the_first_who_adds_a_task_decides_what_it_is(tasks: Tasks) -> None:
    first = tasks.add("T", "greet", {"name": "Ada", "path": ("a", "b")})
    assert (first.state, first.content) == ("queued", {"name": "Ada", "path": ["a", "b"]})
    assert tasks.add("T", "other", {"name": "Bob"}) == first == tasks.find("T")
    assert tasks.find("U") is None


def test_of_several_ends_the_first_stands(tasks: Tasks, database: Database, clock: Any) -> None:
    tasks.add("T", "greet", {})
    assert tasks.begin("T")
    clock.now += 5
    ended = tasks.end("T", "completed", {"n": 1})
    assert (ended.state, ended.outcome, ended.ended_at) == ("completed", {"n": 1}, clock.now)
    clock.now += 5
    assert tasks.end("T", "cancelled") == ended == tasks.find("T")
    assert not tasks.begin("T")
    assert [event.kind for event in tasks.events("T")] == ["queued", "started", "ended"]
    with pytest.raises(StoreError, match="ends only once"), database.transaction():
        database.execute("UPDATE tasks SET state = 'failed'")


def test_events_come_in_order_behind_a_sequence_number_and_none_after_the_end(tasks: Tasks) -> None:
    tasks.add("T", "greet", {})
    tasks.add("U", "greet", {})
    tasks.begin("T")
    for number in range(3):
        tasks.tell("T", "said", {"number": number})
    tasks.end("T", "failed", {"message": "no"})
    events = tasks.events("T")
    assert [event.seq for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event.kind for event in events] == ["queued", "started", "said", "said", "said", "ended"]
    assert events[-1].data == {"state": "failed"}
    assert tasks.events("T", after=4) == events[4:]
    with pytest.raises(StoreError, match="has ended already") as refused:
        tasks.tell("T", "said", {})
    assert refused.value.kind == "conflict"


def test_what_must_survive_a_power_loss_is_synced_and_the_rest_is_not(tasks: Tasks, database: Database) -> None:
    def synced(act: Callable[[], object]) -> bool:
        act()
        return database.rows("PRAGMA synchronous") == [(2,)]

    assert synced(lambda: tasks.add("T", "greet", {}))
    assert not synced(lambda: tasks.begin("T"))
    assert not synced(lambda: tasks.tell("T", "said", {}))
    assert synced(lambda: tasks.end("T", "completed"))


def test_what_is_left_to_do_comes_in_the_order_in_which_it_came(tasks: Tasks, clock: Any) -> None:
    for name, kind in (("C", "greet"), ("A", "greet"), ("B", "part"), ("D", "greet")):
        tasks.add(name, kind, {})
        clock.now -= 10  # the clock can go back, the order stays
    tasks.begin("A")
    tasks.end("C", "cancelled")
    assert ids(tasks, "greet") == ["A", "D"]
    assert ids(tasks, "greet", "part") == ["A", "B", "D"]
    assert ids(tasks) == []


def test_what_is_not_json_is_refused_and_leaves_nothing(tasks: Tasks) -> None:
    with pytest.raises(StoreError) as refused:
        tasks.add("T", "greet", {"handle": object()})
    assert refused.value.kind == "value"
    assert tasks.find("T") is None
    tasks.add("T", "greet", {})
    with pytest.raises(StoreError) as refused:
        tasks.end("T", "completed", object())
    assert refused.value.kind == "value"
    assert ids(tasks, "greet") == ["T"]


def test_a_task_that_nobody_added_cannot_begin_or_end(tasks: Tasks) -> None:
    for act in (tasks.begin, lambda name: tasks.end(name, "completed"), lambda name: tasks.tell(name, "said", {})):
        with pytest.raises(StoreError) as refused:
            act("T")
        assert refused.value.kind == "missing"


def test_a_row_that_was_changed_behind_our_back_is_damage(tasks: Tasks, database: Database) -> None:
    tasks.add("T", "greet", {})
    with database.transaction():
        database.execute("UPDATE tasks SET outcome = '1'")
        database.execute("DROP TRIGGER task_events_stand")
        database.execute("UPDATE task_events SET data = '1'")
    with pytest.raises(StoreError, match="is damaged"):
        tasks.find("T")
    with pytest.raises(StoreError, match="is damaged"):
        tasks.events("T")


def test_a_task_never_becomes_another_one(tasks: Tasks, database: Database) -> None:
    tasks.add("T", "greet", {})
    for change in ("kind = 'x'", "content = '{}'", "task_id = 'U'", "run_id = 'R'"):
        with pytest.raises(StoreError, match="never becomes another"), database.transaction():
            database.execute(f"UPDATE tasks SET {change}")


def test_tasks_go_with_their_run_and_those_of_no_run_when_they_are_old(
    tasks: Tasks, database: Database, run_id: str, clock: Any
) -> None:
    journal = Journal(database)
    journal.create("young", "build", definition="", inputs={})
    for name, content in (("of run", {"run_id": run_id}), ("of young", {"run_id": "young"}), ("old", {}), ("open", {})):
        tasks.add(name, "part", content)
    tasks.add("number", "part", {"run_id": 7})
    tasks.end("old", "completed")
    tasks.end("of young", "completed")
    clock.now += 50
    tasks.end("number", "completed")
    journal.end(run_id, "completed")
    clock.now += 60
    journal.begin("young")
    assert compact(database, Keep(newest=0, age_s=100), live={"young"}) == [run_id]
    left = [name for (name,) in database.rows("SELECT task_id FROM tasks ORDER BY number")]
    assert left == ["of young", "open", "number"]
    assert {name for (name,) in database.rows("SELECT task_id FROM task_events")} == set(left)


def test_a_database_of_the_version_before_gets_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "sidecar.db")
    with monkeypatch.context() as before:
        before.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:1])
        with Database(path) as database:
            Journal(database).create("R", "build", definition="", inputs={})
            assert database.rows("PRAGMA user_version") == [(1,)]
    with Database(path) as database:
        assert Tasks(database).add("T", "greet", {}).state == "queued"
        assert Journal(database).run("R").status == "pending"
