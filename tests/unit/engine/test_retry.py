"""What follows the failure of a step, by its own policy."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.cursor.actions import ActionFailed, ApplyErrorUpdate, Boundary, Completed, Delay, Finished, Passed
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
    ("policy", "failures", "status"),
    [
        ({"on_error": "fail"}, 1, "failed"),
        ({"on_error": "fail", "fallback_value": 1}, 1, "failed"),
        ({"on_error": "fail", "retry_count": 5}, 1, "failed"),
        ({"on_error": "continue"}, 1, "completed"),
        ({"on_error": "continue", "retry_count": 5}, 1, "completed"),
        ({"on_error": "retry", "retry_count": 0}, 1, "failed"),
        ({"on_error": "retry", "retry_count": 2, "retry_delay": 1500}, 3, "failed"),
    ],
)
def test_a_step_that_is_not_tried_again_ends_the_run_or_is_skipped_as_its_author_wants(
    policy: dict[str, Any], failures: int, status: str
) -> None:
    action = after_failures(failures, **policy).action
    assert isinstance(action, Finished)
    assert action.status == status


@pytest.mark.parametrize("fallback", [1, None])
@pytest.mark.parametrize(("policy", "failures"), [({"retry_count": 0}, 1), ({"retry_count": 2, "retry_delay": 0}, 3)])
def test_a_fallback_takes_the_place_of_the_last_try_and_null_is_one(
    policy: dict[str, Any], failures: int, fallback: Any
) -> None:
    cursor = after_failures(failures, on_error="retry", fallback_value=fallback, **policy)
    assert isinstance(cursor.action, ApplyErrorUpdate)
    assert cursor.action.continues
    assert cursor.after(Completed()).action == Finished("completed")


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


@given(st.integers(0, 20), st.booleans())
def test_a_step_is_tried_once_and_then_as_often_again_as_it_may(count: int, fallback: bool) -> None:
    policy = {"fallback_value": 1} if fallback else {}
    for failures in range(1, count + 1):
        cursor = after_failures(failures, on_error="retry", retry_count=count, retry_delay=0, **policy)
        assert isinstance(cursor.action, Boundary)
    last = after_failures(count + 1, on_error="retry", retry_count=count, retry_delay=0, **policy)
    assert isinstance(last.action, ApplyErrorUpdate if fallback else Finished)
