"""Reads JavaScript source without running it: its tokens, where the `{{ expressions }}` of a text end, and which names
an expression takes from outside."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sidecar.errors import TemplateError

if TYPE_CHECKING:
    from collections.abc import Iterator

FILTERS = frozenset({"path_to_key", "json", "quote", "raw"})

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n\r\u2028\u2029]*|/\*.*?\*/)
      |(?P<word>[^\W\d$][\w$]*|\$[\w$]*|\\u(?:\{\w*\}|\w)[\w$]*)
      |(?P<number>[0-9][\w.]*|\.[0-9]\w*)
      |(?P<string>'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")
      |(?P<mark>`|\?\.(?![0-9])|=>|\.\.\.|\+\+|--|[=!]==?|[<>]=|&&=?|\|\|=?|\?\?=?|.)""",
    re.VERBOSE | re.DOTALL,
)
_REGEX = re.compile(r"/(?![*/])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/[\w$]*")
_TEMPLATE_TEXT = re.compile(r"(?:\\.|\$(?!\{)|[^`\\$])*", re.DOTALL)
# A slash after one of these begins a regex; after any other word, or a closing bracket, it divides.
_BEFORE_REGEX = frozenset(
    ["return", "typeof", "case", "in", "delete", "void", "throw", "new", "else", "do", "instanceof", "await"]
)
_CLOSERS = {")": "(", "]": "[", "}": "{"}


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


class Token(NamedTuple):
    """One token. `partner`: the index of the other bracket; `around`: that of the bracket it is in; -1: none."""

    kind: str  # word, number, string, regex, template, mark
    text: str
    at: int
    around: int
    partner: int = -1


class ScannedTokens(NamedTuple):
    """The tokens of a source, without spaces and comments. `stray`: a closing bracket that nothing opened, or -1."""

    tokens: list[Token]
    stray: int


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One `{{ expression | filter }}`; `text` is all of it, braces included, as it stands at the offset of its text."""

    text: str
    offset: int
    source: str
    source_offset: int
    filters: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The expression for a message: one line, and not a long one."""
        line = " ".join(self.source.split())
        return f"{{{{ {line if len(line) <= 60 else line[:57] + '…'} }}}}"


def scan(source: str) -> ScannedTokens:
    """All tokens, brackets paired. It never fails: what is no JavaScript is for the engine to refuse."""
    lexer = _Lexer(source, 0, strict=False)
    while lexer.at < len(source):
        lexer.read_token()
    return ScannedTokens(lexer.tokens, lexer.stray)


def split_template(text: str) -> tuple[str | Placeholder, ...]:
    """The text as an alternation of plain pieces and placeholders; a text without `{{` is one plain piece."""
    parts: list[str | Placeholder] = []
    done = 0
    while (start := text.find("{{", done)) >= 0:
        if start > done:
            parts.append(text[done:start])
        placeholder = _read_placeholder(text, start)
        parts.append(placeholder)
        done = start + len(placeholder.text)
    if done < len(text) or not parts:
        parts.append(text[done:])
    return tuple(parts)


def mentioned_names(tokens: list[Token]) -> tuple[str, ...]:
    """Every name that may have to be bound: too many rather than too few, since an unbound one is an error."""
    words = {
        token.text
        for index, token in enumerate(tokens)
        if token.kind == "word" and "\\" not in token.text and not _is_property(tokens, index)
    }
    return tuple(sorted(words - RESERVED - GLOBALS))


def free_names(tokens: list[Token]) -> tuple[str, ...]:
    """The names that come from outside, for messages; sorted."""
    regions: dict[str, list[_Region]] = {}
    for region in _regions(tokens):
        regions.setdefault(region.name, []).append(region)
    found = set()
    for index, token in enumerate(tokens):
        if token.kind != "word" or token.text in RESERVED or token.text in GLOBALS or "\\" in token.text:
            continue
        if (
            _is_property(tokens, index)
            or _is_key(tokens, index)
            or _is_accessor_word(tokens, index)
            or _is_of(tokens, index)
        ):
            continue
        if not any(region.first <= index <= region.last for region in regions.get(token.text, ())):
            found.add(token.text)
    return tuple(sorted(found))


