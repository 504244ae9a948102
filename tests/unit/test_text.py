"""Text from anywhere, made fit for a terminal, and amounts in words."""

from __future__ import annotations

import unicodedata

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.text import age, clean, cost, cut, duration, share, table, tokens, width


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\033[31mred\033[0m", "red"),
        ("\033[2J\033[Hcleared", "cleared"),
        ("\033]0;a title\007told", "told"),
        ("\033]8;;http://x\033\\link\033]8;;\033\\", "link"),
        ("\033Pdevice\033\\control", "control"),
        ("\x9b31mred", "red"),
        ("cut off \033[3", "cut off "),
        ("cut off \033]0;title", "cut off "),
        ("\033(Bcharset \033=keypad \0337save", "charset keypad save"),
        ("bell\a back\b\b null\0", "bell back null"),
        ("a\tb", "a    b"),
        ("10%\r20%\r30%", "30%"),
        ("line\r\n", "line"),
        ("one\r\ntwo", "one two"),
        ("one\ntwo\u2028three", "one two three"),
        ("half \ud83d of a pair", "half \ufffd of a pair"),
        ("zero\u200bwidth \u202eturned\u202c", "zerowidth turned"),
        ("日本語", "日本語"),
        ("👍🏽 \u2764\ufe0f", "👍 \u2764"),
    ],
)
def test_nothing_in_a_clean_text_acts(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_a_line_of_a_mebibyte_is_cut_before_anything_else() -> None:
    assert len(clean("\033]0;" + "x" * (1 << 20))) == 0
    assert len(clean("é" * (1 << 20))) < 4096


@given(st.text(st.characters() | st.sampled_from("\033[]\a\r\n\t;?0m\x9b\\")))
def test_whatever_it_was_a_clean_text_has_no_control_characters_and_is_clean(text: str) -> None:
    cleaned = clean(text)
    assert not [c for c in cleaned if unicodedata.category(c) in ("Cc", "Cf", "Cs")]
    assert clean(cleaned) == cleaned


@given(st.text(), st.integers(0, 30))
def test_what_is_cut_fits(text: str, cells: int) -> None:
    cleaned = clean(text)
    shown = cut(cleaned, cells)
    assert width(shown) <= cells
    assert shown == cleaned or shown.endswith("…") or cells == 0


@pytest.mark.parametrize("text", ["plain", "日本語", "e\u0301tude", "👍 fine", "ｆｕｌｌ"])
def test_the_width_is_what_a_terminal_makes_of_it(text: str) -> None:
    screen = pyte.Screen(80, 2)
    pyte.Stream(screen).feed(text)
    assert screen.cursor.x == width(text)


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
    assert duration(seconds_s) == told


@pytest.mark.parametrize(("usd", "told"), [(0, "$0.0000"), (1.23456, "$1.2346"), (1234.5, "$1,234.50")])
def test_few_dollars_have_more_digits(usd: float, told: str) -> None:
    assert cost(usd) == told


@pytest.mark.parametrize(
    ("count", "told"), [(999, "999"), (1000, "1.0k"), (999_949, "999.9k"), (999_950, "1.00M"), (4_560_000, "4.56M")]
)
def test_tokens_are_rounded(count: int, told: str) -> None:
    assert tokens(count) == told


@pytest.mark.parametrize(("done", "of", "told"), [(12, 50, "12 / 50 (24%)"), (999, 1000, "999 / 1000 (99%)")])
def test_a_share_is_whole_only_at_the_end(done: int, of: int, told: str) -> None:
    assert share(done, of) == told
    assert share(of, of).endswith("(100%)")


def test_an_age_is_told_from_any_way_to_write_a_moment() -> None:
    assert age("1970-01-01T00:00:00Z", 65) == age("1970-01-01T01:00:00+01:00", 65) == "1m 05s"


def test_in_a_table_all_but_the_last_column_are_padded() -> None:
    assert table([("RUN", "STATUS", "REASON"), ("a", "completed", "x"), ("long", "b", "")]) == [
        "RUN   STATUS     REASON",
        "a     completed  x",
        "long  b          ",
    ]
