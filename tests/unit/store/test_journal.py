"""Runs, their events in order, and one end for each start."""

from __future__ import annotations

import pytest

from sidecar.errors import StoreError
from sidecar.store.db import Database
from sidecar.store.journal import Journal


@pytest.fixture
def journal(database: Database) -> Journal:
    return Journal(database)


def test_a_run_is_read_back_as_it_was_created(journal: Journal) -> None:
    inputs = {"n": 1, "text": "ü", "deep": [{"a": None}]}
    workspace = "/w/not \udcff text"
    created = journal.create(
        "A",
        "iterate",
        definition="name: x\n",
        inputs=inputs,
        workspace=workspace,
        driver="agent",
        details={"tty": True},
    )
    assert created == journal.run("A")
    assert (created.status, created.start, created.inputs, created.workspace) == ("pending", 0, inputs, workspace)
    assert (created.driver, created.details) == ("agent", {"tty": True})
    assert journal.definition("A") == "name: x\n"


def test_events_come_back_in_order_behind_a_sequence_number(journal: Journal, run_id: str) -> None:
    for number in range(5):
        journal.append(run_id, "tick", {"number": number})
    assert [event.seq for event in journal.events(run_id)] == [1, 2, 3, 4, 5, 6]
    assert [event.data for event in journal.events(run_id, after=4)] == [{"number": 3}, {"number": 4}]
    assert [event.seq for event in journal.events(run_id, after=1, limit=2)] == [2, 3]
    assert journal.events(run_id, after=6) == []


@pytest.mark.parametrize("status", ["paused", "failed", "aborted", "stopped", "interrupted"])
def test_each_start_has_one_end_and_then_the_next_may_begin(journal: Journal, run_id: str, status: str) -> None:
    journal.end(run_id, status, reason="why")  # type: ignore[arg-type]
    run = journal.run(run_id)
    assert (run.status, run.reason, run.ended_at) == (status, "why", 1_000_000.0)
    with pytest.raises(StoreError, match="this start of the run has ended already") as refused:
        journal.append(run_id, "tick")
    assert refused.value.kind == "conflict"
    with pytest.raises(StoreError, match="this start of the run has ended already"):
        journal.end(run_id, "failed")
    assert journal.run(run_id) == run
    assert journal.begin(run_id) == 2
    run = journal.run(run_id)
    assert (run.status, run.reason, run.ended_at) == ("running", None, None)
    journal.end(run_id, "completed")
    ends = [(event.start, event.data["status"]) for event in journal.events(run_id) if event.closes]
    assert ends == [(1, status), (2, "completed")]
    assert [event.kind for event in journal.events(run_id)] == ["run_started", "run_ended", "run_resumed", "run_ended"]


def test_the_newest_events_of_a_kind_come_first_however_many_others_there_are(journal: Journal, run_id: str) -> None:
    for number in range(250):
        journal.append(run_id, "wanted", {"n": number, "task": None if number % 2 else "t"})
        journal.append(run_id, "other", {"n": number, "task": None})
    assert [event.data["n"] for event in journal.newest(run_id, ["wanted"])] == list(range(249, -1, -1))
    odd = journal.newest(run_id, ["wanted"], containing='"task":null')
    assert [event.data["n"] for event in odd] == list(range(249, 0, -2))
    assert list(journal.newest(run_id, ["unknown"])) == []


def test_the_schema_itself_refuses_a_second_end_and_a_changed_event(
    journal: Journal, run_id: str, database: Database
) -> None:
    journal.end(run_id, "stopped")
    database.rows("DROP TRIGGER events_none_after_the_end")
    columns = "run_id, start, at, kind, closes, data, seal"
    with pytest.raises(StoreError, match="UNIQUE"), database.transaction():
        database.execute(f"INSERT INTO events (seq, {columns}) SELECT 9, {columns} FROM events WHERE closes = 1")
    with pytest.raises(StoreError, match="an event that is journalled never changes"), database.transaction():
        database.execute("UPDATE events SET kind = 'other'")


def test_a_status_that_is_no_ending_ends_nothing(journal: Journal, run_id: str) -> None:
    with pytest.raises(StoreError, match="not how a run ends"):
        journal.end(run_id, "running")  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="not changed like this"):
        journal.change(run_id, status="completed")
    with pytest.raises(StoreError, match="not changed like this"):
        journal.change(run_id, start=7)


