"""Shell commands with values in them, where no value can become code.

A value is never pasted into the text. It travels in the environment, and the text gets a reference to it that
fits the quotes around its hole. What a variable expands to is data to the shell; the few places where even that
is read as code are refused, also where the author's own variables, function arguments or pipes lead there. Not followed
is what goes through a file, through `read`, or out of `{ …; } | sh`: what such a command runs is what its author chose.
A list is one word per item where it stands bare, and one text joined by blanks inside
quotes. Null is refused: `rm -r {{ dir }}/build` must not run without a directory.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from sidecar.errors import ShellError, TemplateError
from sidecar.state.holes import Hole, split
from sidecar.state.shell_places import find_places
from sidecar.state.shell_reading import Context, Place
from sidecar.state.template import P, Slot, as_text, compile_text, filtered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.state.shell_words import Cell

__all__ = ["Prepared", "ShellCommand", "ShellError", "compile_command", "prepare", "unsafe_places"]

# Linux takes 128 KiB a variable and 2 MiB for environment and arguments together, macOS 1 MiB: 30,000 characters
# are at most 120,000 bytes, and enough is left for the environment that is there and for the command's own arguments.
_CHUNK_CHARACTERS = 30_000
_TOTAL_BYTES = 400_000
_SCRIPT_BYTES = 131_000
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A script for `sh -c` or `bash -c`, and what has to be added to its environment (UTF-8, surrogateescape)."""

    script: str
    environment: dict[str, str]
    body: str
    values: dict[str, str]

    def standalone(self) -> str:
        """The same as one text, for somebody else's shell: the values stand in front, quoted."""
        return "".join(f"{name}={shlex.quote(value)}\n" for name, value in self.values.items()) + self.body


@dataclass(frozen=True, slots=True)
class ShellCommand(Generic[P]):
    """A compiled command."""

    text: str
    parts: tuple[str | Slot[P], ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for part in self.parts if isinstance(part, Slot) for name in part.program.names)

    def prepare(self, run: Callable[[P], Any]) -> Prepared:
        """The command with the values that its expressions have now."""
        values = [part.evaluate(run) for part in self.parts if isinstance(part, Slot)]
        return _prepare([part.hole if isinstance(part, Slot) else part for part in self.parts], values)


def compile_command(text: str, compiler: Callable[[str], P]) -> ShellCommand[P]:
    """A command with its expressions compiled; `unsafe_places` says what else is wrong with it."""
    return ShellCommand(text, compile_text(text, compiler).parts)


def unsafe_places(command: str) -> list[tuple[int, str]]:
    """Where a value would be read as code whatever it is, and why: (offset in the command, reason), in order."""
    holes = [part for part in split(command) if isinstance(part, Hole)]
    if not holes:
        return []
    places = _places(split(command), {})
    found = [(hole.offset, place.why) for hole, place in zip(holes, places, strict=True) if place is not None]
    return [(offset, why) for offset, why in found if why is not None]


def prepare(command: str, values: Sequence[Any]) -> Prepared:
    """The command with one value per `{{ }}`, in order."""
    return _prepare(split(command), values)


def _prepare(parts: Sequence[str | Hole], values: Sequence[Any]) -> Prepared:
    holes = [part for part in parts if isinstance(part, Hole)]
    given = [filtered(value, _before_mode(hole), hole.offset) for hole, value in zip(holes, values, strict=True)]
    # What `| raw` pastes may open a quote, so the places are looked for in the text that will really run.
    pasted = {index: _raw(hole, given[index]) for index, hole in enumerate(holes) if _mode(hole) == "raw"}
    places = _places(parts, pasted)
    bound = _Bound("".join(part for part in parts if isinstance(part, str)) + "".join(pasted.values()))
    body = ""
    index = -1
    for part in parts:
        if isinstance(part, str):
            body += part
            continue
        index += 1
        place = places[index]
        body += pasted[index] if place is None else _reference(part, place, given[index], bound)
    return bound.prepared(body)


def _places(parts: Sequence[str | Hole], pasted: dict[int, str]) -> list[Place | None]:
    """The place of each hole; None for `| raw`, which has none: as long as its text is not known, some word."""
    cells: list[Cell] = []
    quoted: set[int] = set()
    index = -1
    for part in parts:
        if isinstance(part, str):
            cells.extend(part)
            continue
        index += 1
        if _mode(part) == "raw":
            cells.extend(pasted.get(index, "x"))
        else:
            cells.append(index)
        if _mode(part) == "quote":
            quoted.add(index)
    found = find_places(cells, frozenset(quoted))
    return [found.get(number) for number in range(index + 1)]


