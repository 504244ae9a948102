"""Reads JavaScript source without running it: its tokens, where `{{ expressions }}` of a text end, which names an
expression takes from outside."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sidecar.errors import TemplateError

if TYPE_CHECKING:
    from collections.abc import Iterator


_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n\r\u2028\u2029]*|/\*.*?\*/)
      |(?P<word>[^\W\d$][\w$]*|\$[\w$]*|\\u[\w{}]+)
      |(?P<number>[0-9][\w.]*|\.[0-9]\w*)
      |(?P<string>'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")
      |(?P<mark>`|\?\.(?![0-9])|=>|\.\.\.|\+\+|--|[=!]==?|[<>]=|&&=?|\|\|=?|\?\?=?|.)""",
    re.VERBOSE | re.DOTALL,
)
_REGEX = re.compile(r"/(?![*/])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/\w*")
_TEMPLATE_TEXT = re.compile(r"(?:\\.|\$(?!\{)|[^`\\$])*", re.DOTALL)
# A slash after one of these begins a regex; after any other word, or a closing bracket, it divides. `of` is left out:
# it can be a variable, and to take a division for a regex would hide the names and brackets in it.
_BEFORE_REGEX = frozenset(
    ["return", "typeof", "case", "in", "delete", "void", "throw", "new", "else", "do", "instanceof"]
)
_CLOSERS = {")": "(", "]": "[", "}": "{"}


class Token(NamedTuple):
    """One token. `partner`: the index of the other bracket; `around`: that of the bracket it is in; -1: none."""

    kind: str  # word, number, string, regex, template, mark
    text: str
    at: int
    around: int
    partner: int = -1


class Tokens(NamedTuple):
    """The tokens of a source, without spaces and comments. `stray`: a closing bracket that nothing opened, or -1."""

    tokens: list[Token]
    stray: int


def scan(source: str) -> Tokens:
    """All tokens, brackets paired. It never fails: what is not JavaScript is for the engine to say."""
    tokens: list[Token] = []
    open_brackets: list[int] = []
    stray = -1
    at = 0
    while at < len(source):
        if source[at] == "/" and _may_begin_regex(tokens) and (regex := _REGEX.match(source, at)):
            tokens.append(Token("regex", regex[0], at, _last(open_brackets)))
            at = regex.end()
            continue
        match = _TOKEN.match(source, at)
        assert match, "the last alternative takes any character"
        kind, text = str(match.lastgroup), match[0]
        start, at = at, match.end()
        if kind == "space":
            continue
        if text == "`":
            at = _template_text(source, at, start, tokens, open_brackets)
            continue
        tokens.append(Token(kind, text, start, _last(open_brackets)))
        if kind == "mark" and text in "([{":
            open_brackets.append(len(tokens) - 1)
        elif kind == "mark" and text in _CLOSERS:
            if not _close(tokens, open_brackets):
                stray = start if stray < 0 else stray
            elif tokens[tokens[-1].partner].text == "${":
                at = _template_text(source, at, at, tokens, open_brackets)
    return Tokens(tokens, stray)


def _last(open_brackets: list[int]) -> int:
    return open_brackets[-1] if open_brackets else -1


def _may_begin_regex(tokens: list[Token]) -> bool:
    if not tokens:
        return True
    last = tokens[-1]
    if last.kind == "word":
        is_property = len(tokens) > 1 and tokens[-2].text in (".", "?.")
        return last.text in _BEFORE_REGEX and not is_property
    return last.kind == "mark" and last.text not in (")", "]", "}", "++", "--")


def _template_text(source: str, at: int, start: int, tokens: list[Token], open_brackets: list[int]) -> int:
    """Read a template literal on to its end, or to the next `${`, whose inside is read as any other code."""
    match = _TEMPLATE_TEXT.match(source, at)
    end = match.end() if match else at
    tokens.append(Token("template", source[start:end], start, _last(open_brackets)))
    if source.startswith("${", end):
        tokens.append(Token("mark", "${", end, _last(open_brackets)))
        open_brackets.append(len(tokens) - 1)
        return end + 2
    return end + 1


def _close(tokens: list[Token], open_brackets: list[int]) -> bool:
    closer = len(tokens) - 1
    if not open_brackets or tokens[open_brackets[-1]].text[-1] != _CLOSERS[tokens[closer].text]:
        return False
    opener = open_brackets.pop()
    tokens[closer] = tokens[closer]._replace(partner=opener, around=tokens[opener].around)
    tokens[opener] = tokens[opener]._replace(partner=closer)
    return True


def line_and_column(source: str, offset: int) -> tuple[int, int]:
    """Line and column of an offset, both from 1."""
    return source.count("\n", 0, offset) + 1, offset - source.rfind("\n", 0, offset)


# Where the `{{ expressions }}` of a text begin and end, and which filters stand at their end.
#
# An expression is JavaScript, so its end is found by reading JavaScript: a `}}` inside a string, a template literal,
# a regular expression or nested braces does not end it, and a `|` there is no filter.
#


FILTERS = frozenset({"path_to_key", "json", "quote", "raw"})

