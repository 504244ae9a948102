from __future__ import annotations

from typing import Any

import pytest
from mcp.types import ClientCapabilities, ElicitResult
from mcp.types.methods import parse_server_request

from sidecar.mcp_server import calls


@pytest.mark.parametrize(
    ("declared", "offered"),
    [
        (None, False),
        ({}, False),
        ({"elicitation": {}}, True),
        ({"elicitation": {"form": {}}}, True),
        ({"elicitation": {"url": {}}}, False),
        ({"elicitation": {"url": {}, "form": {}}}, True),
    ],
)
def test_a_form_is_shown_to_clients_that_can(declared: dict[str, Any] | None, offered: bool) -> None:
    capabilities = None if declared is None else ClientCapabilities.model_validate(declared)
    assert calls.can_ask(capabilities) is offered


@pytest.mark.parametrize(
    ("question", "field"),
    [
        ({"type": "string"}, {"type": "string"}),
        ({"type": "boolean", "default": False}, {"type": "boolean", "default": False}),
        ({"type": "number", "choices": [1, 2.5]}, {"type": "string", "enum": ["1", "2.5"]}),
        ({"type": "array", "default": [1]}, {"type": "string", "description": "As JSON: an array.", "default": "[1]"}),
        ({"type": "integer", "choices": [1, 2], "default": 2}, {"type": "string", "enum": ["1", "2"], "default": "2"}),
    ],
)
def test_a_question_becomes_a_form_that_the_protocol_allows(question: dict[str, Any], field: dict[str, Any]) -> None:
    request = calls.question_form({"prompt": "What?", **question}, None)
    params = request.params.model_dump(by_alias=True, exclude_none=True)
    assert params["requestedSchema"]["properties"]["answer"] == {"title": "Answer", **field}
    assert params["message"] == "What?"
    parse_server_request("elicitation/create", "2025-11-25", params)


def test_a_bad_answer_is_said_when_the_question_comes_again() -> None:
    params = calls.question_form({"prompt": "How many?", "type": "integer"}, "Five at most").params
    assert params.message == "How many?\n\nFive at most"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ElicitResult(action="accept", content={"answer": "yes"}), "yes"),
        (ElicitResult(action="accept", content={"answer": True}), "true"),
        (ElicitResult(action="accept", content={"answer": 3}), "3"),
        (ElicitResult(action="accept", content={"answer": 2.5}), "2.5"),
        (ElicitResult(action="accept", content={}), None),
        (ElicitResult(action="accept"), None),
        (ElicitResult(action="decline", content={"answer": "yes"}), None),
        (ElicitResult(action="cancel"), None),
    ],
)
def test_an_answer_is_the_text_that_a_person_would_have_typed(result: ElicitResult, text: str | None) -> None:
    assert calls.answer_text(result) == text
