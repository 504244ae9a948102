"""Values that come to be read as code by a detour: through a variable of the command, or through a function's argument.

`n={{ count }}; echo $((n + 1))` evaluates in bash what is in `n`, so that the value in front has to be a number. Every
mention of a variable is a negative number among the cells of a word, and is judged there as a hole would be. Order does
not count: a variable that gets a value anywhere may have it everywhere.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.state.shell_words import Word

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=", re.ASCII)
# What a function or `set --` was given; `$10` is `$1` and a zero, but `${10}` is the tenth.
_POSITIONAL = re.compile(r"[1-9][0-9]*|[@*]", re.ASCII)
_ARGUMENTS = "@"


class Flow:
    """Which variables are mentioned where, and which holes their values come from."""

    def __init__(self) -> None:
        self.mentions: list[str] = []
        self.functions: set[str] = set()
        self._sources: dict[str, set[int]] = {}
        self._calls: list[tuple[str, list[int]]] = []
        self._code: list[tuple[int, str]] = []
        self._numbers: list[int] = []

    def mention(self, name: str, *, number: bool = False) -> int:
        """The cell that stands for a variable; `number`: it stands where bash would evaluate it as arithmetic."""
        self.mentions.append(_ARGUMENTS if _POSITIONAL.fullmatch(name) else name)
        cell = -len(self.mentions)
        if number:
            self.is_number(cell)
        return cell

    def since(self, count: int) -> list[int]:
        """The mentions after the first `count`."""
        return [-(index + 1) for index in range(count, len(self.mentions))]

    def is_code(self, mention: int, why: str) -> None:
        """What is in the variable would be read as code there."""
        self._code.append((mention, why))

    def is_number(self, mention: int) -> None:
        """What is in the variable would be evaluated as arithmetic there."""
        self._numbers.append(mention)

    def command(self, words: list[Word]) -> None:
        """Takes note of what a simple command assigns."""
        texts = [word.literal for word in words[:3]]
        if texts[:1] in (["for"], ["select"]) and texts[2:] == ["in"]:
            self._assign(texts[1], words[3:])
        elif texts[:2] == ["set", "--"]:
            self._assign(_ARGUMENTS, words[2:])
        else:
            for word in words:
                if assigned := _ASSIGNED.match(word.text):
                    self._assign(assigned[1], [word])
        if len(words) > 1:
            self._calls.append((texts[0], [cell for word in words[1:] for cell in word.holes + word.nested]))

    def default(self, name: str, cells: Iterable[int]) -> None:
        """Takes note of `${name:=…}`."""
        self._sources.setdefault(name, set()).update(cells)

    def settle(self) -> tuple[list[tuple[int, str]], set[int]]:
        """The holes whose values would be code, and why; the holes whose values have to be whole numbers."""
        for name, cells in self._calls:
            if name in self.functions:
                self._sources.setdefault(_ARGUMENTS, set()).update(cells)
        code = [
            (hole, f"through ${self.mentions[-mention - 1]}: {why}")
            for mention, why in self._code
            for hole in sorted(self._holes(mention))
        ]
        return code, {hole for mention in self._numbers for hole in self._holes(mention)}

    def _assign(self, name: str, words: list[Word]) -> None:
        self.default(name, (cell for word in words for cell in word.holes + word.nested))

    def _holes(self, mention: int) -> set[int]:
        found: set[int] = set()
        seen: set[str] = set()
        names = [self.mentions[-mention - 1]]
        while names:
            name = names.pop()
            if name not in seen:
                seen.add(name)
                sources = self._sources.get(name, set())
                found.update(cell for cell in sources if cell >= 0)
                names.extend(self.mentions[-cell - 1] for cell in sources if cell < 0)
        return found
