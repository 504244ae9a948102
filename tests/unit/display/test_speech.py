"""Everything that an agent says is shown once, in words."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.display.speech import Speech, doing

_OBJECT = '{"type": "assistant"}'


def said(text: str) -> dict[str, Any]:
    return {"activity": "said", "text": text}


def test_what_a_command_prints_is_shown_as_it_comes_and_not_again_as_activity() -> None:
    speech = Speech()
    assert speech.printed("a", "stdout", ["one", "two"]) == ["one", "two"]
    assert speech.acted("a", said("one")) == []


def test_of_a_tool_that_prints_objects_the_meaning_is_shown_and_not_the_objects() -> None:
    speech = Speech()
    assert speech.printed("a", "stdout", [_OBJECT]) == []
    assert speech.acted("a", {"activity": "session_started"}) == []
    assert speech.printed("a", "stdout", [_OBJECT, "a warning among them"]) == []
    assert speech.acted("a", said("I begin.\nThen I go on.")) == ["I begin.", "Then I go on."]
    assert speech.printed("a", "stderr", ["what went wrong"]) == ["what went wrong"]


def test_objects_of_a_command_are_shown_a_moment_later() -> None:
    speech = Speech()
    assert speech.printed("a", "stdout", [_OBJECT]) == []
    assert speech.printed("a", "stdout", [_OBJECT]) == [_OBJECT, _OBJECT]
    assert speech.printed("b", "stdout", [_OBJECT]) == []
    assert speech.ended("b") == [_OBJECT]


def test_each_agent_speaks_for_itself() -> None:
    speech = Speech()
    speech.printed("a", "stdout", [_OBJECT])
    speech.acted("a", said("hello"))
    assert speech.printed("b", "stdout", ["plain"]) == ["plain"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"activity": "tool_began", "name": "Edit"}, "Edit"),
        ({"activity": "tool_ended", "name": "Edit", "succeeded": True}, ""),
        ({"activity": "waiting", "what": "rate_limit", "until": None}, "waits: rate limit"),
        ({"activity": "waiting", "what": "rate_limit", "until": 1e300}, "waits: rate limit"),
        ({"activity": "resumed"}, ""),
        ({"activity": "denied", "name": "Bash"}, "not permitted: Bash"),
        ({"activity": "failed", "message": "overloaded"}, "overloaded"),
        ({"activity": "said", "text": "words"}, None),
        ({"activity": "used", "tokens": {}}, None),
    ],
)
def test_an_activity_is_told_in_words(data: dict[str, Any], told: str | None) -> None:
    assert doing(data) == told


def test_a_wait_with_an_end_says_until_when() -> None:
    assert str(doing({"activity": "waiting", "what": "rate_limit", "until": 0.0})).startswith(
        "waits: rate limit, until "
    )
