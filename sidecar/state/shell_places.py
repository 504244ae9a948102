"""Where the holes of a shell command stand: between which quotes, in arithmetic, a comment, a heredoc.

A reader of the shell's grammar, just deep enough for that. A wrong answer never makes a value code, since only the
name of a variable is put into the text; it could make the shell split a value into words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sidecar.state.shell_expansions import OPENERS, arithmetic
from sidecar.state.shell_flow import Flow
from sidecar.state.shell_frame import Frame
from sidecar.state.shell_reading import Context, Place, Reading
from sidecar.state.shell_words import Cell, Word, is_expansion, judge, reads_code

if TYPE_CHECKING:
    from collections.abc import Callable

_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_HEREDOC = (
    "a value inside a heredoc cannot be protected from what reads it; "
    "write printf '%s\\n' {{ … }} | …, or | raw if it is meant so"
)
_TWICE = "bash expands what follows >& a second time; write > {{ … }} 2>&1"
_FED = "the shell behind it would read the value as code; pass it as an argument"


def find_places(cells: list[Cell], quoted: frozenset[int] = frozenset()) -> dict[int, Place]:
    """The place of every hole; `quoted` are those with `| quote`, which another shell may read."""
    places: dict[int, Place] = {}
    flow = Flow()
    _list(Reading(cells, places, quoted, flow, _list), None)
    code, numbers = flow.settle()
    for hole, why in code:
        places[hole].why = places[hole].why or why
    for hole in numbers:
        places[hole].integer = True
    return places


def _list(r: Reading, closer: str | None) -> None:
    outer, r.frame = r.frame, Frame()
    r.deeper()
    while r.at < len(r.cells):
        cell = r.cells[r.at]
        if cell == ")" and not r.frame.in_test:
            _word_end(r)  # it may be the `esac` of `$(case … esac)`
            r.at += 1
            if not r.frame.in_pattern and closer == ")":
                break
            _pattern_end(r)
        elif isinstance(cell, str) and cell in _OPERATORS:
            _OPERATORS[cell](r)
        else:
            _piece(r)
    _command_end(r)
    r.depth -= 1
    r.frame = outer


def _piece(r: Reading) -> None:
    """One more part of the current word."""
    cell = r.cells[r.at]
    if isinstance(cell, str) and cell in OPENERS:
        OPENERS[cell](r)
        return
    r.at += 1
    if isinstance(cell, int):
        r.mark(cell, Context.BARE)
    r.word().cells.append(cell)


def _word_end(r: Reading) -> None:
    word = r.frame.word
    if word is not None and r.frame.redirect.endswith("&"):
        r.refuse([*word.cells, *word.nested], _TWICE)
    elif word is not None and r.frame.redirect == "<<<":
        r.frame.fed += [*word.cells, *word.nested]
    elif word is not None and [each.text for each in r.frame.words] == ["function"]:
        r.flow.functions.add(word.text)
    if r.frame.end_word():
        _judge(r)


def _command_end(r: Reading) -> None:
    _word_end(r)
    r.frame.redirect = ""
    _judge(r)


def _judge(r: Reading) -> None:
    frame = r.frame
    r.flow.command(frame.words)
    for hole, why in judge(frame.words, lambda code, hole: _is_quoted_word(r, code, hole)):
        r.refuse([hole], why)
    if reads_code(frame.words):
        r.refuse(frame.fed, _FED)
    if frame.words and frame.words[0].name in ("echo", "printf"):
        frame.fed = [cell for word in frame.words for cell in (*word.cells, *word.nested)]
    frame.printed, frame.fed = frame.fed, []
    frame.words.clear()


def _is_quoted_word(r: Reading, code: list[Cell], hole: int) -> bool:
    """What only the running shell knows may contain a quote: behind it nothing is certain.

    Nor is a quoted word safe between backticks, which take backslashes off and end at the next backtick.
    """
    if hole not in r.quoted or any(is_expansion(cell) for cell in code[: code.index(hole)]):
        return False
    places: dict[int, Place] = {}
    _list(Reading(code, places, frozenset(), Flow(), _list, r.depth), None)
    place = places.get(hole)
    if place is None or place.context is not Context.BARE or place.backticks or place.why:
        return False
    r.places[hole].read_twice = True
    return True


def _blank(r: Reading) -> None:
    _word_end(r)
    r.at += 1


def _newline(r: Reading) -> None:
    if r.frame.in_test:
        return _blank(r)
    _command_end(r)
    r.at += 1
    for delimiter, strip in r.heredocs:
        _heredoc_body(r, delimiter, strip)
    r.heredocs.clear()
    return None


def _separator(r: Reading) -> None:
    if r.frame.in_test or (r.frame.in_pattern and r.cells[r.at] == "|"):
        return _blank(r)
    _command_end(r)
    start = r.at
    while r.at < len(r.cells) and r.cells[r.at] in (";", "&", "|"):
        r.at += 1
    operator = "".join(str(cell) for cell in r.cells[start : r.at])
    if operator in ("|", "|&"):
        r.frame.fed = r.frame.printed
    if r.frame.cases and operator in (";;", ";&", ";;&"):
        r.frame.cases[-1] = "pattern"
    return None


def _ampersand(r: Reading) -> None:
    if r.peek(1) == ">" and not r.frame.in_test:
        _word_end(r)
        r.at += 1
        return _redirection(r)
    return _separator(r)


def _redirection(r: Reading) -> None:
    if r.frame.in_test:
        return _blank(r)
    if r.peek(1) == "(":
        word, r.at = r.word(), r.at + 2
        return r.nested(word, lambda: _list(r, ")"))
    if r.frame.word is not None and r.frame.word.text.isdigit():
        r.frame.word = None  # the descriptor of `2>`
    _word_end(r)
    start = r.at
    while r.at < len(r.cells) and r.cells[r.at] in ("<", ">", "&", "|", "-") and r.at - start < 3:
        r.at += 1
    operator = "".join(str(cell) for cell in r.cells[start : r.at])
    if operator.startswith("<<") and operator != "<<<":
        r.at = start + (3 if operator == "<<-" else 2)
        _heredoc_delimiter(r, strip=operator == "<<-")
    else:
        r.frame.redirect = operator
    return None


def _parenthesis(r: Reading) -> None:
    if r.frame.in_test or r.frame.in_pattern:
        return _blank(r)
    word = r.frame.word
    if word is not None and (_ARRAY.fullmatch(word.text) or word.text[-1:] in ("?", "*", "+", "@", "!")):
        r.at += 1
        _words_in_parentheses(r, word)
        return None
    starts = word is None and [each.text for each in r.frame.words] in ([], ["for"])
    if r.peek(1) == "(" and starts:
        r.at += 2
        return arithmetic(r, "))")
    if r.peek(1) == ")":
        r.flow.functions.add(word.text if word is not None else "".join(each.text for each in r.frame.words))
    _command_end(r)
    r.at += 1
    _list(r, ")")
    return None


def _words_in_parentheses(r: Reading, outer: Word) -> None:
    """The items of an array, or the patterns of an extended glob: words, but no commands."""
    saved, r.frame = r.frame, Frame()
    while r.at < len(r.cells) and r.cells[r.at] != ")":
        if r.cells[r.at] in (" ", "\t", "\n", "|", "("):
            _blank(r)
        else:
            _piece(r)
    _word_end(r)
    items, r.frame = r.frame.words, saved
    r.at += 1
    for word in items:
        outer.cells.append(None)
        outer.nested.extend(word.holes + word.nested)
        for hole in word.holes + word.nested if word.text.startswith("[") else []:
            r.whole_number(hole)


def _pattern_end(r: Reading) -> None:
    _command_end(r)
    if r.frame.in_pattern:
        r.frame.cases[-1] = "body"


def _hash(r: Reading) -> None:
    if r.frame.word is not None:
        return _piece(r)
    while r.at < len(r.cells) and r.cells[r.at] != "\n":
        cell = r.cells[r.at]
        if isinstance(cell, int):
            r.mark(cell, Context.COMMENT)
        r.at += 1
    return None


def _heredoc_delimiter(r: Reading, *, strip: bool) -> None:
    while r.peek() in (" ", "\t"):
        r.at += 1
    outer, r.frame = r.frame, Frame()
    start = r.at
    while r.at < len(r.cells) and r.cells[r.at] not in (*" \t\n;&|<>()",):
        _piece(r)
    word, r.frame = r.word(), outer
    r.refuse(r.cells[start : r.at], _HEREDOC)
    r.heredocs.append((word.text, strip))


def _heredoc_body(r: Reading, delimiter: str, strip: bool) -> None:
    while r.at < len(r.cells):
        end = next((i for i in range(r.at, len(r.cells)) if r.cells[i] == "\n"), len(r.cells))
        line = r.cells[r.at : end]
        r.at = end + 1
        text = "".join(cell if isinstance(cell, str) else "\0" for cell in line)
        if (text.lstrip("\t") if strip else text) == delimiter:
            return
        for cell in line:
            if isinstance(cell, int):
                r.places[cell] = Place(Context.DOUBLE, why=_HEREDOC)


_OPERATORS: dict[str, Callable[[Reading], None]] = {
    " ": _blank,
    "\t": _blank,
    "\n": _newline,
    ";": _separator,
    "&": _ampersand,
    "|": _separator,
    "<": _redirection,
    ">": _redirection,
    "(": _parenthesis,
    "#": _hash,
}
