"""JSON Schemas of arguments and results, as short as they can be: agents pay for them in every conversation."""

from __future__ import annotations

from typing import Any, get_args

from sidecar.model.events import Status

Schema = dict[str, Any]

_NOT_BLANK = r"\S"
STATUSES = list(get_args(Status))


def text(description: str = "", *, blank: bool = True, choices: list[str] | None = None) -> Schema:
    """A string; not `blank`: with something in it."""
    return {
        "type": "string",
        **({"description": description} if description else {}),
        **({} if blank else {"pattern": _NOT_BLANK}),
        **({"enum": choices} if choices else {}),
    }


def flag(description: str) -> Schema:
    """A boolean that is false unless it is given."""
    return {"type": "boolean", "default": False, "description": description}


def record(description: str = "") -> Schema:
    """An object whose keys are the caller's own affair."""
    return {"type": "object", **({"description": description} if description else {})}


def anything(description: str) -> Schema:
    """Any JSON value."""
    return {"description": description}


def many(items: Schema, description: str = "", *, empty: bool = True) -> Schema:
    """An array."""
    return {
        "type": "array",
        "items": items,
        **({"description": description} if description else {}),
        **({} if empty else {"minItems": 1}),
    }


def takes(required: dict[str, Schema] | None = None, optional: dict[str, Schema] | None = None) -> Schema:
    """The arguments of a tool: these and no others."""
    return {
        "type": "object",
        "properties": {**(required or {}), **(optional or {})},
        **({"required": list(required)} if required else {}),
        "additionalProperties": False,
    }


def gives(required: dict[str, Schema] | None = None, optional: dict[str, Schema] | None = None) -> Schema:
    """The result of a tool: at least these. More is allowed, so that a newer server does not break an older client."""
    return {
        "type": "object",
        **({"properties": {**(required or {}), **(optional or {})}} if required or optional else {}),
        **({"required": list(required)} if required else {}),
    }


def or_null(schema: Schema) -> Schema:
    """What may also be null."""
    return {**schema, "type": [schema["type"], "null"]}


OBJECT: Schema = {"type": "object"}
STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
STRINGS: Schema = {"type": "array", "items": STRING}
OBJECTS: Schema = {"type": "array", "items": OBJECT}
RUN_ID = text("Id of the run.", blank=False)
