"""The JavaScript evaluator: expressions are compiled once and run many times, in a process that may die of them.

`World` runs them on the values of a run. Simple conditions need no engine, and are evaluated here.
"""

from __future__ import annotations

import operator
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from sidecar.errors import ExpressionError
from sidecar.state import javascript
from sidecar.state.javascript import GLOBALS, RESERVED, Token, line_and_column
from sidecar.state.script_process import WorkerLost, WorkerProcess, realm_source
from sidecar.state.script_worker import CHECK, MEMORY, REALM_LINE, UNSURE, VALUE, Engine, EngineRequest
from sidecar.state.values import LARGEST

Simple = tuple[Any, ...]  # an expression that needs no engine: an operator and its operands

_MOST_EXPRESSIONS = 4096
_CHECKS = 0  # the world in which syntax is checked and nothing runs
_LONGEST_SOURCE = 256 * 1024
_LONGEST_MESSAGE = 500
_LONGEST_QUOTED = 60
# Code that can see that a value is frozen without failing, or can swallow the failure: it gets copies at once.
_SEES_FROZEN = frozenset(["try", "Reflect", "Proxy", "isFrozen", "isSealed", "isExtensible"])
# In the engine's messages the place where code was read is bare, and the place where it ran in brackets.
_READ_AT = re.compile(r"^<input>:([0-9]+):([0-9]+)")
_RAN_AT = re.compile(r"\(<input>:([0-9]+):([0-9]+)\)")
_STACK = "\n    at "
_LINES_BEFORE_SOURCE = 1  # in what the engine reads


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A compiled expression. `names` is what it takes from outside; `bound` what it is given, some in vain."""

    source: str
    names: tuple[str, ...]
    bound: tuple[str, ...]
    code: str
    number: int
    simple: Simple | None = None  # for `evaluate_simple`


class Script:
    """An evaluator and its limits, each of them for one expression.

    `worker=False` keeps the engine in this process, for tests and one-shot commands: quicker to start, but a few
    built-ins then run on past the time limit, dates are in the machine's zone, and one thread has to make all calls.
    """

    def __init__(self, *, worker: bool = True, time_limit_s: float = 0.25, memory_limit_mb: float = 64) -> None:
        self.time_limit_s = time_limit_s
        self.memory_limit_mb = memory_limit_mb
        self.lock = threading.RLock()  # requests and answers alternate on one connection
        self.generation = 0  # counts the engines: a new one has no values
        self._in_process = not worker
        self._engine: WorkerProcess | Engine | None = None
        self._expressions: dict[str, Expression] = {}
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
            known = self._expressions.get(source)
            if known is not None:
                return known
            compiled = self._compile(source)
            if len(self._expressions) >= _MOST_EXPRESSIONS:
                self._expressions.clear()
            self._expressions[source] = compiled
            return compiled

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

    def ask(self, request: Callable[[], EngineRequest]) -> tuple[bytes, str]:
        """The engine's answer. Where its process dies another one is asked, once, with a request made for that one."""
        for _ in range(2):
            engine = self.engine()
            try:
                return engine.handle(request())
            except WorkerLost as lost:
                self._engine = None
                if lost.overdue:
                    raise self._too_slow() from None
        raise ExpressionError("the evaluator's process died twice over it", kind="memory")

    def error(self, status: bytes, text: str, source: str) -> ExpressionError:
        """The error behind an answer of the engine, in words that the expression's author understands."""
        if status == UNSURE:
            return ExpressionError("the values that it reads are too large, or nested too deeply", kind="memory")
        message, _, stack = text.partition(_STACK)
        message = " ".join(message.split())
        # Where there is no room even for an error, the engine throws null; an expression needs `throw` for that.
        no_room = message == "Error: thrown: null" and "throw" not in source
        if status == MEMORY or no_room or message in ("InternalError: out of memory", "InternalError: string too long"):
            limit = f"{self.memory_limit_mb:g} MiB"
            return ExpressionError(f"it needed more than {limit} of memory and was ended", kind="memory")
        if message == "InternalError: interrupted":
            return self._too_slow()
        if message == "RangeError: Maximum call stack size exceeded":
            return ExpressionError("it calls itself too deeply, or is nested too deeply", kind="stack")
        kind = "value" if message.startswith("TypeError: the result ") else "runtime"
        line, column = _place_in_source(_RAN_AT, stack, source)
        shown = message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "…"
        return ExpressionError(shown, kind=kind, line=line, column=column)

    def _too_slow(self) -> ExpressionError:
        return ExpressionError(f"it took longer than {self.time_limit_s:g} s of computing and was ended", kind="time")

    def _compile(self, source: str) -> Expression:
        found, stray = _checked_tokens(source)
        bound = javascript.mentioned_names(found)
        words = {token.text for token in found if token.kind == "word"}
        last = found[-1]
        text = source[: last.at] + " " + source[last.at + 1 :] if last.text == ";" else source
        begin = f'(function({",".join(bound)}){{"use strict";return '
        # Line breaks around the source, so that a comment at its end swallows nothing of ours.
        code = f"{begin}(\n{text}\n)}})"
        # What closes our bracket and opens another, as `1) + (2` does, passes in round brackets, but not in these.
        problem = self._problem(code) or self._problem(f"{begin}[\n{text}\n]}})")
        if problem is not None and "return" in words:
            # A body is in a function of its own, where it may declare a name that it is given from outside.
            code = f"{begin}(() => {{\n{text}\n}})()}})"
            body_problem = self._problem(code)
            problem = body_problem or (problem if stray >= 0 else None)
        if problem is not None and stray >= 0:
            raise _error_at(source, stray, f"SyntaxError: nothing opens this {source[stray]!r}")
        if problem is not None:
            raise _syntax_error(problem, source)
        self._numbers += 1
        marked = ("-" if words.isdisjoint(_SEES_FROZEN) else "+") + code
        return Expression(source, javascript.free_names(found), bound, marked, self._numbers, _read_simple(found))

    def _problem(self, code: str) -> str | None:
        """What the engine has against some code."""
        status, text = self.ask(lambda: EngineRequest(CHECK, _CHECKS, code=code))
        return None if status == VALUE else text


