"""JSON in an answer that has more in it than JSON."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.steps.output import fenced, last_count, last_object


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("no fence", []),
        ("```\na\nb\n```", ["a\nb"]),
        ("x\n  ```json\n  a\n  ```\ny\n```\nb\n```", ["b", "  a"]),
        ("```json\nnever closed", []),
        ("```inline``` and\n```\na\n```", ["a"]),
        ("```\r\na\r\n```\r\n", ["a\r"]),
    ],
)
def test_fenced_blocks_come_last_first(text: str, blocks: list[str]) -> None:
    assert fenced(text) == blocks


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("{n}", None),
        ('{"m": 1}', None),
        ('a {"n": 1} b {"n": 2} c', {"n": 2}),
        ('{"n": 1, "deep": {"m": {}}}', {"n": 1, "deep": {"m": {}}}),
        ('{"n": 1} {"m": 2}', {"n": 1}),
        ('{"n": 1} and {"n": cut', {"n": 1}),
        ('["n"] {"n": [1, {"x": 2}]}', {"n": [1, {"x": 2}]}),
        ('{"n": 1} {"n": NaN}', {"n": 1}),
        ('{"m": {"k": {}}, "n": 1}', {"m": {"k": {}}, "n": 1}),
        ('{"n": 1}\nThe key is "n".', {"n": 1}),
        ('{"n": 1} {{{ "n" }}}', {"n": 1}),
    ],
)
def test_the_last_object_with_the_key_is_found(text: str, found: dict[str, Any] | None) -> None:
    assert last_object(text, "n") == found


@pytest.mark.parametrize(
    ("text", "count"),
    [("3", 3), ("so\n 3 \n\n", 3), ("**3**.", 3), ("`0`", 0), ("3 hints", None), ("", None), ("-3", None), ("٣", None)],
)
def test_a_count_is_a_last_line_that_is_nothing_else(text: str, count: int | None) -> None:
    assert last_count(text) == count


@given(st.text(alphabet=st.sampled_from('{}[]":,n1 `\n\\')))
def test_whatever_the_text_nothing_is_raised(text: str) -> None:
    fenced(text)
    last_count(text)
    found = last_object(text, "n")
    assert found is None or "n" in found


def test_text_that_is_nothing_but_braces_is_given_up_on() -> None:
    assert last_object('{"a":' * 200_000, "n") is None
    assert last_object('{"n":' * 200_000, "n") is None
    assert last_object('{"n":1}' + '"n" {' * 10_000, "n") is None
    assert last_object("{" * 1_000_000, "n") is None
    assert fenced("```json\n" * 100_000) == []
