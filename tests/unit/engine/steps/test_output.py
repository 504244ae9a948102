"""From the text of an output to the value that it means."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.steps.output import formatted, nothing
from sidecar.errors import StepFailed
from sidecar.model.steps import OutputFormat


def problem(text: str, output_format: OutputFormat) -> str:
    with pytest.raises(StepFailed) as caught:
        formatted(text, output_format)
    assert caught.value.error["kind"] == "output"
    return str(caught.value)


@pytest.mark.parametrize(
    ("said", "meant"),
    [("a\n", "a"), ("a", "a"), ("a\n\n", "a\n"), ("", ""), ("\n", ""), (" a \r\n", " a "), ("a\nb\n", "a\nb")],
)
def test_text_loses_one_line_break_at_its_end_and_nothing_else(said: str, meant: str) -> None:
    assert formatted(said, "text") == meant


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("", []),
        ("a\nb\n", ["a", "b"]),
        ("a\nb", ["a", "b"]),
        ("a\n\nb\n", ["a", "", "b"]),
        ("\n", [""]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("one\x0cstill one\u2028still\n", ["one\x0cstill one\u2028still"]),
    ],
)
def test_lines_end_at_line_breaks_only_and_an_empty_rest_is_no_line(said: str, meant: list[str]) -> None:
    assert formatted(said, "lines") == meant


@given(st.lists(st.text(st.characters(exclude_characters="\r\n"))))
def test_lines_that_were_printed_come_back_one_by_one(lines: list[str]) -> None:
    assert formatted("".join(f"{line}\n" for line in lines), "lines") == lines


def test_json_is_read_with_blanks_or_a_byte_order_mark_around_it() -> None:
    assert formatted('\ufeff\n {"a": [1, 2.5, null, true, "ü"]} \n', "json") == {"a": [1, 2.5, None, True, "ü"]}


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_any_json_comes_back_as_it_was(value: object) -> None:
    assert json.dumps(formatted(json.dumps(value), "json")) == json.dumps(value)  # to Python, 1 is 1.0 and True


def test_broken_json_is_an_error_that_says_where() -> None:
    message = problem('{"a": 1,\n "b": oops}\n', "json")
    assert "line 2, column 7" in message
    assert "oops}" in message


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("1\n2\n", "line 2, column 1"),
        ("[NaN]", "NaN"),
        ("-Infinity", "-Infinity"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "usable JSON"),
    ],
)
def test_what_json_does_not_know_is_refused_with_its_reason(said: str, told: str) -> None:
    assert told in problem(said, "json")


@pytest.mark.parametrize(
    ("line", "pair"),
    [
        ("key=value", ("key", "value")),
        ("key: value", ("key", "value")),
        ("  key =  a value  ", ("key", "a value")),
        ("url=http://host/?q=1", ("url", "http://host/?q=1")),
        ("Location: http://host/?q=1", ("Location", "http://host/?q=1")),
        ("time=12:30: sharp", ("time", "12:30: sharp")),
        ("a:b=c", ("a:b", "c")),
        ("empty=", ("empty", "")),
        ("empty:", ("empty", "")),
        ('NAME="Some OS"', ("NAME", "Some OS")),
        ("NAME='x'", ("NAME", "x")),
        ("""NAME="a" or "b\"""", ("NAME", '"a" or "b"')),
        ('NAME="', ("NAME", '"')),
        ("two words: yes", ("two words", "yes")),
        ("key=value\r", ("key", "value")),
    ],
)
def test_a_line_of_key_and_value_is_parted_at_the_first_sign_that_parts(line: str, pair: tuple[str, str]) -> None:
    assert formatted(line + "\n", "key_value") == dict([pair])


def test_among_pairs_other_lines_are_passed_over_and_the_last_of_two_counts() -> None:
    said = "Settings of the host\n\n# a=comment\na=1\nhttp://elsewhere\n=nameless\na=2\nb: 3\n"
    assert formatted(said, "key_value") == {"a": "2", "b": "3"}


def test_an_output_without_any_pair_is_an_error_and_no_output_is_an_empty_object() -> None:
    assert "'fatal http://x'" in problem("fatal http://x\n", "key_value")
    assert formatted("\n# nothing to say\n", "key_value") == {}


def test_an_output_that_went_elsewhere_is_nothing_in_every_format() -> None:
    assert [nothing(kind) for kind in ("text", "lines", "key_value", "json")] == ["", [], {}, None]