# Sources and their errors.


def _checked_tokens(source: str) -> javascript.ScannedTokens:
    """The tokens of a source; ExpressionError where it is nothing that the engine should see."""
    if len(source) > _LONGEST_SOURCE:
        raise ExpressionError(f"it is longer than {_LONGEST_SOURCE // 1024} KiB", kind="syntax")
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise _error_at(source, error.start, "half a character is here") from None
    found = javascript.scan(source)
    if not found.tokens:
        raise _error_at(source, 0, "it is empty")
    for index, token in enumerate(found.tokens):
        if token.kind == "word" and _is_asynchronous(found.tokens, index):
            raise _error_at(source, token.at, f"SyntaxError: {token.text} is not for expressions, they cannot wait")
    return found


def _is_asynchronous(found: list[Token], index: int) -> bool:
    """`async` and `import()` leave work behind that nothing would ever do. As names of properties they are harmless."""
    text = found[index].text
    if text not in ("async", "import") or (index and found[index - 1].text in (".", "?.")):
        return False
    following = found[index + 1] if index + 1 < len(found) else None
    return following is not None and (following.kind == "word" or following.text in ("(", "*", "[", "=>", ".", "#"))


def _error_at(source: str, offset: int, message: str) -> ExpressionError:
    line, column = line_and_column(source, offset)
    return ExpressionError(message, kind="syntax", line=line, column=column)


def _syntax_error(text: str, source: str) -> ExpressionError:
    """The error behind the engine's message about source that it cannot read."""
    message, _, stack = text.partition(_STACK)
    if message.startswith("InternalError: out of memory"):
        return ExpressionError("SyntaxError: the source is too long", kind="syntax")
    if message.startswith(("RangeError", "InternalError")):
        return ExpressionError("SyntaxError: the source is nested too deeply", kind="syntax")
    line, column = _place_in_source(_READ_AT, stack, source)
    frame = _READ_AT.search(stack)
    lines = source.rstrip().split("\n")
    if frame and int(frame[1]) > len(lines) + _LINES_BEFORE_SOURCE:
        end = len(lines[-1]) + 1
        message = f"SyntaxError: incomplete expression: `{lines[-1].strip()[-_LONGEST_QUOTED:]}`"
        return ExpressionError(message, kind="syntax", line=len(lines), column=end)
    return ExpressionError(" ".join(message.split()), kind="syntax", line=line, column=column)


def _place_in_source(frame: re.Pattern[str], stack: str, source: str) -> tuple[int | None, int | None]:
    """Line and column of the innermost frame that is inside the source."""
    for match in frame.finditer(stack):
        line, column = int(match[1]), int(match[2])
        if line > REALM_LINE:
            continue
        line -= _LINES_BEFORE_SOURCE
        return (line, column) if 1 <= line <= source.count("\n") + 1 else (None, None)
    return None, None


