"""What follows the failure of a step, by its own policy."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.cursor.actions import ActionFailed, Answer, Boundary, Completed, Delay, Finished, Passed
from sidecar.engine.cursor.moves import LONGEST_DELAY_S, Cursor, exponential_s
from sidecar.engine.cursor.position import StepList
from sidecar.model.steps import UserMessage

ERROR = {"message": "it failed"}


def after_failures(count: int, **policy: Any) -> Cursor:
    """A workflow of one step, after its last failure."""
    step = UserMessage.model_validate({"type": "user_message", "id": "a", "message": "m", **policy})
    cursor = Cursor.start(StepList((step,)))
    while True:
        cursor = cursor.after(Passed()).after(ActionFailed(ERROR))
        count -= 1
        if not count:
            return cursor
        cursor = cursor.after(Completed()) if isinstance(cursor.action, Delay) else cursor


@pytest.mark.parametrize(
    ("backoff", "failures", "delay_s"),
    [
        ("constant", 1, 1.5),
        ("constant", 2, 1.5),
        ("exponential", 1, 1.5),
        ("exponential", 2, 3.0),
        ("exponential", 4, 12.0),
    ],
)
def test_the_delay_before_a_try_stays_or_doubles(backoff: str, failures: int, delay_s: float) -> None:
    cursor = after_failures(failures, on_error="retry", retry_count=9, retry_delay=1500, retry_backoff=backoff)
    assert isinstance(cursor.action, Delay)
    assert cursor.action.seconds_s == delay_s


@given(st.floats(0, 1e9), st.integers(1, 100_000))
def test_exponential_delays_stay_finite_and_never_fall_below_the_one_that_was_asked_for(
    delay_s: float, failures: int
) -> None:
    delay = exponential_s(delay_s, failures)
    assert math.isfinite(delay)
    assert delay_s <= delay <= max(delay_s, LONGEST_DELAY_S)


def test_signals_are_looked_for_again_before_each_attempt() -> None:
    cursor = after_failures(1, on_error="retry", retry_delay=5)
    assert isinstance(cursor.action, Delay)
    assert isinstance(cursor.after(Completed()).action, Boundary)


def test_a_delay_that_is_none_fails_the_step_with_the_reason() -> None:
    end = after_failures(1, on_error="retry", retry_delay="{{ d }}").after(Answer("soon")).action
    assert isinstance(end, Finished)
    assert end.status == "failed"
    assert "`retry_delay` of step 'a'" in end.message
