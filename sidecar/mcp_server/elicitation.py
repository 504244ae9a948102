"""A run's question as a form that clients show, and what a person put into it as the text that a run takes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp.types import ClientCapabilities, ElicitRequest, ElicitRequestFormParams, ElicitResult

if TYPE_CHECKING:
    from sidecar.mcp_server.port import Json

FIELD = "answer"
_FORM_TYPES = ("string", "number", "integer", "boolean")


def offered(capabilities: ClientCapabilities | None) -> bool:
    """Whether the client can show a form. Without a word about kinds it can: forms came first."""
    elicitation = capabilities.elicitation if capabilities is not None else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def form(question: Json, problem: str | None) -> ElicitRequest:
    """The question; `problem`: what was wrong with the last answer."""
    prompt = str(question["prompt"])
    message = f"{prompt}\n\n{problem}" if problem else prompt
    schema = {"type": "object", "properties": {FIELD: _field(question)}, "required": [FIELD]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def text(result: ElicitResult) -> str | None:
    """The answer as it would have been typed; None where the person gave none."""
    if result.action != "accept":
        return None
    value = (result.content or {}).get(FIELD)
    return value if isinstance(value, str) or value is None else json.dumps(value)


def _field(question: Json) -> Json:
    kind = question.get("type") if question.get("type") in _FORM_TYPES else "string"
    choices, default = question.get("choices"), question.get("default")
    field: Json = {"type": kind, "title": "Answer"}
    if choices is not None:
        field = {"type": "string", "title": "Answer", "enum": [_typed(choice) for choice in choices]}
    elif kind != question.get("type", "string"):
        field["description"] = f"As JSON: an {question['type']}."
    if default is not None:
        field["default"] = _typed(default) if field["type"] == "string" else default
    return field


def _typed(value: Any) -> str:
    """A value as a person types it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
