"""What an agent reports, as the result that sidecar would have had itself; and what it is told where it is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from sidecar.engine.evaluation import Texts, View
from sidecar.engine.handout import StepIds, hand_out, read_result
from sidecar.errors import InputError
from sidecar.model.steps import Step
from sidecar.state.script import Script
from sidecar.state.world import World

_STEP: TypeAdapter[Any] = TypeAdapter(Step)


@pytest.fixture(scope="module")
def view() -> Iterator[View]:
    with Script(worker=False) as script:
        yield View(Texts(script), World(script), {"limit": 9})


def read(view: View, step: dict[str, Any], reported: object) -> Any:
    """The result of a step that was really handed out."""
    parsed = _STEP.validate_python(step)
    handed = hand_out(parsed, view, StepIds("r", "k", 1), lambda name, parameters: "")
    return read_result(parsed, reported, definition=handed["definition"], view=view)


def agent(output_format: str) -> dict[str, Any]:
    return {"type": "agent", "prompt": "p", "output_format": output_format}


@pytest.mark.parametrize(
    ("output_format", "reported", "result"),
    [
        ("text", "two\nlines\n", "two\nlines"),
        ("text", 7, "7"),
        ("text", {"a": [1]}, '{"a": [1]}'),
        ("text", None, ""),
        ("lines", "a\nb\n", ["a", "b"]),
        ("lines", ["a", 2, ""], ["a", "2", ""]),
        ("lines", None, []),
        ("json", '{"a": 1}', {"a": 1}),
        ("json", {"a": 1}, {"a": 1}),
        ("json", [1, None], [1, None]),
        ("json", 'Here it is:\n```json\n{"a": 2}\n```\nDone.', {"a": 2}),
        ("json", "4", 4),
        ("json", None, None),
        ("key_value", "a=1\nb: two", {"a": "1", "b": "two"}),
        ("key_value", {"a": 1, "b": "two"}, {"a": "1", "b": "two"}),
    ],
)
def test_a_result_is_read_in_the_format_of_its_step(
    view: View, output_format: str, reported: object, result: object
) -> None:
    assert read(view, agent(output_format), reported) == result
    command = {"type": "agent_shell_command", "command": "true", "output_format": output_format}
    assert read(view, command, reported) == result


@pytest.mark.parametrize(
    ("output_format", "reported", "words"),
    [
        ("json", "it went well", "does not fit the format json.*not JSON"),
        ("json", "```\nnothing\n```", "does not fit the format json"),
        ("lines", {"a": 1}, "a list of lines"),
        ("key_value", ["a=1"], "an object"),
        ("key_value", "it went well", "does not fit the format key_value"),
    ],
)
def test_a_result_in_another_form_is_refused_with_what_would_be_right(
    view: View, output_format: str, reported: object, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        read(view, agent(output_format), reported)


HINTS = {"type": "apply_hints", "file": "f", "hints": []}


@pytest.mark.parametrize(
    ("reported", "result"),
    [
        (3, {"applied_count": 3}),
        (3.0, {"applied_count": 3}),
        (0, {"applied_count": 0}),
        ("4", {"applied_count": 4}),
        ({"applied_count": 2}, {"applied_count": 2}),
        ({"applied_count": "2", "skipped": ["x"]}, {"applied_count": 2, "skipped": ["x"]}),
        ('I did it: {"applied_count": 5}', {"applied_count": 5}),
    ],
)
def test_hints_are_counted(view: View, reported: object, result: object) -> None:
    assert read(view, HINTS, reported) == result


@pytest.mark.parametrize(
    "reported",
    [None, True, -1, 2.5, float("inf"), "all of them", {}, [3], {"applied_count": None}, {"applied_count": -1}],
)
def test_what_is_no_count_of_hints_is_refused(view: View, reported: object) -> None:
    with pytest.raises(InputError, match='"applied_count": 3'):
        read(view, HINTS, reported)


@pytest.mark.parametrize(
    ("reported", "result"),
    [({"a": 1}, {"a": 1}), ('{"a": 1}', {"a": 1}), ("plain text", "plain text"), (None, None), ([1], [1])],
)
def test_what_a_tool_returned_is_taken_as_sidecar_would_take_it(view: View, reported: object, result: object) -> None:
    assert read(view, {"type": "mcp_call", "mcp": {"method": "m"}}, reported) == result


QUESTION = {
    "type": "user_input",
    "prompt": "How many?",
    "answer_type": "integer",
    "default": "{{ limit }}",
    "validation": {"pattern": "^[0-9]$", "error_message": "One digit, please"},
}


def test_an_answer_has_to_be_one_that_the_question_takes(view: View) -> None:
    assert read(view, QUESTION, "7") == 7
    assert read(view, QUESTION, 7) == 7
    assert read(view, QUESTION, "") == 9
    with pytest.raises(InputError, match=r"^One digit, please$"):
        read(view, QUESTION, 77)
    with pytest.raises(InputError, match="whole number"):
        read(view, QUESTION, "many")
