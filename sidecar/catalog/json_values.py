"""What YAML can say and JSON cannot: state is journalled, and given to JavaScript, as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.catalog.yaml_format import Document

    Location = tuple[int | str, ...]


def replaced(value: Any) -> Any:
    """The value with nothing in the place of what JSON cannot say, and without keys that are not text."""
    if isinstance(value, dict):
        return {key: replaced(child) for key, child in value.items() if isinstance(key, str) and not _in_scalar(key)}
    if isinstance(value, list):
        return [replaced(item) for item in value]
    return None if _in_scalar(value) else value


def not_json(document: Document) -> Iterator[tuple[Location, str]]:
    """Every value of a document that no JSON text stands for, and what is wrong with it."""
    yield from _misfits(document.value, ())


def _misfits(value: object, location: Location) -> Iterator[tuple[Location, str]]:
    if isinstance(value, dict):
        for key, child in value.items():
            if isinstance(key, str) and not _in_scalar(key):
                yield from _misfits(child, (*location, key))
            else:  # `yes:`, `on:`, `1:`: YAML reads them as something else
                yield location, f"the key {key!r} is not text; put it in quotes"
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _misfits(item, (*location, index))
    else:
        message = _in_scalar(value)
        if message:
            yield location, message


def _in_scalar(value: object) -> str | None:
    if isinstance(value, str):
        return None if _is_encodable(value) else "half of a surrogate pair is no character"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value} is not a number that JSON has"
    if value is None or isinstance(value, int):
        return None
    return f"a value of YAML's type {type(value).__name__} cannot be used here"


def _is_encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
