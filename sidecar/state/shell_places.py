"""Where the holes of a shell command stand: between which quotes, in arithmetic, a comment, a heredoc.

A reader of the shell's grammar, just deep enough for that. A wrong answer never makes a value code, since only the
name of a variable is put into the text; it could make the shell split a value into words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from sidecar.errors import SidecarError
from sidecar.state.shell_frame import Frame
from sidecar.state.shell_words import Cell, Word, judge

if TYPE_CHECKING:
    from collections.abc import Callable

_DEPTH = 60
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_]", re.ASCII)
_HEREDOC = (
    "a value inside a heredoc cannot be protected from what reads it; "
    "write printf '%s\\n' {{ … }} | …, or | raw if it is meant so"
)
_IN_BRACES = "a value inside ${…} is protected only as a default, as in ${name:-{{ … }}}"
_ESCAPED = "the character before {{ would change what stands for the value; leave it out or quote it"
_UNCLEAR = "here $(( may begin arithmetic or a command; write $( ( with a blank"


class ShellError(SidecarError):
    """A command cannot be made safe with the values it has."""


class Context(Enum):
    """Between which quotes a hole stands."""

    BARE = "bare"
    SINGLE = "'"
    ANSI = "$'"
    DOUBLE = '"'
    ARITHMETIC = "$(("
    COMMENT = "#"


@dataclass(slots=True)
class Place:
    """Where one hole stands; `integer`: only a whole number is safe; `why`: no value is."""

    context: Context
    integer: bool = False
    backticks: bool = False
    read_twice: bool = False  # with `| quote`: another shell takes the quotes off, so they have to reach it
    why: str | None = None


def find_places(cells: list[Cell], quoted: frozenset[int] = frozenset()) -> dict[int, Place]:
    """The place of every hole; `quoted` are those with `| quote`, which another shell may read."""
    places: dict[int, Place] = {}
    _Reader(cells, places, quoted).read()
    return places


class _Reader:
    def __init__(
        self,
        cells: list[Cell],
        places: dict[int, Place],
        quoted: frozenset[int],
        *,
        depth: int = 0,
        arithmetic: int = 0,
        backticks: bool = False,
    ) -> None:
        self.cells = cells
        self.places = places
        self.quoted = quoted
        self.depth = depth
        self.arithmetic = arithmetic
        self.backticks = backticks
        self.at = 0
        self.heredocs: list[tuple[str, bool]] = []
        self.frame = Frame()
        self.openers: dict[str, Callable[[], None]] = {
            "'": self._single,
            '"': self._double,
            "`": self._backticks,
            "$": self._dollar,
            "\\": self._backslash,
        }
        self.operators: dict[str, Callable[[], None]] = {
            " ": self._blank,
            "\t": self._blank,
            "\n": self._newline,
            ";": self._separator,
            "&": self._ampersand,
            "|": self._separator,
            "<": self._redirection,
            ">": self._redirection,
            "(": self._parenthesis,
            "#": self._hash,
        }

    def read(self) -> None:
        self._list(None)

    # --- the parts of a list of commands

    def _list(self, closer: str | None) -> None:
        outer, self.frame = self.frame, Frame()
        self._deeper()
        while self.at < len(self.cells):
            cell = self.cells[self.at]
            if cell == ")" and not self.frame.in_test:
                self._word_end()  # it may be the `esac` of `$(case … esac)`
                self.at += 1
                if not self.frame.in_pattern and closer == ")":
                    break
                self._pattern_end()
            elif isinstance(cell, str) and cell in self.operators:
                self.operators[cell]()
            else:
                self._piece()
        self._command_end()
        self.depth -= 1
        self.frame = outer

    def _piece(self) -> None:
        """One more part of the current word."""
        cell = self.cells[self.at]
        if isinstance(cell, str) and cell in self.openers:
            self.openers[cell]()
            return
        self.at += 1
        if isinstance(cell, int):
            self._mark(cell, Context.BARE)
        self._word().cells.append(cell)

    def _word(self) -> Word:
        return self.frame.current()

    def _word_end(self) -> None:
        if self.frame.end_word():
            self._judge()

    def _command_end(self) -> None:
        self._word_end()
        self.frame.redirect = False
        self._judge()

    def _judge(self) -> None:
        for hole, why in judge(self.frame.words, self._is_quoted_word):
            if hole in self.places:
                self.places[hole].why = self.places[hole].why or why
        self.frame.words.clear()

    def _is_quoted_word(self, code: list[Cell], hole: int) -> bool:
        """What only the running shell knows may contain a quote: behind it nothing is certain.

        Nor is a quoted word safe between backticks, which take backslashes off and end at the next backtick.
        """
        if hole not in self.quoted or None in code[: code.index(hole)]:
            return False
        places: dict[int, Place] = {}
        _Reader(code, places, frozenset(), depth=self.depth).read()
        place = places.get(hole)
        if place is None or place.context is not Context.BARE or place.backticks or place.why:
            return False
        self.places[hole].read_twice = True
        return True

    # --- operators

    def _blank(self) -> None:
        self._word_end()
        self.at += 1

    def _newline(self) -> None:
        if self.frame.in_test:
            return self._blank()
        self._command_end()
        self.at += 1
        for delimiter, strip in self.heredocs:
            self._heredoc_body(delimiter, strip)
        self.heredocs.clear()
        return None

    def _separator(self) -> None:
        if self.frame.in_test or (self.frame.in_pattern and self.cells[self.at] == "|"):
            return self._blank()
        self._command_end()
        start = self.at
        while self.at < len(self.cells) and self.cells[self.at] in (";", "&", "|"):
            self.at += 1
        operator = "".join(str(cell) for cell in self.cells[start : self.at])
        if self.frame.cases and operator in (";;", ";&", ";;&"):
            self.frame.cases[-1] = "pattern"
        return None

    def _ampersand(self) -> None:
        if self._peek(1) == ">" and not self.frame.in_test:
            self._word_end()
            self.at += 1
            return self._redirection()
        return self._separator()

    def _redirection(self) -> None:
        if self.frame.in_test:
            return self._blank()
        if self._peek(1) == "(":
            word, self.at = self._word(), self.at + 2
            return self._nested(word, lambda: self._list(")"))
        if self.frame.word is not None and self.frame.word.text.isdigit():
            self.frame.word = None  # the descriptor of `2>`
        self._word_end()
        start = self.at
        while self.at < len(self.cells) and self.cells[self.at] in ("<", ">", "&", "|", "-") and self.at - start < 3:
            self.at += 1
        operator = "".join(str(cell) for cell in self.cells[start : self.at])
        if operator.startswith("<<") and operator != "<<<":
            self.at = start + (3 if operator == "<<-" else 2)
            self._heredoc_delimiter(strip=operator == "<<-")
        else:
            self.frame.redirect = True
        return None

    def _parenthesis(self) -> None:
        if self.frame.in_test or self.frame.in_pattern:
            return self._blank()
        word = self.frame.word
        if word is not None and (_ARRAY.fullmatch(word.text) or word.text[-1:] in ("?", "*", "+", "@", "!")):
            self.at += 1
            self._words_in_parentheses(word)
            return None
        starts = word is None and [each.text for each in self.frame.words] in ([], ["for"])
        if self._peek(1) == "(" and starts:
            self.at += 2
            return self._arithmetic("))")
        self._command_end()
        self.at += 1
        self._list(")")
        return None

    def _words_in_parentheses(self, outer: Word) -> None:
        """The items of an array, or the patterns of an extended glob: words, but no commands."""
        saved, self.frame = self.frame, Frame()
        while self.at < len(self.cells) and self.cells[self.at] != ")":
            if self.cells[self.at] in (" ", "\t", "\n", "|", "("):
                self._blank()
            else:
                self._piece()
        self._word_end()
        items, self.frame = self.frame.words, saved
        self.at += 1
        for word in items:
            outer.cells.append(None)
            outer.nested.extend(word.holes + word.nested)
            for hole in word.holes if word.text.startswith("[") else []:
                self.places[hole].integer = True

    def _pattern_end(self) -> None:
        self._command_end()
        if self.frame.in_pattern:
            self.frame.cases[-1] = "body"

    def _hash(self) -> None:
        if self.frame.word is not None:
            return self._piece()
        while self.at < len(self.cells) and self.cells[self.at] != "\n":
            cell = self.cells[self.at]
            if isinstance(cell, int):
                self._mark(cell, Context.COMMENT)
            self.at += 1
        return None

    # --- heredocs

    def _heredoc_delimiter(self, *, strip: bool) -> None:
        while self._peek() in (" ", "\t"):
            self.at += 1
        outer, self.frame = self.frame, Frame()
        start = self.at
        while self.at < len(self.cells) and self.cells[self.at] not in (*" \t\n;&|<>()",):
            self._piece()
        word, self.frame = self._word(), outer
        self._refuse(self.cells[start : self.at], _HEREDOC)
        self.heredocs.append((word.text, strip))

    def _heredoc_body(self, delimiter: str, strip: bool) -> None:
        while self.at < len(self.cells):
            end = next((i for i in range(self.at, len(self.cells)) if self.cells[i] == "\n"), len(self.cells))
            line = self.cells[self.at : end]
            self.at = end + 1
            text = "".join(cell if isinstance(cell, str) else "\0" for cell in line)
            if (text.lstrip("\t") if strip else text) == delimiter:
                return
            for cell in line:
                if isinstance(cell, int):
                    self.places[cell] = Place(Context.DOUBLE, why=_HEREDOC)

    # --- quotes

    def _single(self) -> None:
        self._quotes(Context.SINGLE)

    def _double(self) -> None:
        self._quotes(Context.DOUBLE)

    def _quotes(self, context: Context) -> None:
        word = self._word()
        word.plain, word.quoted = False, True
        self.at += 1
        end = '"' if context is Context.DOUBLE else "'"
        while self.at < len(self.cells):
            cell = self.cells[self.at]
            if cell == end:
                self.at += 1
                return
            if cell == "\\" and context is not Context.SINGLE:
                self._backslash()
            elif context is Context.DOUBLE and cell in ("$", "`"):
                self._dollar(quoted=True) if cell == "$" else self._backticks(quoted=True)
            else:
                self.at += 1
                word.cells.append(cell)
                if isinstance(cell, int):
                    self._mark(cell, context)

    def _backslash(self) -> None:
        following = self._peek(1)
        self.at += 2
        if following == "\n":
            return
        word = self._word()
        word.plain = False
        if isinstance(following, int):
            self._mark(following, Context.BARE)
            self.places[following].why = _ESCAPED
        word.cells.append(following)

    def _backticks(self, quoted: bool = False) -> None:
        """What stands between backticks is read on its own, after one level of backslashes is taken off."""
        word = self._word()
        escapable = ("$", "`", "\\", '"') if quoted else ("$", "`", "\\")
        inner: list[Cell] = []
        self.at += 1
        while self.at < len(self.cells) and self.cells[self.at] != "`":
            if self.cells[self.at] == "\\" and self._peek(1) in escapable:
                self.at += 1
            elif self.cells[self.at] == "\\" and self._peek(1) is not None:
                inner.append("\\")
                self.at += 1
            inner.append(self.cells[self.at])
            self.at += 1
        self.at += 1
        reader = _Reader(inner, self.places, self.quoted, depth=self.depth, arithmetic=self.arithmetic, backticks=True)
        self._nested(word, reader.read)

    # --- what begins with a dollar

    def _dollar(self, quoted: bool = False) -> None:
        word, following = self._word(), self._peek(1)
        if following in ("'", '"') and not quoted:
            self.at += 1
            return self._quotes(Context.ANSI if following == "'" else Context.DOUBLE)
        if following in ("(", "{", "["):
            word.plain = False
            self.at += 2
            return self._nested(word, lambda: self._substitution(str(following), quoted))
        self.at += 1
        if isinstance(following, int):
            self._mark(following, Context.DOUBLE if quoted else Context.BARE)
            self.places[following].why = _ESCAPED
            word.cells.append(following)
            self.at += 1
        elif isinstance(following, str) and (_NAME.match(following) or following in "@*#?$!-"):
            self.at += 1
            while _NAME.match(following) and isinstance(cell := self._peek(), str) and _NAME.match(cell):
                self.at += 1
            word.plain = False
            word.cells.append(None)
        else:
            word.cells.append("$")
        return None

    def _substitution(self, opener: str, quoted: bool) -> None:
        if opener == "{":
            self._braces(quoted)
        elif opener == "[":
            self._arithmetic("]")
        elif self._peek() == "(":
            self.at += 1
            self._arithmetic("))")
        else:
            self._list(")")

    def _nested(self, word: Word, read: Callable[[], None]) -> None:
        """Reads a substitution; to the word around it, it is something that only the running shell knows."""
        before = set(self.places)
        self._deeper()
        read()
        self.depth -= 1
        word.cells.append(None)
        word.nested.extend(hole for hole in self.places if hole not in before)

    def _arithmetic(self, closer: str) -> None:
        """bash evaluates a variable's content here, and a substitution's output, so that only numbers are safe."""
        before, depth = set(self.places), 0
        outer, self.frame = self.frame, Frame()
        self.arithmetic += 1
        while self.at < len(self.cells):
            cell = self.cells[self.at]
            if depth == 0 and self._follows(closer):
                self.at += len(closer)
                break
            if depth == 0 and cell == ")":
                for hole in [hole for hole in self.places if hole not in before]:
                    self.places[hole].why = _UNCLEAR
                self.at += 1
                break
            if isinstance(cell, int):
                self._mark(cell, Context.ARITHMETIC)
            if cell in ("$", "`"):
                self._dollar(quoted=True) if cell == "$" else self._backticks(quoted=True)
                continue
            depth += {"(": 1, ")": -1}.get(str(cell), 0)
            self.at += 1
        self.arithmetic -= 1
        self.frame = outer

    def _braces(self, quoted: bool) -> None:
        start = self.at
        self._skip_parameter()
        named, colon = self.at > start, self._peek() == ":"
        is_default = named and self._peek(1 if colon else 0) in ("-", "+", "=", "?")
        before, toggled = set(self.places), False
        outer, self.frame = self.frame, Frame()
        while self.at < len(self.cells) and self.cells[self.at] != "}":
            toggled = toggled or (quoted and self.cells[self.at] == '"')
            self._brace_piece(quoted)
            if toggled or not is_default:
                for hole in [hole for hole in self.places if hole not in before]:
                    self.places[hole].why = self.places[hole].why or _IN_BRACES
        self.at += 1
        self.frame = outer

    def _brace_piece(self, quoted: bool) -> None:
        cell = self.cells[self.at]
        if cell in ("$", "`"):
            self._dollar(quoted) if cell == "$" else self._backticks(quoted)
        elif isinstance(cell, str) and cell in self.openers and not (quoted and cell in "'\""):
            self.openers[cell]()
        else:
            self.at += 1
            if isinstance(cell, int):
                self._mark(cell, Context.DOUBLE if quoted else Context.BARE)

    def _skip_parameter(self) -> None:
        cell = self._peek()
        if isinstance(cell, str) and cell in "@*#?$!-" and self._peek(1) in (":", "-", "+", "=", "?"):
            self.at += 1
            return
        while isinstance(cell := self._peek(), str) and _NAME.match(cell):
            self.at += 1

    # --- cells

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > _DEPTH:
            raise ShellError("the command is nested too deeply to be read")

    def _peek(self, ahead: int = 0) -> Cell:
        return self.cells[self.at + ahead] if self.at + ahead < len(self.cells) else None

    def _follows(self, text: str) -> bool:
        return self.cells[self.at : self.at + len(text)] == list(text)

    def _mark(self, hole: int, context: Context) -> None:
        self.places[hole] = Place(context, integer=self.arithmetic > 0, backticks=self.backticks)

    def _refuse(self, cells: list[Cell], why: str) -> None:
        for cell in cells:
            if isinstance(cell, int):
                self.places[cell].why = why