_PLACEHOLDER_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n\r\u2028\u2029]*|/\*[\s\S]*?\*/)
      | (?P<string>"(?:[^"\\\n]|\\[\s\S])*"|'(?:[^'\\\n]|\\[\s\S])*')
      | (?P<word>[\w$\#]+)
      | (?P<mark>\|\|=?|\|=|\+\+|--|[\s\S])""",
    re.VERBOSE,
)
_PLACEHOLDER_REGEX = re.compile(r"/(?![*/])(?:[^/\\\[\n]|\\[^\n]|\[(?:[^\]\\\n]|\\[^\n])*\])+/[\w$]*")
_PLACEHOLDER_TEMPLATE_TEXT = re.compile(r"(?:[^`\\$]|\\[\s\S]|\$(?!\{))*")
_PLACEHOLDER_CLOSERS = {"}": ("{", "${"), ")": ("(",), "]": ("[",)}
# After one of these words a slash begins a regular expression; after any other word it divides.
_PLACEHOLDER_BEFORE_REGEX = frozenset(
    ["return", "typeof", "case", "in", "of", "delete", "void", "throw", "new", "instanceof", "else", "do", "await"]
)
_AFTER_VALUE = frozenset({")", "]", "}", "`", "++", "--"})


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One `{{ expression | filter }}` of a text; `offset` to `end` is all of it, braces included."""

    offset: int
    end: int
    source: str
    source_offset: int
    filters: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The expression for a message: one line, and not a long one."""
        line = " ".join(self.source.split())
        return f"{{{{ {line if len(line) <= 60 else line[:57] + '…'} }}}}"


def split_template(text: str) -> tuple[str | Placeholder, ...]:
    """The text as an alternation of plain pieces and holes; a text without `{{` is one plain piece."""
    parts: list[str | Placeholder] = []
    done = 0
    while (start := text.find("{{", done)) >= 0:
        if start > done:
            parts.append(text[done:start])
        hole = _Expression(text, start).read()
        parts.append(hole)
        done = hole.end
    if done < len(text) or not parts:
        parts.append(text[done:])
    return tuple(parts)


class _Expression:
    """Reads one expression token by token; nesting is kept on a list, so that depth costs no Python stack."""

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.start = start
        self.at = start + 2
        self.open: list[tuple[str, int]] = []
        self.tokens: list[tuple[str, int]] = []

    def read(self) -> Placeholder:
        while self.at < len(self.text):
            if self.open and self.open[-1][0] == "`":
                self._template_text()
            elif self.text.startswith("}}", self.at) and not self.open:
                return self._hole()
            else:
                self._token()
        if self.open:
            what, where = self.open[-1]
            raise TemplateError(f"the {what} is not closed before the text ends", where)
        raise TemplateError("{{ has no }}; to write the braces themselves, write {{ '{{' }}", self.start)

    def _token(self) -> None:
        slash = self.text[self.at] == "/"
        match = (
            _PLACEHOLDER_REGEX.match(self.text, self.at) if slash and self._regex_may_begin() else None
        ) or _PLACEHOLDER_TOKEN.match(self.text, self.at)
        assert match is not None  # the last alternative takes any character
        token, start = match.group(), self.at
        self.at = match.end()
        if match.lastgroup == "blank":
            return
        if token in ("'", '"'):
            raise TemplateError("the string that begins here does not end on its line", start)
        if token in ("{", "(", "[", "`"):
            self.open.append((token, start))
        elif token in _PLACEHOLDER_CLOSERS:
            self._close(token, start)
        self.tokens.append((token, start))

    def _close(self, token: str, start: int) -> None:
        if not self.open:
            raise TemplateError(f"the {token} closes nothing", start)
        opener, where = self.open.pop()
        if opener not in _PLACEHOLDER_CLOSERS[token]:
            raise TemplateError(f"the {opener} is not closed before this {token}", where)

    def _template_text(self) -> None:
        match = _PLACEHOLDER_TEMPLATE_TEXT.match(self.text, self.at)
        assert match is not None
        end = match.end()
        if self.text.startswith("${", end):
            self.open.append(("${", end))
            self.tokens.append(("${", end))
            self.at = end + 2
        elif self.text.startswith("`", end):
            self.open.pop()
            self.tokens.append(("`", end))
            self.at = end + 1
        else:
            self.at = len(self.text)

    def _regex_may_begin(self) -> bool:
        if not self.tokens:
            return True
        last = self.tokens[-1][0]
        if re.match(r"[\w$#]", last):
            is_member = len(self.tokens) > 1 and self.tokens[-2][0] == "."
            return last in _PLACEHOLDER_BEFORE_REGEX and not is_member
        return last == "/" or (last not in _AFTER_VALUE and last[0] not in "'\"/")

    def _hole(self) -> Placeholder:
        stop, tokens, filters = self.at, self.tokens, []
        while len(tokens) >= 2 and tokens[-1][0] in FILTERS and tokens[-2][0] == "|":
            filters.append(tokens.pop()[0])
            stop = tokens.pop()[1]
        if not tokens:
            raise TemplateError("there is no expression between {{ and }}", self.start)
        inner = self.text[self.start + 2 : stop]
        source = inner.strip()
        lead = len(inner) - len(inner.lstrip())
        return Placeholder(self.start, self.at + 2, source, self.start + 2 + lead, tuple(reversed(filters)))


# Which names a piece of JavaScript takes from outside: the words it mentions, less those that it declares itself.


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


def mentioned_names(tokens: list[Token]) -> tuple[str, ...]:
    """Every name that may have to be bound: too many rather than too few, since an unbound one is an error."""
    words = {
        token.text
        for index, token in enumerate(tokens)
        if token.kind == "word" and "\\" not in token.text and not _is_property(tokens, index)
    }
    return tuple(sorted(words - RESERVED - GLOBALS))


def free_names(tokens: list[Token]) -> tuple[str, ...]:
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


def _is_method_word(tokens: list[Token], index: int) -> bool:
    following = index + 1 < len(tokens) and tokens[index + 1].kind == "word"
    if tokens[index].text in ("get", "set"):
        return following and _text_at(tokens, index - 1) in ("{", ",", "}", ";")
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
