"""Prompt templates: `{{ name }}` stands for a parameter's value."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def names(template: str) -> list[str]:
    """The names that a template mentions, in order; ValueError where it holds anything but names."""
    found = [match.group(1).strip() for match in _EXPRESSION.finditer(template)]
    for expression in found:
        if not _NAME.fullmatch(expression):
            raise ValueError(f"{{{{ {expression} }}}} is not the name of a parameter")
    return list(dict.fromkeys(found))


def sole_name(template: str) -> str | None:
    """The name, where the whole template is one expression: it then stands for the value itself, not for its text."""
    match = _EXPRESSION.fullmatch(template.strip())
    return match.group(1).strip() if match else None


def render(template: str, values: Mapping[str, object]) -> str:
    """The template with its values, in one pass: a value that looks like a template stays what it is."""
    return _EXPRESSION.sub(lambda match: _text(values[match.group(1).strip()]), template)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)
