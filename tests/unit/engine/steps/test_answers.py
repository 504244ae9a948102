"""Which answers a question takes, and what they are then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.engine.evaluation import Texts, View
from sidecar.engine.steps.user_input import accepted, matching
from sidecar.errors import ExpressionError
from sidecar.state.script import Script
from sidecar.state.world import World


@pytest.fixture
def view() -> Iterator[View]:
    with Script(worker=False) as script:
        yield View(Texts(script), World(script), {})


def take(view: View, answer: object, kind: str = "string", **more: Any) -> Any:
    return accepted({"step": "ask", "prompt": "?", "type": kind, **more}, answer, matching(view))


def refusal(view: View, answer: object, kind: str = "string", **more: Any) -> str:
    with pytest.raises(ValueError, match=r"\w") as caught:
        take(view, answer, kind, **more)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "typed", "value"),
    [
        ("string", " as it is ", " as it is "),
        ("string", "", ""),
        ("string", "12", "12"),
        ("number", " 2.5 ", 2.5),
        ("number", "-3", -3),
        ("number", "1e3", 1000.0),
        ("integer", "+7", 7),
        ("integer", "3.0", 3),
        ("integer", 3.0, 3),
        ("boolean", "Yes", True),
        ("boolean", "n", False),
        ("boolean", "TRUE", True),
        ("boolean", "false", False),
        ("boolean", False, False),
        ("array", "[1, [2]]", [1, [2]]),
        ("array", ["a"], ["a"]),
        ("object", '{"a": null}', {"a": None}),
        ("object", {"a": 1}, {"a": 1}),
    ],
)
def test_a_text_is_read_as_the_type_and_a_value_of_the_type_is_taken(
    view: View, kind: str, typed: object, value: object
) -> None:
    found = take(view, typed, kind)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "answer", "right"),
    [
        ("string", 3, "text"),
        ("string", None, "text"),
        ("number", "three", "number"),
        ("number", "", "number"),
        ("number", "nan", "number"),
        ("number", "1e999", "number"),
        ("number", "1_000", "number"),
        ("number", "٣", "number"),
        ("number", True, "number"),
        ("number", float("inf"), "number"),
        ("integer", "2.5", "whole number"),
        ("integer", "9007199254740993", "9007199254740991 at most"),
        ("integer", "9" * 5000, "whole number"),
        ("boolean", "maybe", "yes or no"),
        ("boolean", 1, "yes or no"),
        ("array", '{"a": 1}', "list"),
        ("array", "a, b", "list"),
        ("array", "[" * 100_000, "list"),
        ("object", "[1]", "object"),
    ],
)
def test_an_answer_of_another_type_is_refused_with_what_is_right(
    view: View, kind: str, answer: object, right: str
) -> None:
    assert right in refusal(view, answer, kind)


@pytest.mark.parametrize("answer", ["", "  ", None])
def test_an_empty_answer_is_the_default_where_there_is_one(view: View, answer: object) -> None:
    assert take(view, answer, "integer", default=5) == 5
    assert take(view, "6", "integer", default=5) == 6
    assert take(view, answer, "boolean", default=False) is False


def test_a_default_that_the_question_itself_would_refuse_is_refused(view: View) -> None:
    assert "one of a, b" in refusal(view, "", choices=["a", "b"], default="c")
    assert "whole number" in refusal(view, "", "integer", default="many")


def test_only_choices_are_taken_and_they_keep_their_type(view: View) -> None:
    assert take(view, " HEAD ", choices=["HEAD", "branch"]) == "HEAD"
    assert take(view, "2", choices=[1, 2]) == 2  # the author wrote numbers and left the type a string
    assert take(view, 2.0, "number", choices=[1, 2]) == 2
    assert take(view, "yes", "boolean", choices=[True]) is True
    assert take(view, "1", choices=[1, "1"]) == "1"
    assert refusal(view, "head", choices=["HEAD", "branch"]) == "the answer has to be one of HEAD, branch"
    assert "one of 1" in refusal(view, True, "integer", choices=[1])


def test_a_pattern_is_javascripts_and_its_message_is_told(view: View) -> None:
    pattern = r"^(branch .+|commit (?<id>[a-f0-9]{7,40}))$"
    assert take(view, "commit deadbeef", pattern=pattern) == "commit deadbeef"
    assert refusal(view, "commit x", pattern=pattern, error_message="Say which") == "Say which"
    assert refusal(view, "commit x", pattern=pattern, error_message="") == f"the answer has to match {pattern}"
    assert take(view, "42", "integer", pattern="^4") == 42
    assert refusal(view, "24", "integer", pattern="^4") == "the answer has to match ^4"


def test_neither_answer_nor_pattern_becomes_code(view: View) -> None:
    hostile = "\"); throw new Error('run'); (\"`${1}`\u2028'"
    assert take(view, hostile, pattern=r"^\"\); throw") == hostile


def test_an_answer_that_makes_the_pattern_backtrack_is_refused_and_a_shorter_one_taken(view: View) -> None:
    pattern = "^(a+)+$"
    assert "in time" in refusal(view, "a" * 40 + "!", pattern=pattern)
    assert take(view, "aaa", pattern=pattern) == "aaa"


def test_a_pattern_that_is_none_is_the_authors_error_and_not_the_persons(view: View) -> None:
    with pytest.raises(ExpressionError):
        take(view, "x", pattern="(")
