"""Expressions that need no engine: a look at a value, comparisons, `&&`, `||` and `!`, told here where JavaScript could
only agree. Most conditions of a workflow are of this kind, and a question to another process costs fifty times as much.

Whatever could come out otherwise there is Unsure, and the engine is asked: a name or a property that is missing, types
that would be converted, numbers that JavaScript does not hold exactly, lists and objects as a result.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sidecar.state.names import GLOBALS, RESERVED
from sidecar.state.values import LARGEST

if TYPE_CHECKING:
    from sidecar.state.tokens import Token

Look = Callable[[str], Any]  # the value of a name; KeyError where there is none
Simple = Callable[[Look], Any]

_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,14})(?:\.[0-9]+)?")
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None}
_SAME = frozenset(["===", "!==", "==", "!="])
_MOST_TOKENS = 64  # brackets, and what they come to, are calls inside calls
_ORDER = frozenset(["<", ">", "<=", ">="])


class Unsure(Exception):  # noqa: N818 - it says what is the case
    """Only the engine can tell."""


def read(tokens: list[Token]) -> Simple | None:
    """How to tell the value of an expression; None where it is none of this kind."""
    found = tokens[:-1] if tokens and tokens[-1].text == ";" else tokens
    if len(found) > _MOST_TOKENS:
        return None
    try:
        reader = _Reader(found)
        value = reader.either()
    except (Unsure, IndexError):
        return None
    return _primitive(value) if reader.at == len(found) else None


class _Reader:
    """One pass over the tokens, a method for each level of precedence."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self.at = 0

    def either(self) -> Simple:
        value = self._both()
        while self._takes("||"):
            value = _or(value, self._both())
        return value

    def _both(self) -> Simple:
        value = self._same()
        while self._takes("&&"):
            value = _and(value, self._same())
        return value

    def _same(self) -> Simple:
        value = self._ordered()
        while self._mark() in _SAME:
            mark = self._next().text
            value = _equal(value, self._ordered(), exact=len(mark) == 3, wanted=mark[0] == "=")
        return value

    def _ordered(self) -> Simple:
        value = self._one()
        while self._mark() in _ORDER:
            mark = self._next().text
            one, other = value, self._one()
            if mark[0] == ">":
                one, other = other, one
            value = _below(one, other, or_equal=len(mark) == 2)
        return value

    def _one(self) -> Simple:
        if self._takes("!"):
            return _not(self._one())
        if self._takes("("):
            value = self.either()
            if not self._takes(")"):
                raise Unsure
            return self._inside(value)
        token = self._next()
        if token.kind == "number" and _NUMBER.fullmatch(token.text):
            return _constant(float(token.text) if "." in token.text else int(token.text))
        if token.kind == "string" and "\\" not in token.text:
            return _constant(token.text[1:-1])
        if token.kind != "word" or "\\" in token.text:
            raise Unsure
        if token.text in _CONSTANTS:
            return _constant(_CONSTANTS[token.text])
        if token.text in RESERVED or token.text in GLOBALS:
            raise Unsure
        name = token.text
        return self._inside(lambda look: look(name))

    def _inside(self, value: Simple) -> Simple:
        """Properties and items behind a value."""
        while True:
            if self._takes("."):
                value = _property(value, self._word())
            elif self._takes("["):
                value = _item(value, self._index())
            else:
                return value

    def _word(self) -> str:
        token = self._next()
        # An object of JavaScript has some of these without anybody having put them there.
        if token.kind != "word" or "\\" in token.text or token.text.startswith("__"):
            raise Unsure
        return token.text

    def _index(self) -> int:
        token = self._next()
        if token.kind != "number" or not token.text.isdecimal() or not _NUMBER.fullmatch(token.text):
            raise Unsure
        if not self._takes("]"):
            raise Unsure
        return int(token.text)

    def _next(self) -> Token:
        token = self._tokens[self.at]
        self.at += 1
        return token

    def _mark(self) -> str:
        here = self._tokens[self.at] if self.at < len(self._tokens) else None
        return here.text if here is not None and here.kind == "mark" else ""

    def _takes(self, mark: str) -> bool:
        found = self._mark() == mark
        self.at += found
        return found


def _constant(value: Any) -> Simple:
    return lambda _: value


def _property(of: Simple, name: str) -> Simple:
    def value(look: Look) -> Any:
        found = of(look)
        if type(found) is dict:
            return found[name]  # KeyError: undefined there, or a property that all objects have
        if type(found) is list and name == "length":
            return len(found)
        raise Unsure

    return value


def _item(of: Simple, index: int) -> Simple:
    def value(look: Look) -> Any:
        found = of(look)
        if type(found) is list and index < len(found):
            return found[index]
        raise Unsure

    return value


def _or(one: Simple, other: Simple) -> Simple:
    def value(look: Look) -> Any:
        first = one(look)
        return first if _holds(first) else other(look)

    return value


def _and(one: Simple, other: Simple) -> Simple:
    def value(look: Look) -> Any:
        first = one(look)
        return other(look) if _holds(first) else first

    return value


def _not(of: Simple) -> Simple:
    return lambda look: not _holds(of(look))


def _equal(one: Simple, other: Simple, *, exact: bool, wanted: bool) -> Simple:
    def value(look: Look) -> bool:
        first, second = _known(one(look)), _known(other(look))
        first_kind, second_kind = _kind(first), _kind(second)
        if first_kind is second_kind:
            return (first == second) is wanted
        if not exact:  # they would be converted
            raise Unsure
        return not wanted

    return value


def _below(one: Simple, other: Simple, *, or_equal: bool) -> Simple:
    def value(look: Look) -> bool:
        first, second = _known(one(look)), _known(other(look))
        kind = _kind(first)
        # Texts are ordered by halves of characters there, which is another order beyond ASCII.
        if kind is not _kind(second) or kind not in (int, str):
            raise Unsure
        if kind is str and not (first.isascii() and second.isascii()):
            raise Unsure
        return bool(first <= second) if or_equal else bool(first < second)

    return value


def _primitive(of: Simple) -> Simple:
    def value(look: Look) -> Any:
        found = _known(of(look))
        if type(found) is float and found.is_integer():  # it would come back as an integer
            raise Unsure
        return found

    return value


def _known(value: Any) -> Any:
    """A value that is the same on both sides, or Unsure."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int and -LARGEST <= value <= LARGEST:
        return value
    if kind is float and value - value == 0:  # finite
        return value
    if kind is str and (value.isascii() or _is_whole(value)):
        return value
    raise Unsure


def _holds(value: Any) -> bool:
    if type(value) is dict or type(value) is list:
        return True
    return bool(_known(value))


def _kind(value: Any) -> type:
    kind = type(value)
    return int if kind is float else kind


def _is_whole(text: str) -> bool:
    """Without halves of characters, which would be joined there."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
