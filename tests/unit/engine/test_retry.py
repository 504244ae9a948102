"""The verdict on a step that failed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.cursor.moves import LONGEST_DELAY_S, Again, GiveUp, GoOn, Policy, Verdict, decide, policy_of
from sidecar.model.steps import UserMessage


@pytest.mark.parametrize(
    ("policy", "failures", "verdict"),
    [
        (Policy("fail"), 1, GiveUp()),
        (Policy("fail", has_fallback=True), 1, GiveUp()),
        (Policy("fail", retry_count=5), 1, GiveUp()),
        (Policy("continue"), 1, GoOn()),
        (Policy("continue", retry_count=5), 1, GoOn()),
        (Policy("retry", retry_count=0), 1, GiveUp()),
        (Policy("retry", retry_count=0, has_fallback=True), 1, GoOn()),
        (Policy("retry", retry_count=2, retry_delay_s=1.5), 1, Again(1.5)),
        (Policy("retry", retry_count=2, retry_delay_s=1.5), 2, Again(1.5)),
        (Policy("retry", retry_count=2, retry_delay_s=1.5), 3, GiveUp()),
        (Policy("retry", retry_count=2, has_fallback=True), 3, GoOn()),
        (Policy("retry", retry_count=9, retry_delay_s=1.5, backoff="exponential"), 1, Again(1.5)),
        (Policy("retry", retry_count=9, retry_delay_s=1.5, backoff="exponential"), 2, Again(3.0)),
        (Policy("retry", retry_count=9, retry_delay_s=1.5, backoff="exponential"), 4, Again(12.0)),
    ],
)
def test_a_failed_step_is_tried_again_or_left_or_fails_as_its_author_wants(
    policy: Policy, failures: int, verdict: Verdict
) -> None:
    assert decide(policy, failures) == verdict


@given(st.floats(0, 1e9), st.integers(1, 100_000))
def test_exponential_waits_stay_finite_and_never_fall_below_the_one_that_was_asked_for(
    delay_s: float, failures: int
) -> None:
    policy = Policy("retry", retry_count=100_000, retry_delay_s=delay_s, backoff="exponential")
    verdict = decide(policy, failures)
    assert isinstance(verdict, Again)
    assert math.isfinite(verdict.after_s)
    assert delay_s <= verdict.after_s <= max(delay_s, LONGEST_DELAY_S)


@given(st.integers(0, 20), st.booleans())
def test_a_step_is_tried_once_and_then_as_often_again_as_it_may(count: int, fallback: bool) -> None:
    policy = Policy("retry", retry_count=count, has_fallback=fallback)
    attempts = 1
    while isinstance(verdict := decide(policy, attempts), Again):
        attempts += 1
    assert attempts == count + 1
    assert verdict == (GoOn() if fallback else GiveUp())


def test_a_policy_is_what_the_step_says_and_null_is_a_fallback() -> None:
    step = UserMessage.model_validate(
        {"type": "user_message", "message": "m", "on_error": "retry", "retry_backoff": "exponential"}
    )
    assert policy_of(step, 2, 0.5) == Policy("retry", 2, 0.5, "exponential", has_fallback=False)
    with_null = UserMessage.model_validate({"type": "user_message", "message": "m", "fallback_value": None})
    assert policy_of(with_null, 0, 0).has_fallback
