"""What quotes, backslashes, backticks and dollars make of the holes inside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.state.shell_frame import Frame
from sidecar.state.shell_reading import NAME, Context, Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.state.shell_words import Cell

_IN_BRACES = "a value inside ${…} is protected only as a default, as in ${name:-{{ … }}}"
_ESCAPED = "the character before {{ would change what stands for the value; leave it out or quote it"
_INDIRECT = "the shell evaluates the value in ${!…} and ${…@P}"
_UNCLEAR = "here $(( may begin arithmetic or a command; write $( ( with a blank"


def single(r: Reading) -> None:
    _quotes(r, Context.SINGLE)


def double(r: Reading) -> None:
    _quotes(r, Context.DOUBLE)


def _quotes(r: Reading, context: Context) -> None:
    word = r.word()
    word.plain, word.quoted = False, True
    r.at += 1
    end = '"' if context is Context.DOUBLE else "'"
    while r.at < len(r.cells):
        cell = r.cells[r.at]
        if cell == end:
            r.at += 1
            return
        if cell == "\\" and context is not Context.SINGLE:
            backslash(r)
        elif context is Context.DOUBLE and cell in ("$", "`"):
            dollar(r, quoted=True) if cell == "$" else backticks(r, quoted=True)
        else:
            r.at += 1
            word.cells.append(cell)
            if isinstance(cell, int):
                r.mark(cell, context)


def backslash(r: Reading) -> None:
    following = r.peek(1)
    r.at += 2
    if following == "\n":
        return
    word = r.word()
    word.plain = False
    if isinstance(following, int):
        r.mark(following, Context.BARE)
        r.places[following].why = _ESCAPED
    word.cells.append(following)


def backticks(r: Reading, quoted: bool = False) -> None:
    """What stands between backticks is read on its own, after one level of backslashes is taken off."""
    word = r.word()
    escapable = ("$", "`", "\\", '"') if quoted else ("$", "`", "\\")
    inner: list[Cell] = []
    r.at += 1
    while r.at < len(r.cells) and r.cells[r.at] != "`":
        if r.cells[r.at] == "\\" and r.peek(1) in escapable:
            r.at += 1
        elif r.cells[r.at] == "\\" and r.peek(1) is not None:
            inner.append("\\")
            r.at += 1
        inner.append(r.cells[r.at])
        r.at += 1
    r.at += 1
    part = Reading(inner, r.places, r.quoted, r.flow, r.read_list, r.depth, r.arithmetic, backticks=True)
    r.nested(word, lambda: r.read_list(part, None))


def dollar(r: Reading, quoted: bool = False) -> None:
    word, following = r.word(), r.peek(1)
    if following in ("'", '"') and not quoted:
        r.at += 1
        return _quotes(r, Context.ANSI if following == "'" else Context.DOUBLE)
    if following in ("(", "{", "["):
        word.plain = False
        r.at += 2
        return r.nested(word, lambda: _substitution(r, str(following), quoted))
    r.at += 1
    if isinstance(following, int):
        r.mark(following, Context.DOUBLE if quoted else Context.BARE)
        r.places[following].why = _ESCAPED
        word.cells.append(following)
        r.at += 1
    elif isinstance(following, str) and (NAME.match(following) or following in "@*#?$!-"):
        letter = NAME.match(following) and not following.isdigit()  # `$12` is `$1` and a 2
        name = r.name() if letter else following
        r.at += not letter
        word.plain = False
        word.cells.append(r.flow.mention(name, number=r.arithmetic > 0))
    else:
        word.cells.append("$")
    return None


def _substitution(r: Reading, opener: str, quoted: bool) -> None:
    if opener == "{":
        _braces(r, quoted)
    elif opener == "[":
        arithmetic(r, "]")
    elif r.peek() == "(":
        r.at += 1
        arithmetic(r, "))")
    else:
        r.read_list(r, ")")


def arithmetic(r: Reading, closer: str) -> None:
    """bash evaluates a variable's content here, and a substitution's output, so that only numbers are safe."""
    before, depth = set(r.places), 0
    outer, r.frame = r.frame, Frame()
    r.arithmetic += 1
    while r.at < len(r.cells):
        cell = r.cells[r.at]
        if depth == 0 and r.follows(closer):
            r.at += len(closer)
            break
        if depth == 0 and cell == ")":
            for hole in [hole for hole in r.places if hole not in before]:
                r.places[hole].why = _UNCLEAR
            r.at += 1
            break
        if isinstance(cell, int):
            r.mark(cell, Context.ARITHMETIC)
        if cell in ("$", "`"):
            dollar(r, quoted=True) if cell == "$" else backticks(r, quoted=True)
            continue
        if name := r.name():
            r.bare_name(name)
            continue
        depth += {"(": 1, ")": -1}.get(str(cell), 0)
        r.at += 1
    r.arithmetic -= 1
    r.frame = outer


def _braces(r: Reading, quoted: bool) -> None:
    name, indirect = _parameter(r)
    colon = r.peek() == ":"
    is_default = bool(name) and not indirect and r.peek(1 if colon else 0) in ("-", "+", "=", "?")
    evaluated = not is_default and (colon or r.peek() == "[")  # an offset, a subscript: arithmetic
    before, mentions, toggled = set(r.places), len(r.flow.mentions), False
    outer, r.frame = r.frame, Frame()
    r.arithmetic += evaluated
    while r.at < len(r.cells) and r.cells[r.at] != "}":
        toggled = toggled or (quoted and r.cells[r.at] == '"')
        if evaluated and (bare := r.name()):
            r.bare_name(bare)
            continue
        _brace_piece(r, quoted)
        if toggled or not is_default:
            r.refuse([hole for hole in r.places if hole not in before], _IN_BRACES)
    r.at += 1
    r.arithmetic -= evaluated
    r.frame = outer
    if is_default:  # `=` leaves it in the variable
        r.flow.default(name, [hole for hole in r.places if hole not in before] + r.flow.since(mentions))


def _brace_piece(r: Reading, quoted: bool) -> None:
    cell = r.cells[r.at]
    if cell in ("$", "`"):
        dollar(r, quoted) if cell == "$" else backticks(r, quoted)
    elif isinstance(cell, str) and cell in OPENERS and not (quoted and cell in "'\""):
        OPENERS[cell](r)
    else:
        r.at += 1
        if isinstance(cell, int):
            r.mark(cell, Context.DOUBLE if quoted else Context.BARE)


def _parameter(r: Reading) -> tuple[str, bool]:
    """The variable at the beginning of `${…}`, and whether it is one that has the name of another."""
    cell = r.peek()
    if isinstance(cell, str) and cell in "@*#?$!-" and r.peek(1) in (":", "-", "+", "=", "?"):
        r.at += 1
        return cell, False
    indirect = cell == "!"
    r.at += indirect
    name = r.name()
    if name:
        mention = r.flow.mention(name, number=r.arithmetic > 0)
        if indirect or r.follows("@P"):
            r.flow.is_code(mention, _INDIRECT)
    return name, indirect


OPENERS: dict[str, Callable[[Reading], None]] = {
    "'": single,
    '"': double,
    "`": backticks,
    "$": dollar,
    "\\": backslash,
}
