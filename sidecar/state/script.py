"""The one JavaScript evaluator: sources are compiled once and run many times, in a process that may die of them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from sidecar.errors import ExpressionError
from sidecar.state import javascript
from sidecar.state.javascript import GLOBALS, RESERVED, line_and_column
from sidecar.state.script_process import WorkerLost, WorkerProcess, realm_source
from sidecar.state.script_worker import CHECK, MEMORY, REALM_LINE, UNSURE, VALUE, Engine, Request
from sidecar.state.values import LARGEST

if TYPE_CHECKING:
    from sidecar.state.javascript import Token


_MOST_PROGRAMS = 4096
_CHECKS = 0  # the world in which syntax is checked and nothing runs
_DIED = "the evaluator's process died twice over it"


class Script:
    """An evaluator and its limits, each of them for one expression.

    `worker=False` keeps the engine in this process, for tests and one-shot commands: quicker to start, but a few
    built-ins then run on past the time limit, dates are in the machine's zone, and one thread has to make all calls.
    """

    def __init__(self, *, worker: bool = True, time_limit_s: float = 0.25, memory_limit_mb: float = 64) -> None:
        self.time_limit_s = time_limit_s
        self.memory_limit_mb = memory_limit_mb
        self.lock = threading.RLock()  # requests and answers alternate on one connection
        self.generation = 0  # counts the engines: a new one knows nothing
        self._in_process = not worker
        self._engine: WorkerProcess | Engine | None = None
        self._programs: dict[str, Expression] = {}
        self._worlds = _CHECKS
        self._numbers = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process that evaluates; None where there is none now."""
        return self._engine.pid if isinstance(self._engine, WorkerProcess) else None

    @property
    def running(self) -> bool:
        """Whether there is an engine now."""
        return self._engine is not None

    def compile(self, source: str) -> Expression:
        """An expression, a bare object literal, or the body of a function with `return`; else ExpressionError."""
        with self.lock:
            known = self._programs.get(source)
            if known is not None:
                return known
            reading = _read_source(source)
            code = self._checked(reading)
            self._numbers += 1
            marked = ("+" if reading.watchful else "-") + code
            made = Expression(source, reading.names, reading.bound, marked, self._numbers, reading.simple)
            if len(self._programs) >= _MOST_PROGRAMS:
                self._programs.clear()
            self._programs[source] = made
            return made

    def new_world(self) -> int:
        """The number of a world, under which the engine keeps its values apart from those of every other."""
        with self.lock:
            self._worlds += 1
            return self._worlds

    def close(self) -> None:
        """End the process. A later use starts another."""
        with self.lock:
            if isinstance(self._engine, WorkerProcess):
                self._engine.close()
            self._engine = None

    def engine(self) -> WorkerProcess | Engine:
        """The engine, started where there is none."""
        if isinstance(self._engine, WorkerProcess) and self._engine.closed:
            self._engine = None
        if self._engine is None:
            memory_limit = round(self.memory_limit_mb * 1024 * 1024)
            self.generation += 1
            if self._in_process:
                self._engine = Engine(realm_source(), self.time_limit_s, memory_limit, lambda _: None)
            else:
                self._engine = WorkerProcess(self.time_limit_s, memory_limit)
        return self._engine

    def lose(self, lost: WorkerLost, *, again: bool) -> None:
        """The engine is gone: the next use starts another. An error, unless the same may be asked again."""
        self._engine = None
        if lost.overdue:
            raise _too_slow(self.time_limit_s) from None
        if not again:
            raise ExpressionError(_DIED, kind="memory") from None

    def fail(self, status: bytes, text: str, source: str) -> ExpressionError:
        """The error behind an answer."""
        if status == UNSURE:
            return ExpressionError("the values that it reads are too large, or nested too deeply", kind="memory")
        return _runtime_error(status, text, source, self.time_limit_s, self.memory_limit_mb)

    def _checked(self, reading: _Source) -> str:
        error = self._refused(reading.expression()) or self._refused(reading.counter_check())
        if error is None:
            return reading.expression()
        if reading.may_be_body:
            body_error = self._refused(reading.body())
            if body_error is None and reading.stray < 0:
                return reading.body()
            error = body_error or error
        if reading.stray >= 0:
            line, column = line_and_column(reading.source, reading.stray)
            message = f"SyntaxError: nothing opens this {reading.source[reading.stray]!r}"
            raise ExpressionError(message, kind="syntax", line=line, column=column)
        raise _syntax_error(error, reading.source)

    def _refused(self, code: str) -> str | None:
        """What the engine says against it."""
        for again in (True, False):
            try:
                status, text = self.engine().handle(Request(CHECK, _CHECKS, code=code))
            except WorkerLost as lost:
                self.lose(lost, again=again)
                continue
            return None if status == VALUE else text
        raise AssertionError("lose() raises the second time")


