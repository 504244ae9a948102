"""Durations as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.model import duration


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (1500, 1.5),
        (0, 0.0),
        (0.5, 0.0005),
        ("1500", 1.5),
        ("250ms", 0.25),
        ("30s", 30.0),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        (" 2 H ", 7200.0),
    ],
)
def test_a_duration_is_milliseconds_or_says_its_unit(written: object, seconds: float) -> None:
    assert duration.seconds(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written",
    [
        "",
        " ",
        "s",
        "5x",
        "5 minutes",
        "-5s",
        "+5s",
        "30m1h",
        "5m5m",
        "1,5h",
        "1e3s",
        "٣s",
        "5m!",
        "m5",
        "9" * 70,
        "9" * 60,
    ],
)
def test_a_text_that_is_no_duration_is_refused_with_what_would_be_right(written: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration.*30s"):
        duration.seconds(written)


@pytest.mark.parametrize("value", [None, True, False, [], {}, -1, -0.001, math.nan, math.inf, 10**400, -(10**400)])
def test_a_value_that_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        duration.seconds(value)


@given(st.integers(min_value=0, max_value=10**12), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_a_whole_number_of_a_unit_is_that_many_units(amount: int, unit: str) -> None:
    unit_s = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
    if amount * unit_s > 3_000_000_000:  # about a century: longer ones are refused
        with pytest.raises(ValueError, match="is not a duration"):
            duration.seconds(f"{amount * 10}{unit}")
    else:
        assert duration.seconds(f"{amount}{unit}") == pytest.approx(amount * unit_s)


@given(st.text() | st.integers() | st.floats() | st.none() | st.booleans())
def test_whatever_is_given_the_answer_is_seconds_or_a_value_error(value: object) -> None:
    try:
        seconds = duration.seconds(value)
    except ValueError:
        return
    assert math.isfinite(seconds)
    assert seconds >= 0
