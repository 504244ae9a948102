"""What becomes of a step that failed: once more, on without it, or up with the error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sidecar.model.steps import Fallible

# Doubling has to end somewhere: a wait longer than a day is a run that nobody meant.
LONGEST_DELAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Policy:
    """What the author of a step wants, with every template in it already a value."""

    on_error: Literal["fail", "continue", "retry"] = "fail"
    retry_count: int = 0
    retry_delay_s: float = 0.0
    backoff: Literal["constant", "exponential"] = "constant"
    has_fallback: bool = False


@dataclass(frozen=True, slots=True)
class Again:
    """The step is done again, after a while."""

    after_s: float


@dataclass(frozen=True, slots=True)
class GoOn:
    """The run goes on behind the step, with the fallback for a result where the step has one."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The error goes up."""


Verdict = Again | GoOn | GiveUp


def policy_of(step: Fallible, retry_count: int, retry_delay_s: float) -> Policy:
    """A step's policy; the two that can be templates come from whoever evaluated them."""
    return Policy(step.on_error, retry_count, retry_delay_s, step.retry_backoff, step.has_fallback)


def decide(policy: Policy, failures: int) -> Verdict:
    """The verdict on a step that failed `failures` times in a row, this time included."""
    if policy.on_error == "continue":
        return GoOn()
    if policy.on_error == "fail":
        return GiveUp()
    if failures <= policy.retry_count:
        return Again(_delay_s(policy, failures))
    return GoOn() if policy.has_fallback else GiveUp()


def _delay_s(policy: Policy, failures: int) -> float:
    if policy.backoff == "constant":
        return policy.retry_delay_s
    # 2.0 ** 1024 is an OverflowError, and the longest delay is reached long before that.
    doubled = policy.retry_delay_s * 2.0 ** min(failures - 1, 64)
    return max(policy.retry_delay_s, min(doubled, LONGEST_DELAY_S))
