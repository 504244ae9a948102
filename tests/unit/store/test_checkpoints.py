"""Checkpoints: the last two, exactly as saved."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.errors import StoreError
from sidecar.store.db import Database
from sidecar.store.journal import Checkpoints, Journal


def content(checkpoints: Checkpoints, run_id: str) -> Any:
    last = checkpoints.last(run_id)
    assert last is not None
    return last.content


def test_the_last_one_comes_back_as_saved_and_two_are_kept(database: Database, run_id: str) -> None:
    checkpoints = Checkpoints(database)
    assert checkpoints.last(run_id) is None
    for number in range(1, 6):
        saved = {"cursor": number, "text": "long " * 10_000}
        assert checkpoints.save(run_id, saved) == number
        assert content(checkpoints, run_id) == saved
    assert database.rows("SELECT number FROM checkpoints ORDER BY number") == [(4,), (5,)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=60)
@given(value=JSON)
def test_any_json_comes_back_as_it_was(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    with Database(str(tmp_path_factory.mktemp("json") / "sidecar.db")) as database:
        Journal(database).create("R", "x", definition="", inputs={})
        Checkpoints(database).save("R", value, durable=False)
        assert content(Checkpoints(database), "R") == value


def test_a_checkpoint_that_was_changed_behind_our_back_is_damage(database: Database, run_id: str) -> None:
    Checkpoints(database).save(run_id, {"cursor": 1})
    with database.transaction():
        database.execute("UPDATE checkpoints SET content = x'00'")
    with pytest.raises(StoreError, match="is damaged"):
        Checkpoints(database).last(run_id)