def line_and_column(source: str, offset: int) -> tuple[int, int]:
    """Line and column of an offset, both from 1."""
    return source.count("\n", 0, offset) + 1, offset - source.rfind("\n", 0, offset)


def _read_placeholder(text: str, start: int) -> Placeholder:
    """The expression is JavaScript: a `}}` inside a string, a regex or brackets does not end it."""
    lexer = _Lexer(text, start + 2, strict=True)
    tokens = lexer.tokens
    while lexer.open or not text.startswith("}}", lexer.at):
        if lexer.at < len(text):
            lexer.read_token()
        elif lexer.open:
            opener = tokens[lexer.open[-1]]
            raise TemplateError(f"the {opener.text} is not closed before the text ends", opener.at)
        else:
            raise TemplateError("{{ has no }}; to write the braces themselves, write {{ '{{' }}", start)
    stop = lexer.at
    filters: list[str] = []
    while len(tokens) >= 2 and tokens[-1].text in FILTERS and (tokens[-2].kind, tokens[-2].text) == ("mark", "|"):
        filters.insert(0, tokens.pop().text)
        stop = tokens.pop().at
    if not tokens:
        raise TemplateError("there is no expression between {{ and }}", start)
    inner = text[start + 2 : stop]
    lead = len(inner) - len(inner.lstrip())
    return Placeholder(text[start : lexer.at + 2], start, inner.strip(), start + 2 + lead, tuple(filters))


class _Lexer:
    """Reads one token after the other. `strict`: what is not closed, or not opened, is a TemplateError at once.

    Nesting is kept in lists, so that depth costs no Python stack.
    """

    def __init__(self, source: str, at: int, *, strict: bool) -> None:
        self.at = at
        self.tokens: list[Token] = []
        self.open: list[int] = []  # the brackets not closed yet, by the indexes of their tokens
        self.stray = -1
        self._source = source
        self._strict = strict
        self._templates: list[int] = []  # the template literals not closed yet, by offset

    def read_token(self) -> None:
        start = self.at
        if self._source[start] == "/" and self._may_begin_regex() and (regex := _REGEX.match(self._source, start)):
            self.at = regex.end()
            self._add("regex", regex[0], start)
            return
        match = _TOKEN.match(self._source, start)
        assert match, "the last alternative takes any character"
        kind, text = str(match.lastgroup), match[0]
        self.at = match.end()
        if text == "`":
            self._templates.append(start)
            self._read_template_text(start)
        elif kind != "space":
            self._add(kind, text, start)
        if kind == "mark" and text in ("(", "[", "{"):
            self.open.append(len(self.tokens) - 1)
        elif kind == "mark" and text in _CLOSERS:
            self._close(text, start)
        elif kind == "mark" and text in ("'", '"'):
            self._refuse("the string that begins here does not end on its line", start)

    def _add(self, kind: str, text: str, start: int) -> None:
        self.tokens.append(Token(kind, text, start, self.open[-1] if self.open else -1))

    def _may_begin_regex(self) -> bool:
        if not self.tokens:
            return True
        last = self.tokens[-1]
        if last.kind == "word":
            is_keyword = last.text in _BEFORE_REGEX or _is_of(self.tokens, len(self.tokens) - 1)
            return is_keyword and not _is_property(self.tokens, len(self.tokens) - 1)
        return last.kind == "mark" and last.text not in (")", "]", "}", "++", "--")

    def _read_template_text(self, start: int) -> None:
        """Reads a template literal on to its end, or to the next `${`, whose inside is read as any other code."""
        match = _TEMPLATE_TEXT.match(self._source, self.at)
        end = match.end() if match else self.at
        self._add("template", self._source[start:end], start)
        if self._source.startswith("${", end):
            self._add("mark", "${", end)
            self.open.append(len(self.tokens) - 1)
            self.at = end + 2
            return
        template = self._templates.pop()
        if not self._source.startswith("`", end):
            self._refuse("the template text has no closing backtick", template)
        self.at = end + 1

    def _close(self, text: str, start: int) -> None:
        opener = self.tokens[self.open[-1]] if self.open else None
        if opener is None or opener.text[-1] != _CLOSERS[text]:
            self.stray = start if self.stray < 0 else self.stray
            if opener is None:
                self._refuse(f"unmatched `{text}`" + ("; did you mean `}}`?" if text == "}" else ""), start)
            else:
                self._refuse(f"`{opener.text}` is not closed before this `{text}`", opener.at)
            return
        first, last = self.open.pop(), len(self.tokens) - 1
        self.tokens[last] = self.tokens[last]._replace(partner=first, around=opener.around)
        self.tokens[first] = opener._replace(partner=last)
        if opener.text == "${":
            self._read_template_text(self.at)

    def _refuse(self, message: str, at: int) -> None:
        if self._strict:
            raise TemplateError(message, at)


