"""One shell command while it is being read: the place that is reached, and what is known of its holes so far."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from sidecar.errors import ShellError
from sidecar.state.shell_frame import Frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.state.shell_flow import Flow
    from sidecar.state.shell_words import Cell, Word

_DEPTH = 60
NAME = re.compile(r"[A-Za-z0-9_]", re.ASCII)


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


@dataclass(slots=True)
class Reading:
    """A command, or the part of one between backticks, which shares all that is known with what is around it."""

    cells: list[Cell]
    places: dict[int, Place]
    quoted: frozenset[int]  # the holes with `| quote`
    flow: Flow
    read_list: Callable[[Reading, str | None], None]  # commands stand in expansions, and expansions in commands
    depth: int = 0
    arithmetic: int = 0
    backticks: bool = False
    at: int = 0
    heredocs: list[tuple[str, bool]] = field(default_factory=list)
    frame: Frame = field(default_factory=Frame)

    def word(self) -> Word:
        return self.frame.current()

    def nested(self, word: Word, read: Callable[[], None]) -> None:
        """Reads a substitution; to the word around it, it is something that only the running shell knows."""
        before, mentions = set(self.places), len(self.flow.mentions)
        self.deeper()
        read()
        self.depth -= 1
        word.cells.append(None)
        word.nested.extend(hole for hole in self.places if hole not in before)
        word.nested.extend(self.flow.since(mentions))

    def bare_name(self, name: str) -> None:
        """Arithmetic takes a variable also without a dollar."""
        if not name[0].isdigit():
            self.flow.mention(name, number=True)

    def whole_number(self, cell: int) -> None:
        if cell < 0:
            self.flow.is_number(cell)
        else:
            self.places[cell].integer = True

    def name(self) -> str:
        """Reads a name, or a number; empty if none begins here."""
        start = self.at
        while isinstance(cell := self.peek(), str) and NAME.match(cell):
            self.at += 1
        return "".join(str(cell) for cell in self.cells[start : self.at])

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > _DEPTH:
            raise ShellError("the command is nested too deeply to be read")

    def peek(self, ahead: int = 0) -> Cell:
        return self.cells[self.at + ahead] if self.at + ahead < len(self.cells) else None

    def follows(self, text: str) -> bool:
        return self.cells[self.at : self.at + len(text)] == list(text)

    def mark(self, hole: int, context: Context) -> None:
        self.places[hole] = Place(context, integer=self.arithmetic > 0, backticks=self.backticks)

    def refuse(self, cells: list[Cell], why: str) -> None:
        for cell in cells:
            if isinstance(cell, int) and cell < 0:
                self.flow.is_code(cell, why)
            elif isinstance(cell, int) and cell in self.places:
                self.places[cell].why = self.places[cell].why or why
