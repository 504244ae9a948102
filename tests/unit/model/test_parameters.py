"""Parameters: what a definition asks for, against what a caller gave."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sidecar.errors import InputError
from sidecar.model.parameters import Parameter, bind, is_of_type


def test_a_parameter_without_a_default_is_required_unless_it_says_otherwise() -> None:
    assert Parameter(name="a").is_required
    assert not Parameter(name="a", default="x").is_required
    assert not Parameter(name="a", required=False).is_required
    assert Parameter(name="a", required=True).is_required


def test_defaults_fill_what_is_not_given() -> None:
    parameters = [
        Parameter(name="a"),
        Parameter(name="b", type="integer", default=3),
        Parameter(name="c", required=False),
    ]
    assert bind(parameters, {"a": "x"}, "agent 'r'") == {"a": "x", "b": 3, "c": None}


def test_everything_wrong_with_what_was_given_is_said_at_once() -> None:
    parameters = [Parameter(name="topic"), Parameter(name="depth", type="integer")]
    with pytest.raises(InputError) as caught:
        bind(parameters, {"depth": "3", "topics": "x"}, "agent 'review'")
    assert str(caught.value) == (
        "agent 'review': unknown parameter 'topics'; did you mean 'topic'?; parameter 'topic' is required; "
        "parameter 'depth' has to be of type integer"
    )


@pytest.mark.parametrize(
    ("value", "name", "fits"),
    [
        ("x", "string", True),
        (1, "integer", True),
        (1, "number", True),
        (1.5, "number", True),
        (1.5, "integer", False),
        (True, "integer", False),
        (True, "number", False),
        (True, "boolean", True),
        (1, "boolean", False),
        ([], "array", True),
        ({}, "object", True),
        (None, "string", False),
    ],
)
def test_a_value_fits_its_type_and_a_truth_value_is_no_number(value: object, name: str, fits: bool) -> None:
    assert is_of_type(value, name) is fits


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a b"},
        {"name": ""},
        {"name": "a\n"},
        {"name": "a", "type": "text"},
        {"name": "a", "type": "integer", "default": "3"},
    ],
)
def test_a_declaration_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Parameter.model_validate(wrong)
