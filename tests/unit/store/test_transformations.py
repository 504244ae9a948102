"""The trail of transformations: counted, read backwards in parts, and gone with its run."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.errors import StoreError
from sidecar.store.db import Database
from sidecar.store.journal import Transformations


def traces(*outputs: int, field: str = "n", applied: bool = True) -> list[dict[str, Any]]:
    return [{"field": field, "output": output, "applied": applied} for output in outputs]


def test_the_newest_come_in_the_order_in_which_they_happened(database: Database, run_id: str) -> None:
    trail = Transformations(database)
    for number in range(300):
        trail.add(run_id, [*traces(number), *traces(number, field="other", applied=False)])
    trail.add(run_id, [])
    assert [one["output"] for one in trail.newest(run_id, 4)] == [298, 298, 299, 299]
    assert [one["output"] for one in trail.newest(run_id, 250, "n")] == list(range(50, 300))
    assert len(trail.newest(run_id, 10_000)) == 600
    assert trail.newest(run_id, 5, "nothing") == []
    assert trail.total(run_id) == 300, "what was undone does not count"


def test_a_changed_row_is_noticed(database: Database, run_id: str) -> None:
    trail = Transformations(database)
    trail.add(run_id, traces(1))
    with database.transaction():
        database.execute("UPDATE transformations SET traces = replace(traces, '1', '2')")
    with pytest.raises(StoreError, match="damaged"):
        trail.newest(run_id, 1)


def test_the_trail_goes_with_its_run(database: Database, run_id: str) -> None:
    trail = Transformations(database)
    trail.add(run_id, traces(1, 2))
    with database.transaction():
        database.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))
    assert (trail.newest(run_id, 5), trail.total(run_id)) == ([], 0)
