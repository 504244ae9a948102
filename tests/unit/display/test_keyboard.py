"""What counts as a press of `s` in the bytes that a terminal sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.display.person import Keys

_SEQUENCES = {
    "arrow": b"\x1b[A",
    "arrow in application mode": b"\x1bOA",
    "arrow with Alt, as rxvt sends it": b"\x1b\x1b[A",
    "function key": b"\x1b[15;5~",
    "function key of the Linux console": b"\x1b[[s",
    "3 of the numeric keypad": b"\x1bOs",
    "keypad with a modifier": b"\x1bO5s",
    "control sequence that ends in s": b"\x1b[1;2s",
    "control sequence with an intermediate byte": b"\x1b[?1$s",
    "mouse click": b"\x1b[Msss",
    "Alt-s": b"\x1bs",
    "Alt-S": b"\x1bS",
    "Escape twice, then Alt-s": b"\x1b\x1bs",
    "answer that BEL ends": b"\x1b]11;sss\x07",
    "answer that ST ends": b"\x1bP>|tmux sss\x1b\\",
    "answer that is cancelled": b"\x1b_sss\x18",
    "answer that another sequence cuts off": b"\x1b]sss\x1b[1;2s",
    "control sequence that another one cuts off": b"\x1b[1;\x1b[2s",
}


@pytest.mark.parametrize("sequence", _SEQUENCES.values(), ids=_SEQUENCES.keys())
def test_an_escape_sequence_is_no_press_and_hides_none_that_follows(sequence: bytes) -> None:
    keys = Keys()
    assert keys.feed(sequence) == 0
    assert not keys.unfinished
    assert keys.feed(b"s") == 1


def test_an_escape_that_stays_alone_is_a_key_of_its_own() -> None:
    keys = Keys()
    assert [keys.feed(b"\x1b"), keys.unfinished] == [0, True]
    keys.settle()
    assert [keys.unfinished, keys.feed(b"s")] == [False, 1]


@given(st.text(st.characters(exclude_characters="\x1b", codec="utf-8")))
def test_without_escapes_the_presses_are_the_letters(text: str) -> None:
    assert Keys().feed(text.encode()) == text.count("s") + text.count("S")


@given(st.lists(st.sampled_from([*_SEQUENCES.values(), b"s", b"S", b"x", b"\r", "ş".encode()])), st.data())
def test_the_presses_are_the_same_however_the_input_is_cut(pieces: list[bytes], data: st.DataObject) -> None:
    presses = sum(piece in {b"s", b"S"} for piece in pieces)
    typed = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(typed)))))
    keys = Keys()
    counted = sum(keys.feed(typed[start:end]) for start, end in zip([0, *cuts], [*cuts, len(typed)], strict=True))
    assert counted == presses


@given(st.binary())
def test_arbitrary_bytes_never_raise_nor_count_more_than_their_letters(data: bytes) -> None:
    keys = Keys()
    assert 0 <= keys.feed(data) <= data.count(b"s") + data.count(b"S")
    keys.settle()
    assert keys.feed(b"s") == 1