# A piece of JavaScript made ready: how it was understood, what it takes from outside, what the engine is to read.


# Code that can see that a value is frozen without failing, or can swallow the failure: it gets copies at once.
_WATCHFUL = frozenset(["try", "Reflect", "Proxy", "isFrozen", "isSealed", "isExtensible"])
_LONGEST_SOURCE = 256 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """Compiled once, run many times. `names` is what it takes from outside; `bound` what it is given, some in vain."""

    source: str
    names: tuple[str, ...]
    bound: tuple[str, ...]
    code: str
    number: int
    simple: Simple | None = None  # how to tell its value without the engine


@dataclass(frozen=True, slots=True)
class _Source:
    """One source and the ways to understand it: as an expression, or, where it has a `return`, as a function's body."""

    source: str
    names: tuple[str, ...]
    bound: tuple[str, ...]
    text: str
    watchful: bool
    may_be_body: bool
    stray: int
    simple: Simple | None

    def expression(self) -> str:
        """Line breaks around it, so that a comment at its end swallows nothing of ours."""
        return f'(function({",".join(self.bound)}){{"use strict";return (\n{self.text}\n)}})'

    def counter_check(self) -> str:
        """What closes our bracket and opens another, as `1) + (2` does, passes in round brackets, but not in these."""
        return f'(function({",".join(self.bound)}){{"use strict";return [\n{self.text}\n]}})'

    def body(self) -> str:
        """In a function of its own, where it may declare a name that it is given from outside."""
        return f'(function({",".join(self.bound)}){{"use strict";return (() => {{\n{self.text}\n}})()}})'


def _read_source(source: str) -> _Source:
    """Look at a source; ExpressionError where it is nothing that the engine should see."""
    if len(source) > _LONGEST_SOURCE:
        raise ExpressionError(f"it is longer than {_LONGEST_SOURCE // 1024} KiB", kind="syntax")
    try:
        source.encode()
    except UnicodeEncodeError as error:
        line, column = line_and_column(source, error.start)
        raise ExpressionError("half a character is here", kind="syntax", line=line, column=column) from None
    found = javascript.scan(source)
    if not found.tokens:
        raise ExpressionError("it is empty", kind="syntax", line=1, column=1)
    for index, token in enumerate(found.tokens):
        if token.kind == "word" and _waits(found.tokens, index):
            line, column = line_and_column(source, token.at)
            raise ExpressionError(
                f"SyntaxError: {token.text} is not for expressions, they cannot wait",
                kind="syntax",
                line=line,
                column=column,
            )
    words = {token.text for token in found.tokens if token.kind == "word"}
    last = found.tokens[-1]
    text = source[: last.at] + " " + source[last.at + 1 :] if last.text == ";" else source
    return _Source(
        source=source,
        names=javascript.free_names(found.tokens),
        bound=javascript.mentioned_names(found.tokens),
        text=text,
        watchful=not words.isdisjoint(_WATCHFUL),
        may_be_body="return" in words,
        stray=found.stray,
        simple=_read_simple(found.tokens),
    )


def _waits(found: list[javascript.Token], index: int) -> bool:
    """`async` and `import()` leave work behind that nobody would ever do. As names of properties they are harmless."""
    text = found[index].text
    if text not in ("async", "import") or (index and found[index - 1].text in (".", "?.")):
        return False
    following = found[index + 1] if index + 1 < len(found) else None
    if following is None:
        return False
    return following.kind == "word" or following.text in ("(", "*", "[", "=>", ".", "#")


# Expressions that need no engine: a look at a value, comparisons, `&&`, `||` and `!`, evaluated here where JavaScript
# could only agree. Most conditions of a workflow are of this kind, and the other process costs fifty times as much.
#
# Whatever could come out otherwise there is Unsure, and the engine is asked: a name or a property that is missing,
# types that would be converted, numbers that JavaScript does not hold exactly, lists and objects as a result.
#


