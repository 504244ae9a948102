"""Checkpoints: the last few, exactly as saved, and what did not change stored once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.errors import StoreError
from sidecar.store import checkpoints as module
from sidecar.store.checkpoints import Checkpoints
from sidecar.store.db import Database
from sidecar.store.journal import Journal


def stored(database: Database) -> int:
    """Characters in the tables."""
    query = "SELECT (SELECT TOTAL(LENGTH(content)) FROM pieces) + (SELECT TOTAL(LENGTH(content)) FROM checkpoints)"
    return int(database.rows(query)[0][0])


def large() -> dict[str, Any]:
    return {
        "cursor": ["loop", 3],
        "state": {
            "log": [f"line {number} of a log" for number in range(5_000)],
            "files": {f"src/{number}.ts": {"errors": [number] * 10} for number in range(2_000)},
            "text": "long " * 10_000,
            "count": 0,
        },
    }


def content(checkpoints: Checkpoints, run_id: str) -> Any:
    last = checkpoints.last(run_id)
    assert last is not None
    return last.content


def test_the_last_one_comes_back_as_saved_and_only_a_few_are_kept(database: Database, run_id: str) -> None:
    checkpoints = Checkpoints(database, keep=2)
    assert checkpoints.last(run_id) is None
    for number in range(1, 6):
        assert checkpoints.save(run_id, {"cursor": number, **large()}) == number
    assert checkpoints.numbers(run_id) == [4, 5]
    assert content(checkpoints, run_id) == {"cursor": 5, **large()}
    assert checkpoints.get(run_id, 3) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(count=1),
        lambda state: state["log"].append("one more"),
        lambda state: state["files"]["src/700.ts"].update(errors=[]),
        lambda state: state["files"].update(new={}),
    ],
    ids=["a field beside it", "a list grows", "deep inside", "one more entry"],
)
def test_a_small_change_in_a_large_state_is_stored_small(database: Database, run_id: str, change: Any) -> None:
    checkpoints, saved = Checkpoints(database), large()
    checkpoints.save(run_id, saved)
    before = stored(database)
    change(saved["state"])
    checkpoints.save(run_id, saved)
    assert stored(database) - before < before / 20
    assert content(checkpoints, run_id) == saved


def test_pieces_that_no_kept_checkpoint_has_are_gone_and_the_others_stay(database: Database, run_id: str) -> None:
    checkpoints = Checkpoints(database, keep=2)
    for number in range(6):
        checkpoints.save(run_id, {"same": "a" * 20_000, "other": str(number) * 20_000})
    assert 3 * 20_000 < stored(database) < 3 * 20_000 + 2_000
    assert content(checkpoints, run_id) == {"same": "a" * 20_000, "other": "5" * 20_000}
    fourth = checkpoints.get(run_id, 5)
    assert fourth is not None
    assert fourth.content["other"] == "4" * 20_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=60,
)


@settings(max_examples=60)
@given(values=st.lists(JSON, min_size=1, max_size=4))
def test_any_json_comes_back_as_it_was(values: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, length in (("_SMALL", 8), ("_LARGE", 16), ("_STRETCH", 2)):  # so that small values are taken apart
            patch.setattr(module, name, length)
        with Database(str(tmp_path_factory.mktemp("json") / "sidecar.db")) as database:
            Journal(database).create("R", "x", definition="", inputs={})
            checkpoints = Checkpoints(database, keep=2)
            for value in values:
                checkpoints.save("R", value, durable=False)
                assert content(checkpoints, "R") == value
            if len(values) > 1:
                before = checkpoints.get("R", len(values) - 1)
                assert before is not None
                assert before.content == values[-2]


def test_keys_that_are_not_text_become_text_as_json_has_it(database: Database, run_id: str) -> None:
    checkpoints = Checkpoints(database)
    checkpoints.save(run_id, {1: "x" * 20_000, None: (1, 2)})
    assert content(checkpoints, run_id) == {"1": "x" * 20_000, "null": [1, 2]}


@pytest.mark.parametrize(
    "damage", ["UPDATE pieces SET content = '[0,1]'", "DELETE FROM pieces", "UPDATE checkpoints SET content = '[0,1]'"]
)
def test_a_checkpoint_that_was_changed_behind_our_back_is_damage(database: Database, run_id: str, damage: str) -> None:
    Checkpoints(database).save(run_id, large())
    with database.transaction():
        database.execute(damage)
    with pytest.raises(StoreError, match="is damaged"):
        Checkpoints(database).last(run_id)


def test_a_checkpoint_belongs_to_a_run(database: Database) -> None:
    with pytest.raises(StoreError) as refused:
        Checkpoints(database).save("nobody", {})
    assert refused.value.kind == "missing"
