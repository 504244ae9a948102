"""A step that was handed out stays with its task until it is done or its lease has run out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sidecar.errors import StoreError
from sidecar.store.db import Database
from sidecar.store.journal import Handout, Handouts

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def handouts(database: Database) -> Handouts:
    return Handouts(database)


@pytest.fixture
def hand_out(handouts: Handouts, run_id: str) -> Callable[..., Handout]:
    def give(task_id: str, key: str, **options: Any) -> Handout:
        return handouts.hand_out(run_id, task_id, key, {"id": key}, **{"holder": "a", "lease_s": 60, **options})

    return give


def test_asking_again_gives_the_same_step_until_it_is_taken_back(
    handouts: Handouts, run_id: str, hand_out: Callable[..., Handout]
) -> None:
    first = hand_out("", "one")
    assert hand_out("", "two").step == first.step == {"id": "one"}
    assert handouts.take_back(run_id, "")
    assert not handouts.take_back(run_id, "")
    assert hand_out("", "two").step == {"id": "two"}


def test_one_step_is_never_in_two_hands(hand_out: Callable[..., Handout]) -> None:
    hand_out("t.0", "one")
    with pytest.raises(StoreError) as refused:
        hand_out("t.1", "one")
    assert refused.value.kind == "conflict"


def test_a_task_whose_lease_ran_out_is_found_and_its_siblings_are_not(
    handouts: Handouts, run_id: str, hand_out: Callable[..., Handout], clock: Any
) -> None:
    hand_out("t.0", "one")
    hand_out("t.1", "two")
    clock.now += 50
    handouts.renew(run_id, "t.1", "a", 60)
    clock.now += 20
    assert [handout.task_id for handout in handouts.expired(run_id)] == ["t.0"]
    assert [handout.task_id for handout in handouts.all_held(run_id)] == ["t.0", "t.1"]


def test_a_former_holder_cannot_renew(handouts: Handouts, run_id: str, hand_out: Callable[..., Handout]) -> None:
    hand_out("t.0", "one")
    assert hand_out("t.0", "one", holder="b").holder == "b"
    with pytest.raises(StoreError, match="b holds it"):
        handouts.renew(run_id, "t.0", "a", 60)
    with pytest.raises(StoreError, match="nothing is handed out"):
        handouts.renew(run_id, "t.9", "a", 60)


def test_a_handout_that_was_changed_behind_our_back_is_damage(
    handouts: Handouts, run_id: str, hand_out: Callable[..., Handout], database: Database
) -> None:
    hand_out("t.0", "one")
    with database.transaction():
        database.execute("UPDATE handouts SET step = '1'")
    with pytest.raises(StoreError, match="is damaged"):
        handouts.held(run_id, "t.0")