def test_a_run_can_pause_and_change_its_driver_between_start_and_end(journal: Journal, run_id: str) -> None:
    journal.change(run_id, status="paused", driver="agent", details={1: "one"})
    run = journal.run(run_id)
    assert (run.status, run.driver, run.details, run.start) == ("paused", "agent", {"1": "one"}, 1)


def test_runs_are_listed_newest_first_and_by_workspace(journal: Journal, database: Database) -> None:
    for number, workspace in enumerate(["w", None, "w", "v"]):
        database.clock = lambda number=number: -1.0 - number  # type: ignore[misc]
        journal.create(f"R{number}", "x", definition="", inputs={}, workspace=workspace)
    assert [run.run_id for run in journal.runs()] == ["R3", "R2", "R1", "R0"]
    assert [run.run_id for run in journal.runs(limit=2)] == ["R3", "R2"]
    assert [run.run_id for run in journal.runs(workspace="w")] == ["R2", "R0"]


def test_runs_are_found_by_how_they_stand(journal: Journal) -> None:
    for status in ("pending", "running", "paused", "completed"):
        journal.create(status, "x", definition="", inputs={})
        if status != "pending":
            journal.begin(status)
        if status not in ("pending", "running"):
            journal.end(status, status)  # type: ignore[arg-type]
    assert [run.run_id for run in journal.runs(statuses={"running", "paused"})] == ["paused", "running"]
    assert [run.run_id for run in journal.runs(statuses={"running", "paused"}, limit=1)] == ["paused"]
    assert journal.runs(statuses=()) == []
    assert journal.standings() == [(run.run_id, run.status, run.updated_at) for run in journal.runs()]
    assert len(journal.standings()) == 4


def test_a_signal_is_taken_once_by_each_run(journal: Journal, run_id: str) -> None:
    journal.create("S", "x", definition="", inputs={})
    assert journal.take_signal(run_id, "sig", "stop")
    assert not journal.take_signal(run_id, "sig", "stop", "refused")
    assert journal.take_signal("S", "sig", "stop", "refused")
    assert journal.signals(run_id)["sig"].outcome == "applied"
    assert (journal.signals("S")["sig"].outcome, journal.signals("S")["sig"].start) == ("refused", 0)


def test_what_was_written_to_a_state_stands_in_the_event_that_followed(journal: Journal, run_id: str) -> None:
    writes = [[[], [[["raw", "n"], 1, "set"]]], [["inner"], [[["raw", "s"], "secret", "set"]]]]
    with journal.transaction():
        journal.append_all(run_id, 1, 1, [("one", {}, writes), ("two", {"n": 2}, [])])
    events = journal.events(run_id, after=1)
    assert [(event.data, event.writes) for event in events] == [({}, writes), ({"n": 2}, [])]


@pytest.mark.parametrize(
    ("damage", "read"),
    [
        ("UPDATE runs SET status = 'completed'", lambda journal: journal.run("R")),
        ("UPDATE events SET data = '{}'", lambda journal: journal.events("R")),
        ("UPDATE events SET kind = CAST(x'ff' AS TEXT)", lambda journal: journal.events("R")),
        ("DELETE FROM events WHERE seq = 1", lambda journal: journal.events("R")),
        ("UPDATE events SET replayed = '{}'", lambda journal: journal.events("R")),
        ("UPDATE signals SET signal_id = 'other'", lambda journal: journal.signals("R")),
        ("UPDATE runs SET definition = x'00'", lambda journal: journal.definition("R")),
        ("UPDATE runs SET definition = NULL", lambda journal: journal.definition("R")),
    ],
)
def test_what_was_changed_behind_our_back_is_damage(
    journal: Journal, run_id: str, database: Database, damage: str, read: object
) -> None:
    journal.append(run_id, "tick", {"n": 1})
    journal.take_signal(run_id, "sig", "stop")
    database.rows("DROP TRIGGER events_stand")
    with database.transaction():
        database.execute(damage)
    with pytest.raises(StoreError, match="is damaged") as refused:
        read(journal)  # type: ignore[operator]
    assert refused.value.kind == "damaged"


def test_a_run_begins_again_only_after_its_end_and_never_when_it_is_complete(journal: Journal, run_id: str) -> None:
    with pytest.raises(StoreError, match="the start before has not ended yet"):
        journal.begin(run_id)
    journal.end(run_id, "completed")
    with pytest.raises(StoreError, match="a completed run is not started again"):
        journal.begin(run_id)
    with pytest.raises(StoreError) as refused:
        journal.create(run_id, "other", definition="", inputs={})
    assert refused.value.kind == "conflict"