# Evaluation without the engine. Most conditions of a workflow look at a value, compare it, and use `&&`, `||` and `!`:
# those are evaluated here, since a request to another process takes fifty times as long. Whatever could come out
# differently in JavaScript is a LookupError, and the engine evaluates it: a name or a property that is missing, types
# that would be converted, numbers that JavaScript does not hold exactly, lists and objects as a result.

_PRECEDENCE = (("||",), ("&&",), ("===", "!==", "==", "!="), ("<", ">", "<=", ">="))
_ORDERS: dict[str, Any] = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,14})(?:\.[0-9]+)?")
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None}
_MOST_TOKENS = 64  # brackets become calls inside calls


def evaluate_simple(simple: Simple, values: Mapping[str, Any]) -> Any:
    """The value of a simple expression, with the values of its names. LookupError: it needs the engine."""
    value = _primitive(_evaluate(simple, values))
    if type(value) is float and value.is_integer():  # it would come back as an integer
        raise LookupError
    return value


def _read_simple(tokens: list[Token]) -> Simple | None:
    """An expression as nested tuples, operator first; None where it is not simple."""
    rest = [token for token in reversed(tokens) if token.text != ";"]
    if len(rest) > _MOST_TOKENS:
        return None
    try:
        simple = _read_operators(rest, 0)
    except LookupError:  # it is something else, or there are no more tokens
        return None
    return None if rest else simple


def _read_operators(rest: list[Token], level: int) -> Simple:
    """The operators of one precedence, from the left; the next token is the last of `rest`."""
    if level == len(_PRECEDENCE):
        return _read_operand(rest)
    found = _read_operators(rest, level + 1)
    while rest and rest[-1].kind == "mark" and rest[-1].text in _PRECEDENCE[level]:
        found = (rest.pop().text, found, _read_operators(rest, level + 1))
    return found


def _read_operand(rest: list[Token]) -> Simple:
    kind, text = rest.pop()[:2]
    if kind == "mark" and text == "!":
        return ("!", _read_operand(rest))
    if kind == "number" and _NUMBER.fullmatch(text):
        return ("constant", float(text) if "." in text else int(text))
    if kind == "string" and "\\" not in text:
        return ("constant", text[1:-1])
    if kind == "mark" and text == "(":
        found = _read_operators(rest, 0)
        if rest.pop().text != ")":
            raise LookupError
    elif kind != "word" or text in RESERVED or text in GLOBALS or "\\" in text:
        return ("constant", _CONSTANTS[text])
    else:
        found = ("name", text)
    while rest and rest[-1].kind == "mark" and rest[-1].text == ".":
        rest.pop()
        kind, text = rest.pop()[:2]
        if kind != "word" or text.startswith(("__", "\\")):  # every object has some that begin with __
            raise LookupError
        found = (".", found, text)
    return found


def _evaluate(simple: Simple, values: Mapping[str, Any]) -> Any:
    mark = simple[0]
    if mark == "name":
        return values[simple[1]]
    if mark == "constant":
        return simple[1]
    value = _evaluate(simple[1], values)
    if mark in ("||", "&&"):
        is_true = value if type(value) is bool else _is_true(value)
        return value if is_true is (mark == "||") else _evaluate(simple[2], values)
    if mark == ".":
        if type(value) is list and simple[2] == "length":
            return len(value)
        if type(value) is dict:
            return value[simple[2]]  # KeyError: undefined there, or a property that all objects have
        raise LookupError
    if mark == "!":
        return not _is_true(value)
    return _compare(mark, _primitive(value), _primitive(_evaluate(simple[2], values)))


def _compare(mark: str, one: Any, other: Any) -> bool:
    is_alike = type(one) is type(other) or {type(one), type(other)} == {int, float}
    if mark in ("===", "!=="):
        return (is_alike and one == other) is (mark == "===")
    if not is_alike:  # they would be converted
        raise LookupError
    if mark in ("==", "!="):
        return (one == other) is (mark == "==")
    # Texts are ordered by halves of characters there, which is another order beyond ASCII.
    if type(one) in (int, float) or (type(one) is str and one.isascii() and other.isascii()):
        return bool(_ORDERS[mark](one, other))
    raise LookupError


def _is_true(value: Any) -> bool:
    return type(value) in (dict, list) or bool(_primitive(value))


def _primitive(value: Any) -> Any:
    """A value that is the same in both languages, or LookupError."""
    kind = type(value)
    if kind is bool or (kind is int and -LARGEST <= value <= LARGEST) or value is None:
        return value
    if kind is float and value - value == 0:  # finite
        return value
    # Halves of characters would be joined there.
    if kind is str and (value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)):
        return value
    raise LookupError