def _mode(hole: Hole) -> str:
    return hole.filters[-1] if hole.filters and hole.filters[-1] in ("raw", "quote") else ""


def _before_mode(hole: Hole) -> tuple[str, ...]:
    return hole.filters[:-1] if _mode(hole) else hole.filters


def _raw(hole: Hole, value: Any) -> str:
    items = value if isinstance(value, list) else [value]
    return _passable(hole, " ".join(as_text(item) for item in items))


def _reference(hole: Hole, place: Place, value: Any, bound: _Bound) -> str:
    """What stands in the text for a value: no character of it comes from the value."""
    if place.why is not None:
        raise TemplateError(f"{hole.shown}: {place.why}", hole.offset)
    if place.context is Context.COMMENT:
        return ""
    items = value if isinstance(value, list) else [value]
    texts = [_item(hole, item) for item in items]
    if place.integer and not (len(texts) == 1 and _INTEGER.fullmatch(texts[0])):
        message = f"{hole.shown}: only a whole number can stand in arithmetic"
        raise TemplateError(message, hole.offset, kind="value")
    if _mode(hole) == "quote":
        # Bare, this shell takes the quotes off again; between quotes they stay, for whoever reads the string.
        joined = " ".join(texts)
        texts = [shlex.quote(joined) if place.read_twice or place.context is not Context.BARE else joined]
    if place.context is Context.BARE:
        return " ".join(f'"${{{bound.name(hole, text)}}}"' for text in texts)
    reference = f"${{{bound.name(hole, ' '.join(texts))}}}"
    around = {Context.SINGLE: ("'\"", "\"'"), Context.ANSI: ("'\"", "\"$'")}.get(place.context, ("", ""))
    return around[0] + reference + around[1]


def _item(hole: Hole, value: Any) -> str:
    if value is None:
        message = f"{hole.shown} has no value (null); write {{{{ {hole.source} ?? '' }}}} where nothing is meant"
        raise TemplateError(message, hole.offset, kind="value")
    return _passable(hole, as_text(value))


def _passable(hole: Hole, text: str) -> str:
    """The text, unless the operating system has no way to hand it to a process."""
    if "\0" in text:
        raise TemplateError(
            f"{hole.shown} holds a NUL character, which no command can be given", hole.offset, kind="value"
        )
    # U+DC80 to U+DCFF are bytes of file names that are no UTF-8: those are passed on as they were.
    if any("\ud800" <= character <= "\udfff" and not "\udc80" <= character <= "\udcff" for character in text):
        message = f"{hole.shown} holds half a surrogate pair, which no command can be given"
        raise TemplateError(message, hole.offset, kind="value")
    return text


class _Bound:
    """The values of one command, each with the variable that carries it."""

    def __init__(self, text: str) -> None:
        self.prefix = "sidecar_value"
        while self.prefix in text:
            self.prefix += "_"
        self.values: dict[str, str] = {}
        self.bytes = 0

    def name(self, hole: Hole, text: str) -> str:
        self.bytes += len(text.encode("utf-8", "surrogateescape"))
        if self.bytes > _TOTAL_BYTES:
            raise TemplateError(
                f"{hole.shown}: the values of the command exceed {_TOTAL_BYTES // 1000} kB; pass big ones in a file",
                hole.offset,
                kind="value",
            )
        name = f"{self.prefix}_{len(self.values) + 1}"
        self.values[name] = text
        return name

    def prepared(self, body: str) -> Prepared:
        """The script first takes the values out of its environment, so that what it starts does not inherit them.

        It does so on its first line: the shell's messages keep the line numbers of the command.
        """
        environment: dict[str, str] = {}
        lead = ""
        for name, text in self.values.items():
            chunks = {
                f"{name}_{start // _CHUNK_CHARACTERS}": text[start : start + _CHUNK_CHARACTERS]
                for start in range(0, max(len(text), 1), _CHUNK_CHARACTERS)
            }
            environment.update(chunks)
            lead += f"{name}=" + "".join(f"${{{chunk}}}" for chunk in chunks) + "; "
        if environment:
            lead += f"unset {' '.join(environment)}; "
        script = lead + body
        if len(script.encode("utf-8", "surrogateescape")) > _SCRIPT_BYTES:
            raise ShellError(f"the command is longer than {_SCRIPT_BYTES // 1000} kB; put it into a file of its own")
        return Prepared(script, environment, body, self.values)
