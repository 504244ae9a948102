"""A database of its own for each test, with a clock that the test can set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.store.db import Database
from sidecar.store.journal import Journal


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(tmp_path: Path, clock: Clock) -> Iterator[Database]:
    with Database(str(tmp_path / "sidecar.db"), clock=clock) as database:
        yield database


@pytest.fixture
def run_id(database: Database) -> str:
    """A run that is running."""
    journal = Journal(database)
    journal.create("R", "build", definition="name: build\n", inputs={"target": "all"})
    journal.begin("R")
    return "R"