class _Region(NamedTuple):
    """A declared name and the tokens among which it hides one from outside."""

    name: str
    first: int
    last: int


def _text_at(tokens: list[Token], index: int) -> str:
    """What stands there; empty beyond the ends, and a placeholder for what is no word and no mark."""
    if not 0 <= index < len(tokens):
        return ""
    token = tokens[index]
    return token.text if token.kind in ("word", "mark") else "<literal>"


def _is_property(tokens: list[Token], index: int) -> bool:
    return _text_at(tokens, index - 1) in (".", "?.", "#")


def _is_key(tokens: list[Token], index: int) -> bool:
    """`name:` or `name() {}` inside an object literal or a class."""
    before, after = _text_at(tokens, index - 1), _text_at(tokens, index + 1)
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
    return closer >= 0 and _text_at(tokens, closer + 1) == "{"


def _is_accessor_word(tokens: list[Token], index: int) -> bool:
    following = index + 1 < len(tokens) and tokens[index + 1].kind == "word"
    return tokens[index].text in ("get", "set") and following and _text_at(tokens, index - 1) in ("{", ",", "}", ";")


def _is_of(tokens: list[Token], index: int) -> bool:
    """The `of` of `for (x of y)`: it stands after a name or a pattern, where a name of its own cannot stand."""
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
            at = index + 2 if _text_at(tokens, index + 1) == "*" else index + 1
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
    if _text_at(tokens, at) == "{":
        return tokens[at].partner if tokens[at].partner >= 0 else len(tokens)
    questions = 0
    while at < len(tokens):
        text = _text_at(tokens, at)
        if text in (",", ";", ")", "]", "}") or (text == ":" and questions == 0):
            return at
        questions += (text == "?") - (text == ":")
        at = _step(tokens, at)
    return at


def _parameters(tokens: list[Token], opener: int) -> Iterator[_Region]:
    """Those of `function`, of a method and of `catch`; `if (x) {` and its like declare nothing."""
    if _text_at(tokens, opener - 1) in ("if", "while", "for", "switch", "with"):
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
        while end < len(tokens) and _text_at(tokens, end) not in (",", ";", ")", "]", "}", "of", "in"):
            end = _step(tokens, end)
        if _text_at(tokens, end) != ",":
            return
        at = end + 1


def _pattern(tokens: list[Token], at: int, end: int) -> Iterator[str]:
    """The names that a list of parameters or a destructuring pattern declares; defaults are expressions, not names."""
    while at < end:
        token = tokens[at]
        if token.kind == "mark" and token.text in ("{", "[") and token.partner >= 0:
            if _text_at(tokens, token.partner + 1) != ":":  # else a computed key
                yield from _pattern(tokens, at + 1, token.partner)
        elif token.kind == "word" and _text_at(tokens, at + 1) != ":":
            yield token.text
        elif token.text == "=":
            while at < end and _text_at(tokens, at) != ",":
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
