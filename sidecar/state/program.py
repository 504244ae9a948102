"""A piece of JavaScript made ready: how it was understood, what it takes from outside, what the engine is to read."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.errors import ExpressionError
from sidecar.state import names, simple, tokens

# Code that can see that a value is frozen without failing, or can swallow the failure: it gets copies at once.
_WATCHFUL = frozenset(["try", "Reflect", "Proxy", "isFrozen", "isSealed", "isExtensible"])
_LONGEST = 256 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Compiled once, run many times. `names` is what it takes from outside; `bound` what it is given, some in vain."""

    source: str
    names: tuple[str, ...]
    bound: tuple[str, ...]
    code: str
    number: int
    simple: simple.Simple | None = None  # how to tell its value without the engine


@dataclass(frozen=True, slots=True)
class Reading:
    """One source and the ways to understand it: as an expression, or, where it has a `return`, as a function's body."""

    source: str
    names: tuple[str, ...]
    bound: tuple[str, ...]
    text: str
    watchful: bool
    may_be_body: bool
    stray: int
    simple: simple.Simple | None

    def expression(self) -> str:
        """Line breaks around it, so that a comment at its end swallows nothing of ours."""
        return f'(function({",".join(self.bound)}){{"use strict";return (\n{self.text}\n)}})'

    def counter_check(self) -> str:
        """What closes our bracket and opens another, as `1) + (2` does, passes in round brackets, but not in these."""
        return f'(function({",".join(self.bound)}){{"use strict";return [\n{self.text}\n]}})'

    def body(self) -> str:
        """In a function of its own, where it may declare a name that it is given from outside."""
        return f'(function({",".join(self.bound)}){{"use strict";return (() => {{\n{self.text}\n}})()}})'


def read(source: str) -> Reading:
    """Look at a source; ExpressionError where it is nothing that the engine should see."""
    if len(source) > _LONGEST:
        raise ExpressionError(f"it is longer than {_LONGEST // 1024} KiB", kind="syntax")
    try:
        source.encode()
    except UnicodeEncodeError as error:
        line, column = place(source, error.start)
        raise ExpressionError("half a character is here", kind="syntax", line=line, column=column) from None
    found = tokens.scan(source)
    if not found.tokens:
        raise ExpressionError("it is empty", kind="syntax", line=1, column=1)
    for index, token in enumerate(found.tokens):
        if token.kind == "word" and _waits(found.tokens, index):
            line, column = place(source, token.at)
            raise ExpressionError(
                f"SyntaxError: {token.text} is not for expressions, they cannot wait",
                kind="syntax",
                line=line,
                column=column,
            )
    words = {token.text for token in found.tokens if token.kind == "word"}
    last = found.tokens[-1]
    text = source[: last.at] + " " + source[last.at + 1 :] if last.text == ";" else source
    return Reading(
        source=source,
        names=names.free(found.tokens),
        bound=names.mentioned(found.tokens),
        text=text,
        watchful=not words.isdisjoint(_WATCHFUL),
        may_be_body="return" in words,
        stray=found.stray,
        simple=simple.read(found.tokens),
    )


def place(source: str, offset: int) -> tuple[int, int]:
    """Line and column of an offset, both from 1."""
    return source.count("\n", 0, offset) + 1, offset - source.rfind("\n", 0, offset)


def _waits(found: list[tokens.Token], index: int) -> bool:
    """`async` and `import()` leave work behind that nobody would ever do. As names of properties they are harmless."""
    text = found[index].text
    if text not in ("async", "import") or (index and found[index - 1].text in (".", "?.")):
        return False
    following = found[index + 1] if index + 1 < len(found) else None
    if following is None:
        return False
    return following.kind == "word" or following.text in ("(", "*", "[", "=>", ".", "#")
