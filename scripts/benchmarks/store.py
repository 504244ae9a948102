"""What the journal costs: a step on the disk beside a plain commit, a step inside, and reading a long run back."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from statistics import median

from benchmarks.report import Figure
from sidecar.model import ulid
from sidecar.store.db import Database, open_database
from sidecar.store.journal import Checkpoints, Journal, Steps

STEPS = 10_000
RESULT = {"exit_code": 0, "output": "x" * 200}


def measure(*, quick: bool) -> list[Figure]:
    """On the disk below the working directory: a temporary file system would make every sync free."""
    with tempfile.TemporaryDirectory(dir=os.getcwd(), prefix=".bench-") as directory:
        with open_database(directory) as database:
            run_id = ulid.new()
            Journal(database).create(run_id, "bench", definition="name: bench", inputs={})
            Journal(database).begin(run_id)
            durable = _durable(database, run_id, directory, 50 if quick else 400)
            inside = _inside(database, run_id, 500 if quick else 5_000)
            large = _large_state(database, run_id, 10 if quick else 50)
        return [*durable, inside, large, _read_back(directory)]


def _durable(database: Database, run_id: str, directory: str, rounds: int) -> list[Figure]:
    """The two in turn, so that a disk that is slow for a while is slow for both."""
    steps = Steps(database)
    plain = sqlite3.connect(os.path.join(directory, "plain.db"), isolation_level=None)
    plain.execute("PRAGMA journal_mode = WAL")
    plain.execute("PRAGMA synchronous = FULL")
    plain.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, text TEXT)")
    commits, whole, ends = [], [], []
    for number in range(rounds):
        begin = time.perf_counter()
        plain.execute("INSERT INTO rows (text) VALUES (?)", (str(RESULT),))
        committed = time.perf_counter()
        attempt = steps.begin(run_id, f"durable.{number}")
        begun = time.perf_counter()
        steps.complete(run_id, f"durable.{number}", attempt, RESULT)
        completed = time.perf_counter()
        commits.append(committed - begin)
        whole.append(completed - committed)
        ends.append(completed - begun)
    plain.close()
    baseline, name = median(commits) * 1000, "plain SQLite commit, WAL, synchronous FULL"
    return [
        Figure("store: durable step, begun and completed", median(whole) * 1000, "ms", name, baseline, 3),
        Figure("store: one of the two", median(ends) * 1000, "ms", name, baseline),
    ]


def _inside(database: Database, run_id: str, rounds: int) -> Figure:
    journal, taken = Journal(database), []
    start, last = journal.run(run_id).start, journal.last_seq(run_id)
    for number in range(rounds):
        begin = time.perf_counter()
        with database.transaction(durable=False):
            writes = [[[], [[["raw", "count"], number, "set"]]]]
            journal.append_all(run_id, start, last + number, [("step_completed", {"number": number}, writes)])
        taken.append(time.perf_counter() - begin)
    return Figure("store: internal step with its write of the state", median(taken) * 1e6, "µs", limit=100)


def _large_state(database: Database, run_id: str, rounds: int) -> Figure:
    state = {"files": {f"src/{i}.ts": {"errors": [f"{i}-{j}" for j in range(20)]} for i in range(4_000)}, "n": 0}
    checkpoints, taken = Checkpoints(database), []
    checkpoints.save(run_id, state)
    for number in range(rounds):
        state["n"] = number
        begin = time.perf_counter()
        checkpoints.save(run_id, state)
        taken.append(time.perf_counter() - begin)
    return Figure("store: checkpoint of 0.8 MB, one field changed", median(taken) * 1000, "ms")


def _read_back(directory: str) -> Figure:
    run_id = ulid.new()
    with open_database(directory) as database, database.transaction():
        Journal(database).create(run_id, "long", definition="name: long", inputs={})
        Journal(database).begin(run_id)
        for number in range(STEPS):
            attempt = Steps(database).begin(run_id, f"step.{number}")
            Steps(database).complete(run_id, f"step.{number}", attempt, RESULT)
            Journal(database).append(run_id, "step_completed", {"step": f"step.{number}"})
    begin = time.perf_counter()
    with open_database(directory) as database:
        database.verify()
        assert len(Steps(database).steps(run_id)) == STEPS
        assert len(Journal(database).events(run_id)) == STEPS + 1
    return Figure(f"store: open, verify, read {STEPS:,} steps back", time.perf_counter() - begin, "s", limit=1)
