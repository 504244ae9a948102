"""ULIDs: well formed, unique, in the order of time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.model import ulid

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def milliseconds(text: str) -> int:
    value = 0
    for character in text[:10]:
        value = value * 32 + ALPHABET.index(character)
    return value


def test_what_new_writes_is_valid_and_never_the_same() -> None:
    made = [ulid.new() for _ in range(10_000)]
    assert all(map(ulid.is_valid, made))
    assert len(set(made)) == len(made)
    assert len({text[10:] for text in made}) == len(made)


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**48 - 1))
@settings(deadline=None, database=None)
def test_ulids_sort_as_the_moments_they_were_made_at(first_ms: int, second_ms: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: first_ms * 1_000_000)
        first = ulid.new()
        patch.setattr(time, "time_ns", lambda: second_ms * 1_000_000)
        second = ulid.new()
    assert milliseconds(first) == first_ms
    if first_ms != second_ms:
        assert (first < second) == (first_ms < second_ms)


@pytest.mark.parametrize(
    "text",
    ["", "01", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ", "01JCXYZ", "0" * 25, "0" * 27, "0" * 25 + "I",
     "0" * 25 + "l", "0" * 25 + "\n", "../../../../../../../../..", "0" * 25 + "/", "0" * 25 + "\0", "０" * 26],
)  # fmt: skip
def test_anything_else_is_not_valid(text: str) -> None:
    assert not ulid.is_valid(text)


@given(st.text(max_size=30))
@settings(deadline=None, database=None)
def test_arbitrary_text_is_valid_only_if_it_could_have_been_made(text: str) -> None:
    assert ulid.is_valid(text) == bool(re.fullmatch(rf"[0-7][{ALPHABET}]{{25}}", text))
