from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.mcp_server.tools import TOOLS, argument_problems

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A tool with arguments that are right more often than chance would have it."""
    tool = draw(st.sampled_from(sorted(TOOLS)))
    properties = TOOLS[tool].input["properties"]
    names = draw(st.lists(st.sampled_from([*properties, "extra"]), unique=True))
    required = [name for name in TOOLS[tool].input.get("required", ()) if draw(st.integers(0, 9))]
    return tool, {name: draw(_value(properties.get(name, {}))) for name in {*names, *required}}


def _value(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    fitting: dict[str, st.SearchStrategy[Any]] = {
        "string": st.sampled_from(schema["enum"]) if "enum" in schema else st.text(max_size=5),
        "boolean": st.booleans(),
        "object": _object(schema),
        "array": st.lists(_value(schema.get("items", {})), max_size=3)
        if schema.get("type") == "array"
        else st.nothing(),
    }
    right = fitting.get(schema.get("type", ""), JSON)
    return st.one_of(right, right, right, JSON)


def _object(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    known = {name: _value(inner) for name, inner in schema.get("properties", {}).items()}
    free = st.dictionaries(st.text(max_size=5), JSON, max_size=2)
    return st.fixed_dictionaries(known) | free if known else free


@given(calls())
def test_arguments_are_right_exactly_when_the_listed_schema_says_so(call: tuple[str, dict[str, Any]]) -> None:
    tool, given_arguments = call
    valid = jsonschema.Draft202012Validator(TOOLS[tool].input).is_valid(given_arguments)
    found = argument_problems(TOOLS[tool].input, given_arguments)
    assert (found == []) is valid, found


def test_everything_that_is_wrong_is_told_at_once() -> None:
    found = argument_problems(TOOLS["stage_gate"].input, {"stage": 1, "kind": "x", "ouput": ""})
    assert found == [
        "unknown argument 'ouput'; did you mean 'output'?",
        "stage has to be a string, not 1",
        "output is required: a string",
        'kind has to be one of stage, plan, not "x"',
    ]


def test_a_long_value_is_not_repeated_to_who_sent_it() -> None:
    (found,) = argument_problems(TOOLS["abort"].input, {"reason": ["x" * 1000]})
    assert len(found) < 150


@pytest.mark.parametrize("value", ["x" * 5_000_000, ["x"] * 2_000_000, {f"{n}": "x" * 100 for n in range(60_000)}])
def test_too_much_is_refused_whatever_its_shape(value: object) -> None:
    schema = TOOLS["workflow_resume"].input
    (found,) = argument_problems(schema, {"workflow_id": "r", "answer": value})
    assert "larger than 4 MiB" in found


def test_much_but_not_too_much_is_taken() -> None:
    schema = TOOLS["workflow_resume"].input
    assert argument_problems(schema, {"workflow_id": "r", "answer": "x" * 4_000_000}) == []
