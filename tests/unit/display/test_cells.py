"""Text from anywhere, made fit for a terminal."""

from __future__ import annotations

import unicodedata

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.display import cells


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
    assert cells.clean(text) == shown


def test_a_line_of_a_mebibyte_is_cut_before_anything_else() -> None:
    assert len(cells.clean("\033]0;" + "x" * (1 << 20))) == 0
    assert len(cells.clean("é" * (1 << 20))) < 4096


@given(st.text(st.characters() | st.sampled_from("\033[]\a\r\n\t;?0m\x9b\\")))
def test_whatever_it_was_a_clean_text_has_no_control_characters_and_is_clean(text: str) -> None:
    cleaned = cells.clean(text)
    assert not [c for c in cleaned if unicodedata.category(c) in ("Cc", "Cf", "Cs")]
    assert cells.clean(cleaned) == cleaned


@given(st.text(), st.integers(0, 30))
def test_what_is_cut_fits(text: str, width: int) -> None:
    cleaned = cells.clean(text)
    shown = cells.cut(cleaned, width)
    assert cells.width(shown) <= width
    assert shown == cleaned or shown.endswith("…") or width == 0


@pytest.mark.parametrize("text", ["plain", "日本語", "e\u0301tude", "👍 fine", "ｆｕｌｌ"])
def test_the_width_is_what_a_terminal_makes_of_it(text: str) -> None:
    screen = pyte.Screen(80, 2)
    pyte.Stream(screen).feed(text)
    assert screen.cursor.x == cells.width(text)


def test_the_longest_wording_that_fits_is_taken() -> None:
    assert cells.first_fitting(10, "much too long", "long enough", "short") == "short"
    assert cells.first_fitting(3, "much too long", "short") == "sh…"
