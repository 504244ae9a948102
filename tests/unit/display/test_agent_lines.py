"""Everything that an agent says is shown once, in words."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.display.progress import activity_text, message_lines, printed_lines

_OBJECT = '{"type": "assistant"}'


def test_what_a_command_prints_is_shown_as_it_comes_and_not_again_as_activity() -> None:
    assert printed_lines({"stream": "stdout", "lines": ["one", _OBJECT], "json": False}) == ["one", _OBJECT]
    assert printed_lines({"stream": "stdout", "lines": [_OBJECT]}) == [_OBJECT]
    assert message_lines({"activity": "message", "text": "one", "json": False}) == []


def test_of_a_tool_that_prints_objects_the_meaning_is_shown_and_not_the_objects() -> None:
    lines = [_OBJECT, "a warning among them"]
    assert printed_lines({"stream": "stdout", "lines": lines, "json": True}) == ["a warning among them"]
    told = {"activity": "message", "text": "I begin.\nThen I go on.", "json": True}
    assert message_lines(told) == ["I begin.", "Then I go on."]
    assert message_lines({**told, "activity": "session_started"}) == []


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
    assert activity_text(data) == told


def test_a_wait_with_an_end_says_until_when() -> None:
    assert str(activity_text({"activity": "waiting", "what": "rate_limit", "until": 0.0})).startswith(
        "waits: rate limit, until "
    )
