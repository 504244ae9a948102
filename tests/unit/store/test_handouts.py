"""A step that was handed out stays with its task until it is done."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sidecar.errors import StoreError
from sidecar.store.db import Database
from sidecar.store.journal import Handout, Handouts


@pytest.fixture
def handouts(database: Database) -> Handouts:
    return Handouts(database)


@pytest.fixture
def hand_out(handouts: Handouts, run_id: str) -> Callable[..., Handout]:
    def give(task_id: str, key: str) -> Handout:
        return handouts.hand_out(run_id, task_id, key, {"id": key})

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
