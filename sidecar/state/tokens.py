"""JavaScript source as tokens: as much lexing as telling names from the text of strings, regexes and comments needs."""

from __future__ import annotations

import re
from typing import NamedTuple

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
