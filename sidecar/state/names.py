"""Which names a piece of JavaScript takes from outside: the words it mentions, less those that it declares itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.state.tokens import Token

# Words that are never names, those of strict code included.
_RESERVED = """
    arguments await break case catch class const continue debugger default delete do else enum eval export extends
    false finally for function if implements import in instanceof interface let new null package private protected
    public return static super switch this throw true try typeof undefined var void while with yield
"""
RESERVED = frozenset(_RESERVED.split())
# Every global that an expression has. What is missing here is removed from the realm: no clock, no code from text,
# nothing that outlives an expression.
_GLOBALS = """
    Object Error RangeError ReferenceError SyntaxError TypeError URIError EvalError AggregateError Iterator Array
    parseInt parseFloat isNaN isFinite decodeURI decodeURIComponent encodeURI encodeURIComponent Infinity NaN undefined
    Number Boolean String Math Reflect Symbol BigInt Date RegExp JSON Proxy Map Set WeakMap WeakSet ArrayBuffer
    Uint8ClampedArray Int8Array Uint8Array Int16Array Uint16Array Int32Array Uint32Array BigInt64Array BigUint64Array
    Float16Array Float32Array Float64Array DataView btoa atob
"""
GLOBALS = frozenset(_GLOBALS.split())


class _Region(NamedTuple):
    """A declared name and the tokens among which it hides one from outside."""

    name: str
    first: int
    last: int


def mentioned(tokens: list[Token]) -> tuple[str, ...]:
    """Every name that may have to be bound: too many rather than too few, since an unbound one is an error."""
    words = {
        token.text
        for index, token in enumerate(tokens)
        if token.kind == "word" and "\\" not in token.text and not _is_property(tokens, index)
    }
    return tuple(sorted(words - RESERVED - GLOBALS))


def free(tokens: list[Token]) -> tuple[str, ...]:
    """The names that come from outside, for people to be told about; sorted."""
    regions: dict[str, list[_Region]] = {}
    for region in _regions(tokens):
        regions.setdefault(region.name, []).append(region)
    found = set()
    for index, token in enumerate(tokens):
        if token.kind != "word" or token.text in RESERVED or token.text in GLOBALS or "\\" in token.text:
            continue
        if _is_property(tokens, index) or _is_key(tokens, index) or _is_method_word(tokens, index):
            continue
        if not any(region.first <= index <= region.last for region in regions.get(token.text, ())):
            found.add(token.text)
    return tuple(sorted(found))


def _text(tokens: list[Token], index: int) -> str:
    """What stands there; empty beyond the ends, and a placeholder for what is no word and no mark."""
    if not 0 <= index < len(tokens):
        return ""
    token = tokens[index]
    return token.text if token.kind in ("word", "mark") else "<literal>"


def _is_property(tokens: list[Token], index: int) -> bool:
    return _text(tokens, index - 1) in (".", "?.", "#")


def _is_key(tokens: list[Token], index: int) -> bool:
    """`name:` or `name() {}` inside an object literal or a class."""
    before, after = _text(tokens, index - 1), _text(tokens, index + 1)
    if before in ("get", "set", "static", "*") and after == "(":
        return _is_method(tokens, index + 1)
    if before not in ("{", ",", "}", ";") or after not in (":", "("):
        return False
    around = tokens[index].around
    if around < 0 or tokens[around].text != "{":
        return False
    return after == ":" or _is_method(tokens, index + 1)


def _is_method(tokens: list[Token], opener: int) -> bool:
    closer = tokens[opener].partner
    return closer >= 0 and _text(tokens, closer + 1) == "{"


def _is_method_word(tokens: list[Token], index: int) -> bool:
    following = index + 1 < len(tokens) and tokens[index + 1].kind == "word"
    if tokens[index].text in ("get", "set"):
        return following and _text(tokens, index - 1) in ("{", ",", "}", ";")
    # In `for (x of y)` it stands after a name or a pattern, where a name of its own cannot stand.
    before = tokens[index - 1] if index else None
    return tokens[index].text == "of" and before is not None and (before.kind == "word" or before.text in ("]", "}"))


def _regions(tokens: list[Token]) -> Iterator[_Region]:
    for index, token in enumerate(tokens):
        if token.text == "=>" and token.kind == "mark":
            yield from _arrow(tokens, index)
        elif token.kind == "mark" and token.text == "(" and _is_method(tokens, index):
            yield from _parameters(tokens, index)
        elif token.kind == "word" and token.text in ("const", "let", "var") and not _is_property(tokens, index):
            last = _scope_end(tokens, index)
            yield from (_Region(name, _scope_start(tokens, index), last) for name in _declared(tokens, index + 1))
        elif token.kind == "word" and token.text in ("class", "function") and not _is_property(tokens, index):
            at = index + 2 if _text(tokens, index + 1) == "*" else index + 1
            if at < len(tokens) and tokens[at].kind == "word":
                yield _Region(tokens[at].text, _scope_start(tokens, index), _scope_end(tokens, index))


def _arrow(tokens: list[Token], arrow: int) -> Iterator[_Region]:
    last = _arrow_end(tokens, arrow + 1)
    before = tokens[arrow - 1] if arrow else None
    if before is None:
        return
    if before.kind == "word":
        yield _Region(before.text, arrow - 1, last)
    elif before.text == ")" and before.partner >= 0:
        for name in _pattern(tokens, before.partner + 1, arrow - 1):
            yield _Region(name, before.partner, last)


def _arrow_end(tokens: list[Token], at: int) -> int:
    if _text(tokens, at) == "{":
        return tokens[at].partner if tokens[at].partner >= 0 else len(tokens)
    questions = 0
    while at < len(tokens):
        text = _text(tokens, at)
        if text in (",", ";", ")", "]", "}") or (text == ":" and questions == 0):
            return at
        questions += (text == "?") - (text == ":")
        at = _step(tokens, at)
    return at


def _parameters(tokens: list[Token], opener: int) -> Iterator[_Region]:
    """Those of `function`, of a method and of `catch`; `if (x) {` and its like declare nothing."""
    if _text(tokens, opener - 1) in ("if", "while", "for", "switch", "with"):
        return
    closer = tokens[opener].partner
    body_end = tokens[closer + 1].partner
    last = body_end if body_end >= 0 else len(tokens)
    for name in _pattern(tokens, opener + 1, closer):
        yield _Region(name, opener, last)


def _declared(tokens: list[Token], at: int) -> Iterator[str]:
    """The names of `const a = 1, {b, c: d} = x`."""
    while at < len(tokens):
        end = _step(tokens, at)
        yield from _pattern(tokens, at, end)
        while end < len(tokens) and _text(tokens, end) not in (",", ";", ")", "]", "}", "of", "in"):
            end = _step(tokens, end)
        if _text(tokens, end) != ",":
            return
        at = end + 1


def _pattern(tokens: list[Token], at: int, end: int) -> Iterator[str]:
    """The names that a list of parameters or a destructuring pattern declares; defaults are expressions, not names."""
    while at < end:
        token = tokens[at]
        if token.kind == "mark" and token.text in ("{", "[") and token.partner >= 0:
            if _text(tokens, token.partner + 1) != ":":  # else a computed key
                yield from _pattern(tokens, at + 1, token.partner)
        elif token.kind == "word" and _text(tokens, at + 1) != ":":
            yield token.text
        elif token.text == "=":
            while at < end and _text(tokens, at) != ",":
                at = _step(tokens, at)
        at = _step(tokens, at)


def _step(tokens: list[Token], at: int) -> int:
    """The next token on the same level."""
    token = tokens[at] if at < len(tokens) else None
    if token and token.kind == "mark" and token.text in ("(", "[", "{", "${") and token.partner > at:
        return token.partner + 1
    return at + 1


def _scope_start(tokens: list[Token], index: int) -> int:
    """A declaration counts in the whole block around it; that of a `for (…)` in the block around the loop."""
    around = tokens[index].around
    while around >= 0 and tokens[around].text != "{":
        around = tokens[around].around
    return around + 1


def _scope_end(tokens: list[Token], index: int) -> int:
    start = _scope_start(tokens, index)
    partner = tokens[start - 1].partner if start else -1
    return partner if partner >= 0 else len(tokens)