Look = Callable[[str], Any]  # the value of a name; KeyError where there is none
Simple = Callable[[Look], Any]

_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,14})(?:\.[0-9]+)?")
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None}
_SAME = frozenset(["===", "!==", "==", "!="])
_MOST_TOKENS = 64  # brackets, and what they come to, are calls inside calls
_ORDER = frozenset(["<", ">", "<=", ">="])


class Unsure(Exception):  # noqa: N818 - it says what is the case
    """Only the engine can tell."""


def _read_simple(tokens: list[Token]) -> Simple | None:
    """How to tell the value of an expression; None where it is none of this kind."""
    found = tokens[:-1] if tokens and tokens[-1].text == ";" else tokens
    if len(found) > _MOST_TOKENS:
        return None
    try:
        reader = _SimpleReader(found)
        value = reader.either()
    except (Unsure, IndexError):
        return None
    return _primitive(value) if reader.at == len(found) else None


class _SimpleReader:
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


# What the engine says about a failed expression, as an error that its author understands.


# Where code was read is said bare, where it ran in brackets; a JSON text that it read is said bare, too.
_READ = re.compile(r"^<input>:([0-9]+):([0-9]+)")
_RAN = re.compile(r"\(<input>:([0-9]+):([0-9]+)\)")
_STACK = "\n    at "
# Before the source in what the engine reads: one line.
PROLOGUE_LINES = 1
_LONGEST_MESSAGE = 500


def _too_slow(time_limit_s: float) -> ExpressionError:
    """It was ended at its limit."""
    return ExpressionError(f"it took longer than {time_limit_s:g} s of computing and was ended", kind="time")


def _too_large(memory_limit_mb: float) -> ExpressionError:
    """It was ended at its limit."""
    return ExpressionError(f"it needed more than {memory_limit_mb:g} MiB of memory and was ended", kind="memory")


def _runtime_error(
    status: bytes, text: str, source: str, time_limit_s: float, memory_limit_mb: float
) -> ExpressionError:
    """The error behind what the engine said."""
    said, _, stack = text.partition(_STACK)
    said = " ".join(said.split())
    # Where there is no room even for an error, the engine throws null; an expression has to say `throw` for that.
    no_room = said == "Error: thrown: null" and "throw" not in source
    if status == MEMORY or no_room or said in ("InternalError: out of memory", "InternalError: string too long"):
        return _too_large(memory_limit_mb)
    if said == "InternalError: interrupted":
        return _too_slow(time_limit_s)
    if said == "RangeError: Maximum call stack size exceeded":
        return ExpressionError("it calls itself too deeply, or is nested too deeply", kind="stack")
    kind = "value" if said.startswith("TypeError: the result ") else "runtime"
    line, column = _place_in_source(_RAN, stack, source)
    shown = said if len(said) <= _LONGEST_MESSAGE else said[:_LONGEST_MESSAGE] + "…"
    return ExpressionError(shown, kind=kind, line=line, column=column)


def _syntax_error(text: str, source: str) -> ExpressionError:
    """The error behind what the engine said about source that it cannot read."""
    said, _, stack = text.partition(_STACK)
    if said.startswith("InternalError: out of memory"):
        return ExpressionError("SyntaxError: it is too long", kind="syntax")
    if said.startswith(("RangeError", "InternalError")):
        return ExpressionError("SyntaxError: it is nested too deeply", kind="syntax")
    line, column = _place_in_source(_READ, stack, source)
    frame = _READ.search(stack)
    lines = source.rstrip().split("\n")
    if frame and int(frame[1]) > len(lines) + PROLOGUE_LINES:
        end = len(lines[-1]) + 1
        return ExpressionError("SyntaxError: it ends too early", kind="syntax", line=len(lines), column=end)
    return ExpressionError(" ".join(said.split()), kind="syntax", line=line, column=column)


def _place_in_source(frame: re.Pattern[str], stack: str, source: str) -> tuple[int | None, int | None]:
    """Line and column inside the source of the innermost frame that is there."""
    lines = source.split("\n")
    for match in frame.finditer(stack):
        line, column = int(match[1]), int(match[2])
        if line > REALM_LINE:
            continue
        line -= PROLOGUE_LINES
        return (line, column) if 1 <= line <= len(lines) else (None, None)
    return None, None
