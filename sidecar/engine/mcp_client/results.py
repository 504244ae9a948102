"""What an MCP tool answered, as a step's result: JSON that the state can hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pydantic_core

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_types import CallToolResult


def value_of(result: CallToolResult, masked: Callable[[str], str] = str) -> Any:
    """Structured content where there is some; else the text, as JSON where it is JSON; else the blocks as they are.

    A server that wraps its values (`{"result": …}`) is taken at its word. ValueError: no JSON text stands for it.
    """
    return _storable(_value(result), masked)


def text_of(result: CallToolResult) -> str:
    """All that it says in words."""
    return "\n".join(block.text for block in result.content if block.type == "text").strip()


def _value(result: CallToolResult) -> Any:
    if result.structured_content is not None:
        return result.structured_content
    blocks = result.content
    if not blocks:
        return None
    texts = [block.text for block in blocks if block.type == "text"]
    if len(texts) == len(blocks):
        return _read("\n".join(texts))
    dumped = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in blocks]
    return dumped if len(dumped) > 1 else dumped[0]


def _read(text: str) -> Any:
    try:
        # Not the standard library's reader: it takes NaN, and half a surrogate pair, which the journal could not keep.
        found = pydantic_core.from_json(text, allow_inf_nan=False)
        json.dumps(found, allow_nan=False)  # 1e999 is read as infinity all the same
    except ValueError:
        return text
    return found


def _storable(value: Any, masked: Callable[[str], str]) -> Any:
    return json.loads(masked(json.dumps(value, allow_nan=False)))
