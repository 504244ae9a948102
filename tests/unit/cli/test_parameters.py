"""What a command line gives to a workflow."""

from __future__ import annotations

import pytest

from sidecar.cli.parameters import given_values, missing, usage
from sidecar.errors import InputError
from sidecar.model.parameters import Parameter


def parameter(name: str, kind: str = "string", **more: object) -> Parameter:
    return Parameter.model_validate({"name": name, "type": kind, **more})


FIRST, SECOND, OPTIONAL = parameter("first"), parameter("second", "integer"), parameter("third", default="x")
ALL = (FIRST, OPTIONAL, SECOND)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "5", "5"),
        ("string", "", ""),
        ("integer", "-5", -5),
        ("number", "2.5", 2.5),
        ("number", "2", 2),
        ("boolean", "true", True),
        ("array", '["a", 1]', ["a", 1]),
        ("object", '{"a": null}', {"a": None}),
    ],
)
def test_a_text_is_read_as_the_declared_type(kind: str, text: str, value: object) -> None:
    assert given_values([parameter("p", kind)], [text], []) == {"p": value}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("integer", "2.0"),
        ("integer", "true"),
        ("number", "NaN"),
        ("number", "1e999"),
        ("number", "x"),
        ("boolean", "1"),
        ("array", "{}"),
        ("array", "[1,"),
        ("object", "[" * 100_000),
    ],
)
def test_a_text_of_another_type_is_refused_with_what_would_be_right(kind: str, text: str) -> None:
    with pytest.raises(InputError, match=r"^p has to be "):
        given_values([parameter("p", kind)], [], [f"p={text}"])


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        given_values(ALL, ["a", "many", "more"], ["nothing"])
    told = str(caught.value)
    assert "too many words: 'more'" in told
    assert "second has to be a whole number" in told
    assert "-p takes KEY=VALUE, not 'nothing'" in told


def test_the_usage_has_the_required_ones_as_words_and_the_others_as_options() -> None:
    assert usage("sidecar flow run w", ALL) == "sidecar flow run w FIRST SECOND [-p third=STRING]"
    assert missing(ALL, {"first": "a"}, frozenset()) == [SECOND]


def test_words_fill_what_is_required_in_declared_order_and_not_named_and_the_last_p_counts() -> None:
    assert given_values(ALL, ["a", "2"], []) == {"first": "a", "second": 2}
    assert given_values(ALL, ["2"], ["first=a=b"]) == {"first": "a=b", "second": 2}
    assert given_values(ALL, [], ["third=b", "third=c"], ["third=a", "first=d"]) == {"third": "c", "first": "d"}
