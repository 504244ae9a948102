"""Everything that an agent says is shown once, in words."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.display.progress import doing, printed, said

_OBJECT = '{"type": "assistant"}'


def test_what_a_command_prints_is_shown_as_it_comes_and_not_again_as_activity() -> None:
    assert printed({"stream": "stdout", "lines": ["one", _OBJECT], "json": False}) == ["one", _OBJECT]
    assert printed({"stream": "stdout", "lines": [_OBJECT]}) == [_OBJECT]
    assert said({"activity": "message", "text": "one", "json": False}) == []


def test_of_a_tool_that_prints_objects_the_meaning_is_shown_and_not_the_objects() -> None:
    lines = [_OBJECT, "a warning among them"]
    assert printed({"stream": "stdout", "lines": lines, "json": True}) == ["a warning among them"]
    told = {"activity": "message", "text": "I begin.\nThen I go on.", "json": True}
    assert said(told) == ["I begin.", "Then I go on."]
    assert said({**told, "activity": "session_started"}) == []


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"activity": "tool_started", "name": "Edit"}, "Edit"),
        ({"activity": "tool_ended", "name": "Edit", "succeeded": True}, ""),
        ({"activity": "waiting", "what": "rate_limit", "until": None}, "waits: rate limit"),
        ({"activity": "waiting", "what": "rate_limit", "until": 1e300}, "waits: rate limit"),
        ({"activity": "resumed"}, ""),
        ({"activity": "denied", "name": "Bash"}, "not permitted: Bash"),
        ({"activity": "failed", "message": "overloaded"}, "overloaded"),
        ({"activity": "message", "text": "words"}, None),
        ({"activity": "usage", "tokens": {}}, None),
    ],
)
def test_an_activity_is_told_in_words(data: dict[str, Any], told: str | None) -> None:
    assert doing(data) == told


def test_a_wait_with_an_end_says_until_when() -> None:
    assert str(doing({"activity": "waiting", "what": "rate_limit", "until": 0.0})).startswith(
        "waits: rate limit, until "
    )
