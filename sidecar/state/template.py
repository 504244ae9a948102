"""Templates: a value with `{{ expressions }}` in its texts, compiled once and rendered many times.

An expression alone in a text stands for its value, whatever its type; blanks around it do not count. Among other
text it becomes text: a string as it is, null and undefined as nothing, an object or a list as JSON. Lists and
objects are rendered through and through, but for the keys of objects: those are names, not values.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from sidecar.errors import ExpressionError, TemplateError
from sidecar.state.javascript import Placeholder, split_template

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


class Program(Protocol):
    """A compiled expression, as the evaluator gives it."""

    @property
    def names(self) -> Collection[str]: ...


P = TypeVar("P", bound=Program)
Where = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Slot(Generic[P]):
    """A hole of a text with the program that fills it."""

    hole: Placeholder
    program: P

    def evaluate(self, run: Callable[[P], Any]) -> Any:
        """The expression's value before any filter; an error says which expression of the text failed."""
        try:
            return run(self.program)
        except ExpressionError as error:
            message = f"{self.hole.shown}: {error.message}"
            raise TemplateError(message, _offset_of(error, self.hole), kind=error.kind) from error

    def value(self, run: Callable[[P], Any]) -> Any:
        """The expression's value after its filters."""
        return filtered(self.evaluate(run), self.hole.filters, self.hole.offset)


@dataclass(frozen=True, slots=True)
class Text(Generic[P]):
    """One compiled text that holds at least one expression."""

    parts: tuple[str | Slot[P], ...]

    @property
    def slots(self) -> list[Slot[P]]:
        return [part for part in self.parts if isinstance(part, Slot)]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for slot in self.slots for name in slot.program.names)

    def render(self, run: Callable[[P], Any]) -> Any:
        """The typed value of a lone expression, otherwise text."""
        filled = [part for part in self.parts if not isinstance(part, str) or part.strip()]
        if len(filled) == 1 and isinstance(filled[0], Slot):
            return filled[0].value(run)
        return "".join(part if isinstance(part, str) else as_text(part.value(run)) for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Constant:
    """A value without expressions: rendering gives that very object."""

    value: Any
    names: frozenset[str] = frozenset()

    def render(self, run: object) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class _Placed(Generic[P]):
    """A text somewhere inside a structure: its errors say where."""

    text: Text[P]
    where: Where

    @property
    def names(self) -> frozenset[str]:
        return self.text.names

    def render(self, run: Callable[[P], Any]) -> Any:
        try:
            return self.text.render(run)
        except TemplateError as error:
            raise TemplateError(error.message, error.offset, self.where, kind=error.kind) from error


@dataclass(frozen=True, slots=True)
class _Structure(Generic[P]):
    """A list or an object of which at least one value holds an expression."""

    items: list[Template[P]] | dict[str, Template[P]]

    @property
    def names(self) -> frozenset[str]:
        items = self.items.values() if isinstance(self.items, dict) else self.items
        return frozenset().union(*(item.names for item in items))

    def render(self, run: Callable[[P], Any]) -> Any:
        if isinstance(self.items, dict):
            return {key: item.render(run) for key, item in self.items.items()}
        return [item.render(run) for item in self.items]


# What `compile_value` gives: `names` are all that its expressions mention, `render` fills them in.
Template = _Constant | _Placed[P] | _Structure[P]


def compile_text(text: str, compiler: Callable[[str], P]) -> Text[P]:
    """A text with its expressions compiled; the first problem is raised as a TemplateError."""
    return _text(text, compiler, (), None)


def compile_value(value: Any, compiler: Callable[[str], P]) -> Template[P]:
    """Any JSON value with the expressions of all its texts compiled; the first problem is raised."""
    problems: list[TemplateError] = []
    template = _value(value, compiler, (), problems)
    if problems:
        raise problems[0]
    return template


def problems_of(value: Any, compiler: Callable[[str], P]) -> list[TemplateError]:
    """Everything that is wrong with the templates of a value, each with its place."""
    problems: list[TemplateError] = []
    _value(value, compiler, (), problems)
    return problems


def _value(value: Any, compiler: Callable[[str], P], where: Where, problems: list[TemplateError]) -> Template[P]:
    if isinstance(value, str):
        if "{{" not in value:
            return _Constant(value)
        try:
            return _Placed(_text(value, compiler, where, problems), where)
        except TemplateError as error:
            problems.append(TemplateError(error.message, error.offset, where, kind=error.kind))
            return _Constant(value)
    items: list[Template[P]] | dict[str, Template[P]]
    if isinstance(value, dict):
        items = {key: _value(item, compiler, (*where, key), problems) for key, item in value.items()}
        constant = all(isinstance(item, _Constant) for item in items.values())
    elif isinstance(value, list):
        items = [_value(item, compiler, (*where, index), problems) for index, item in enumerate(value)]
        constant = all(isinstance(item, _Constant) for item in items)
    else:
        return _Constant(value)
    return _Constant(value) if constant else _Structure(items)


def _text(text: str, compiler: Callable[[str], P], where: Where, problems: list[TemplateError] | None) -> Text[P]:
    parts: list[str | Slot[P]] = []
    for part in split_template(text):
        if isinstance(part, str):
            parts.append(part)
            continue
        try:
            parts.append(Slot(part, compiler(part.source)))
        except ExpressionError as error:
            message = f"{part.shown}: {error.message}"
            found = TemplateError(message, _offset_of(error, part), where, kind=error.kind)
            if problems is None:
                raise found from error
            problems.append(found)
    return Text(tuple(parts))


def _offset_of(error: ExpressionError, hole: Placeholder) -> int:
    """Where in the text a syntax error is: the evaluator tells line and column inside the expression, from 1."""
    if error.line is None or not 1 <= error.line <= hole.source.count("\n") + 1:
        return hole.source_offset
    inside = sum(len(row) + 1 for row in hole.source.split("\n")[: error.line - 1]) + max((error.column or 1) - 1, 0)
    return hole.source_offset + min(inside, len(hole.source))


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
