"""Templates: texts with `{{ expressions }}`, compiled once and rendered many times.

An expression alone in a text stands for its value, whatever its type; blanks around it do not count. Among other
text it becomes text: a string as it is, null and undefined as nothing, an object or a list as JSON.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sidecar.errors import ExpressionError, TemplateError
from sidecar.state.javascript import Placeholder, split_template
from sidecar.state.script import Expression

Compiler = Callable[[str], Expression]
Run = Callable[[Expression], Any]  # gives the value of an expression


@dataclass(frozen=True, slots=True)
class Slot:
    """A placeholder of a text with its compiled expression."""

    placeholder: Placeholder
    expression: Expression

    def evaluate(self, run: Run) -> Any:
        """The expression's value before any filter; an error names the expression that failed."""
        try:
            return run(self.expression)
        except ExpressionError as error:
            raise _in_text(error, self.placeholder) from error

    def value(self, run: Run) -> Any:
        """The expression's value after its filters."""
        value, filters = self.evaluate(run), self.placeholder.filters
        return filtered(value, filters, self.placeholder.offset) if filters else value


@dataclass(frozen=True, slots=True)
class Compiled:
    """What has `{{ }}` in it: a text, a command, a segment of a path."""

    parts: tuple[str | Slot, ...]

    @property
    def slots(self) -> list[Slot]:
        return [part for part in self.parts if isinstance(part, Slot)]

    @property
    def names(self) -> frozenset[str]:
        """The names that the expressions take from outside."""
        return frozenset(name for slot in self.slots for name in slot.expression.names)


@dataclass(frozen=True, slots=True)
class Text(Compiled):
    """One compiled text."""

    def render(self, run: Run) -> Any:
        """The typed value of a lone expression, otherwise text."""
        filled = [part for part in self.parts if not isinstance(part, str) or part.strip()]
        if len(filled) == 1 and isinstance(filled[0], Slot):
            return filled[0].value(run)
        return "".join(part if isinstance(part, str) else as_text(part.value(run)) for part in self.parts)


def compile_text(text: str, compiler: Compiler) -> Text:
    """A text with its expressions compiled; the first problem is raised as a TemplateError."""
    parts: list[str | Slot] = []
    for part in split_template(text):
        if isinstance(part, str):
            parts.append(part)
            continue
        try:
            parts.append(Slot(part, compiler(part.source)))
        except ExpressionError as error:
            raise _in_text(error, part) from error
    return Text(tuple(parts))


def _in_text(error: ExpressionError, placeholder: Placeholder) -> TemplateError:
    return TemplateError(f"{placeholder.shown}: {error.message}", _offset_of(error, placeholder), kind=error.kind)


def _offset_of(error: ExpressionError, placeholder: Placeholder) -> int:
    """Where in the text a syntax error is: the evaluator gives line and column inside the expression, from 1."""
    if error.line is None or not 1 <= error.line <= placeholder.source.count("\n") + 1:
        return placeholder.source_offset
    inside = sum(len(row) + 1 for row in placeholder.source.split("\n")[: error.line - 1]) + max(
        (error.column or 1) - 1, 0
    )
    return placeholder.source_offset + min(inside, len(placeholder.source))


def as_text(value: Any) -> str:
    """A value among other text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    # JavaScript knows one kind of number: what Python calls 1.0 is written 1 there.
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)


def as_key(value: Any) -> str:
    """A value as one key of an object; ValueError where it has no name to give."""
    if value is None or isinstance(value, dict | list):
        kind = "null or undefined" if value is None else "an object" if isinstance(value, dict) else "a list"
        raise ValueError(f"{kind} cannot be a key")
    return as_text(value)


def filtered(value: Any, filters: tuple[str, ...], offset: int) -> Any:
    """The value after its filters: `path_to_key` (one key), `json`, `quote` (one word for a shell), `raw` (itself)."""
    for name in filters:
        if name == "json":
            value = json.dumps(value, ensure_ascii=False)
        elif name == "quote":
            value = shlex.quote(as_text(value))
        elif name == "path_to_key":
            try:
                value = as_key(value)
            except ValueError as error:
                raise TemplateError(f"| path_to_key: {error}", offset) from error
    return value
