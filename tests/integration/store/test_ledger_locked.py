"""Notes that a ledger makes while the journal is locked by another process."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from sidecar.agents.output import Secrets
from sidecar.engine.ledger import Ledger
from sidecar.engine.owner import Owner
from sidecar.engine.run import Run
from sidecar.errors import StoreError
from sidecar.store.db import Database
from sidecar.store.journal import Checkpoints, Journal, Transformations


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """By another process, or anybody else: here by this one."""
    other = sqlite3.connect(root / ".swissarmyhammer" / "sidecar.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
    finally:
        other.close()


def _ledger(database: Database, journal: Journal) -> Ledger:
    run = cast("Run", SimpleNamespace(to_json=dict, states=SimpleNamespace(traces=[])))
    stores = {"checkpoints": Checkpoints(database), "transformations": Transformations(database)}
    owner = cast("Owner", SimpleNamespace(database=database, journal=journal, **stores))
    return Ledger(owner, "R", run, Secrets(()), lambda _: None)


@pytest.mark.anyio
async def test_what_was_noted_while_the_journal_was_locked_is_not_left_out_of_the_next_write(tmp_path: Path) -> None:
    with Database(str(tmp_path / ".swissarmyhammer" / "sidecar.db"), busy_timeout_s=0.01) as database:
        journal = Journal(database)
        journal.create("R", "x", definition="", inputs={})
        ledger = _ledger(database, journal)
        ledger.record_writes((), [[["raw", "n"], 1, "set"]])
        ledger.record("step_completed", step="step")
        with locked(tmp_path):
            ledger.commit()
            ledger.record("step_completed", step="next")
            assert (ledger.is_behind, journal.events("R")) == (True, [])
        await ledger.caught_up()
        assert [event.data["step"] for event in journal.events("R")] == ["step", "next"]
        assert [event.writes for event in journal.events("R")] == [[[[], [[["raw", "n"], 1, "set"]]]], []]
        ledger.give_up()
        ledger.record("step_completed", step="last")
        with locked(tmp_path), pytest.raises(StoreError, match="locked"):
            ledger.commit()
        ledger.record("step_completed", step="never")
        with pytest.raises(StoreError, match="locked"):
            ledger.commit()
        assert [event.data["step"] for event in journal.events("R")] == ["step", "next"]


@pytest.mark.anyio
async def test_a_write_that_a_checkpoint_has_is_not_in_the_next_event_too(tmp_path: Path) -> None:
    with Database(str(tmp_path / "sidecar.db")) as database:
        journal = Journal(database)
        journal.create("R", "x", definition="", inputs={})
        ledger = _ledger(database, journal)
        ledger.record_writes((), [[["raw", "n"], 1, "set"]])
        await ledger.checkpoint()
        ledger.record("step_completed", step="step")
        ledger.commit()
        assert [event.writes for event in journal.events("R")] == [[]]
