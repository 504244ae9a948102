"""Arguments of a call against the tool's schema: everything that is wrong at once, and what would be right.

It knows the part of JSON Schema that our own tools use, and says it in words that help a model to call again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sidecar.model.parameters import is_of_type, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Schema = dict[str, Any]
LIMIT_BYTES = 4 * 1024 * 1024
_ARTICLES = {"string": "a string", "integer": "an integer", "array": "an array", "object": "an object"}
_LONGEST_SHOWN = 60


def problems(schema: Schema, arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with the arguments; nothing where all is well."""
    if _size(arguments, LIMIT_BYTES) > LIMIT_BYTES:
        return [f"the arguments are larger than {LIMIT_BYTES // 2**20} MiB; put the data into a file and pass its path"]
    return list(_of_object(schema, arguments, ""))


def _of_object(schema: Schema, value: Mapping[str, Any], where: str) -> Iterator[str]:
    known = schema.get("properties", {})
    required = schema.get("required", ())
    if schema.get("additionalProperties") is False:
        for name in value:
            if name not in known:
                yield unknown(_shown(name)[1:-1], known, f"argument{_inside(where)}")
    for name, inner in known.items():
        if name in value:
            yield from _of_value(inner, value[name], f"{where}.{name}" if where else name)
        elif name in required:
            yield f"{where}.{name} is required" if where else f"{name} is required: {_expected(inner)}"


def _of_value(schema: Schema, value: Any, where: str) -> Iterator[str]:
    kind = schema.get("type")
    if (kind is not None and not is_of_type(value, kind)) or ("enum" in schema and value not in schema["enum"]):
        yield f"{where} has to be {_expected(schema)}, not {_shown(value)}"
    elif kind == "string" and "pattern" in schema and not value.strip():
        yield f"{where} must not be blank"
    elif kind == "array":
        if len(value) < schema.get("minItems", 0):
            yield f"{where} must not be empty"
        for index, item in enumerate(value):
            yield from _of_value(schema.get("items", {}), item, f"{where}[{index}]")
    elif kind == "object":
        yield from _of_object(schema, value, where)


def _expected(schema: Schema) -> str:
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    kind = schema.get("type", "any value")
    return _ARTICLES.get(kind, f"a {kind}" if "type" in schema else kind)


def _inside(where: str) -> str:
    return f" in {where}" if where else ""


def _shown(value: Any) -> str:
    """The value, short: the caller knows what it sent, and a model pays for every word."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return type(value).__name__
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _size(value: Any, limit: int) -> int:
    """About how many bytes of JSON the value is; it stops counting once that is too many."""
    total = 0
    left = [value]
    while left and total <= limit:
        item = left.pop()
        if isinstance(item, str):
            total += len(item) + 2
        elif isinstance(item, dict):
            total += 2
            left.extend(item)
            left.extend(item.values())
        elif isinstance(item, list):
            total += 2
            left.extend(item)
        else:
            total += 4
    return total
