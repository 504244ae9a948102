"""Prompt templates: names of parameters, filled in one pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.model.parameters import render_template, sole_template_name, template_names


def test_names_are_found_once_each_in_order() -> None:
    assert template_names("{{ b }} and {{a}} and {{ b }}") == ["b", "a"]


@pytest.mark.parametrize("text", ["{{ a.b }}", "{{ 1 + 1 }}", "{{ }}", "{{ a b }}"])
def test_anything_but_a_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a parameter"):
        template_names(text)


def test_values_are_put_in_and_objects_as_json() -> None:
    values = {"who": "Ada", "what": {"n": [1, True]}, "nothing": None}
    assert render_template("{{ who }}: {{ what }}{{ nothing }}", values) == 'Ada: {"n": [1, true]}'


@given(st.text())
def test_a_value_is_never_read_as_a_template(value: str) -> None:
    assert render_template("<{{ a }}|{{ b }}>", {"a": value, "b": "{{ a }}"}) == f"<{value}|{{{{ a }}}}>"


def test_a_template_of_one_expression_stands_for_the_value_itself() -> None:
    assert sole_template_name(" {{ command }} ") == "command"
    assert sole_template_name("{{ command }} x") is None
    assert sole_template_name("make") is None
