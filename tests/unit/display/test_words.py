"""Amounts in words."""

from __future__ import annotations

import pytest

from sidecar.display import words


@pytest.mark.parametrize(
    ("seconds_s", "told"),
    [
        (-3, "0s"),
        (59.99, "59s"),
        (60, "1m 00s"),
        (342, "5m 42s"),
        (3900, "1h 05m"),
        (86399, "23h 59m"),
        (183600, "2d 3h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds_s: float, told: str) -> None:
    assert words.duration(seconds_s) == told


@pytest.mark.parametrize(("usd", "told"), [(0, "$0.0000"), (1.23456, "$1.2346"), (1234.5, "$1,234.50")])
def test_few_dollars_have_more_digits(usd: float, told: str) -> None:
    assert words.cost(usd) == told


@pytest.mark.parametrize(
    ("count", "told"), [(999, "999"), (1000, "1.0k"), (999_949, "999.9k"), (999_950, "1.00M"), (4_560_000, "4.56M")]
)
def test_tokens_are_rounded(count: int, told: str) -> None:
    assert words.tokens(count) == told


@pytest.mark.parametrize(("done", "of", "told"), [(12, 50, "12 / 50 (24%)"), (999, 1000, "999 / 1000 (99%)")])
def test_a_share_is_whole_only_at_the_end(done: int, of: int, told: str) -> None:
    assert words.share(done, of) == told
    assert words.share(of, of).endswith("(100%)")
