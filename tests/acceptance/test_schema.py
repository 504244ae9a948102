"""`sidecar schema` as a person has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.kit import call

WORKFLOWS = Path(__file__).parents[2] / "workflows"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    done = call("schema")
    assert (done.returncode, done.stderr) == (0, "")
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def test_it_is_a_json_schema_of_2020_12(schema: dict[str, Any]) -> None:
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


def test_every_key_has_a_description(schema: dict[str, Any]) -> None:
    nameless = [
        f"{name}.{key}"
        for name, definition in schema["$defs"].items()
        for key, entry in definition.get("properties", {}).items()
        if key != "type" and not entry.get("description") and "$ref" not in entry
    ]
    assert nameless == []
    assert all(definition.get("description") for name, definition in schema["$defs"].items() if name not in _PLAIN)


_PLAIN = ("JsonValue", "Step")


def test_an_editor_is_told_what_is_wrong_with_the_step_that_was_meant(schema: dict[str, Any]) -> None:
    value = {"steps": [{"type": "while", "condition": True, "body": [{"type": "shell_command", "comand": "x"}]}]}
    found = {(error.json_path, error.validator) for error in Draft202012Validator(schema).iter_errors(value)}
    assert found == {("$.steps[0].body[0]", "additionalProperties"), ("$.steps[0].body[0]", "required")}


def test_a_built_in_workflow_is_valid_by_what_is_printed(schema: dict[str, Any]) -> None:
    Draft202012Validator(schema).validate(yaml.safe_load((WORKFLOWS / "iterate.yaml").read_text()))


def test_help_tells_how_an_editor_uses_it_and_an_unknown_word_is_bad_usage() -> None:
    assert "yaml-language-server" in call("schema", "--help").stdout
    assert call("schema", "--nonsense").returncode == 2
