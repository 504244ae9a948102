"""Shell commands with values in them, where the shell never reads a value as code.

A value is never pasted into the text. It travels in the environment, and the text gets a reference to it that
fits the quotes around its hole. Where even that could become code the text is refused: `shell_rules` says where.
A list is one word per item where it stands as a word of its own, and one text joined by blanks inside
quotes. Null is refused: `rm -r {{ dir }}/build` must not run without a directory.
A command that is a list has no shell: each element is one argument.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sidecar.errors import ShellError, TemplateError
from sidecar.state import shell_rules
from sidecar.state.javascript import Placeholder, split_template
from sidecar.state.shell_rules import Analysis, Context, Place
from sidecar.state.template import Compiler, Run, Slot, as_text, compile_text, filtered, names_in

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Finding", "ListCommand", "Prepared", "ShellCommand", "ShellError", "check", "check_list", "compile_command"]

# Linux takes 128 KiB a variable and 2 MiB for environment and arguments together, macOS 1 MiB: 30,000 characters
# are at most 120,000 bytes, and enough is left for the environment that is there and for the command's own arguments.
_CHUNK_CHARACTERS = 30_000
_TOTAL_BYTES = 400_000
_SCRIPT_BYTES = 131_000
_TOO_LONG = f"the command is longer than {_SCRIPT_BYTES // 1000} kB; put it into a file of its own"
_WAY_OUT = "Write `command` as a list, or pass the value in `env:`; `| raw` turns this off"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A script for `sh -c` or `bash -c`, and what has to be added to its environment (UTF-8, surrogateescape)."""

    script: str
    environment: dict[str, str]
    body: str
    values: dict[str, str]
    is_list: bool = False

    def standalone(self) -> str:
        """The same as one text, for somebody else's shell: the values stand in front, quoted."""
        lines = "".join(f"{name}={shlex.quote(value)}\n" for name, value in self.values.items())
        return lines + ("env " if self.is_list else "") + self.body


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a command, or doubtful, at an offset of its text."""

    offset: int
    message: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A command whose expressions are compiled; `placeholders` are these as they are written."""

    parts: tuple[str | Slot, ...]
    placeholders: tuple[str, ...]

    @property
    def slots(self) -> list[Slot]:
        return [part for part in self.parts if isinstance(part, Slot)]

    @property
    def names(self) -> frozenset[str]:
        return names_in(self.slots)

    def prepare(self, run: Run) -> Prepared:
        """The command with the values that its expressions have now."""
        return self.fill([slot.evaluate(run) for slot in self.slots])

    def fill(self, values: Sequence[Any]) -> Prepared:
        """The command with one value per `{{ }}`, in order."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ShellCommand(_Compiled):
    """A text for the shell; it is analysed once, unless `| raw` makes another text of it at every run."""

    analysis: Analysis | None

    def fill(self, values: Sequence[Any]) -> Prepared:
        return _prepare(_without_programs(self.parts), values, self.analysis)


@dataclass(frozen=True, slots=True)
class ListCommand(_Compiled):
    """A program and its arguments. The shell only starts it: it finds each argument between quotes."""

    elements: tuple[tuple[str | Slot, ...], ...]

    def fill(self, values: Sequence[Any]) -> Prepared:
        bound = _Bound("".join(part for part in self.parts if isinstance(part, str)))
        given = iter(values)
        words: list[str] = []
        for element in self.elements:
            texts = [part if isinstance(part, str) else _argument(part.placeholder, next(given)) for part in element]
            if not words and "".join(texts).startswith("-"):
                raise ShellError("the name of a program cannot begin with -")
            pieces = zip(element, texts, strict=True)
            words.append(
                "".join(
                    shlex.quote(part) if isinstance(part, str) else f'"${{{bound.name(part.placeholder, text)}}}"'
                    for part, text in pieces
                )
            )
        return bound.prepared(" ".join(words), is_list=True)


def compile_command(command: str | tuple[str, ...], compiler: Compiler) -> ShellCommand | ListCommand:
    """A command with its expressions compiled; `check` and `check_list` say what else is wrong with it."""
    if not isinstance(command, str):
        elements = tuple(compile_text(element, compiler).parts for element in command)
        placeholders = tuple(written for text in command for written in _written(text))
        between: list[str | Slot] = []
        for element in elements:
            between += [*([" "] if between else []), *element]
        return ListCommand(tuple(between), placeholders, elements)
    parts = compile_text(command, compiler).parts
    bare = _without_programs(parts)
    is_fixed = not any(isinstance(part, Placeholder) and _mode(part) == "raw" for part in bare)
    return ShellCommand(parts, tuple(_written(command)), _analyse(bare, {}) if is_fixed else None)


def check(command: str) -> list[Finding]:
    """Where the shell would read a value as code, which is an error, and where another program may, which is none."""
    parts = split_template(command)
    holes = [part for part in parts if isinstance(part, Placeholder)]
    analysis = _analyse(parts, {})
    if analysis.refused is not None:
        return [Finding(holes[analysis.refused_at].offset, f"{analysis.refused}. {_WAY_OUT}", is_error=True)]
    warnings = sorted(analysis.warnings.items())
    return [Finding(holes[number].offset, message, is_error=False) for number, message in warnings]


def check_list(command: Sequence[str]) -> list[list[Finding]]:
    """What is doubtful in each element: no shell reads a list, but its program may be one."""
    found: list[list[Finding]] = [[] for _ in command]
    holes: list[tuple[int, Placeholder]] = []
    words: list[list[str | int]] = []
    for number, element in enumerate(command):
        words.append([])
        for part in split_template(element):
            if isinstance(part, Placeholder) and _mode(part) == "":
                words[-1].append(len(holes))
                holes.append((number, part))
            else:
                words[-1].append("x" if isinstance(part, Placeholder) else part)
    for at, message in sorted(shell_rules.doubts(words).items()):
        number, hole = holes[at]
        found[number].append(Finding(hole.offset, message, is_error=False))
    return found


def prepare(command: str, values: Sequence[Any]) -> Prepared:
    """The command with one value per `{{ }}`, in order."""
    return _prepare(split_template(command), values, None)


def _written(text: str) -> list[str]:
    return [text[part.offset : part.end] for part in split_template(text) if isinstance(part, Placeholder)]


def _without_programs(parts: Sequence[str | Slot]) -> list[str | Placeholder]:
    return [part.placeholder if isinstance(part, Slot) else part for part in parts]


def _prepare(parts: Sequence[str | Placeholder], values: Sequence[Any], analysis: Analysis | None) -> Prepared:
    holes = [part for part in parts if isinstance(part, Placeholder)]
    given = [filtered(value, _before_mode(hole), hole.offset) for hole, value in zip(holes, values, strict=True)]
    # What `| raw` pastes may open a quote, so the places are looked for in the text that will really run.
    pasted = {index: _raw(hole, given[index]) for index, hole in enumerate(holes) if _mode(hole) == "raw"}
    analysis = analysis or _analyse(parts, pasted)
    if analysis.refused is not None:
        hole = holes[analysis.refused_at]
        raise TemplateError(f"{hole.shown}: {analysis.refused}. {_WAY_OUT}", hole.offset)
    bound = _Bound("".join(part for part in parts if isinstance(part, str)) + "".join(pasted.values()))
    body = ""
    index = -1
    for part in parts:
        if isinstance(part, str):
            body += part
            continue
        index += 1
        raw = pasted.get(index)
        body += _reference(part, analysis.places[index], given[index], bound) if raw is None else raw
    return bound.prepared(body)


def _analyse(parts: Sequence[str | Placeholder], pasted: dict[int, str]) -> Analysis:
    """Where the values stand; as long as it is not known what `| raw` pastes, it is some word."""
    found: list[str | int] = []
    index = -1
    for part in parts:
        if isinstance(part, str):
            found.append(part)
            continue
        index += 1
        found.append(pasted.get(index, "raw-text") if _mode(part) == "raw" else index)
    if sum(len(part) for part in found if isinstance(part, str)) > _SCRIPT_BYTES:
        raise ShellError(_TOO_LONG)
    return shell_rules.analyse(found)


def _mode(hole: Placeholder) -> str:
    return hole.filters[-1] if hole.filters and hole.filters[-1] in ("raw", "quote") else ""


def _before_mode(hole: Placeholder) -> tuple[str, ...]:
    return hole.filters[:-1] if _mode(hole) else hole.filters


def _raw(hole: Placeholder, value: Any) -> str:
    items = value if isinstance(value, list) else [value]
    return _passable(hole, " ".join(as_text(item) for item in items))


def _reference(hole: Placeholder, place: Place, value: Any, bound: _Bound) -> str:
    """What stands in the text for a value: no character of it comes from the value."""
    if place.context is Context.COMMENT:
        return ""
    texts = [_item(hole, item) for item in (value if isinstance(value, list) else [value])]
    if _mode(hole) == "quote":
        # Bare, this shell takes the quotes off again; between quotes they stay, for whoever reads the string.
        joined = " ".join(texts)
        texts = [joined if place.context is Context.BARE else shlex.quote(joined)]
    elif isinstance(value, list) and place.context is Context.BARE and not place.many:
        message = f"{hole.shown}: a list cannot stand here; join its items, or write it as a word of its own"
        raise TemplateError(message, hole.offset, kind="value")
    if place.context is Context.BARE:
        return " ".join(f'"${{{bound.name(hole, text)}}}"' for text in texts)
    reference = f"${{{bound.name(hole, ' '.join(texts))}}}"
    return f"'\"{reference}\"'" if place.context is Context.SINGLE else reference


def _argument(hole: Placeholder, value: Any) -> str:
    """A value in an element of a list: all of it is one argument, or a part of one."""
    value = filtered(value, hole.filters, hole.offset)
    if isinstance(value, list):
        message = f"{hole.shown}: each element of a command is one argument, and a list is none; join its items"
        raise TemplateError(message, hole.offset, kind="value")
    return _item(hole, value)


def _item(hole: Placeholder, value: Any) -> str:
    if value is None:
        message = f"{hole.shown} has no value (null); write {{{{ {hole.source} ?? '' }}}} where nothing is meant"
        raise TemplateError(message, hole.offset, kind="value")
    return _passable(hole, as_text(value))


def _passable(hole: Placeholder, text: str) -> str:
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

    def name(self, hole: Placeholder, text: str) -> str:
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

    def prepared(self, body: str, *, is_list: bool = False) -> Prepared:
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
        script = lead + ("exec " if is_list else "") + body
        if len(script.encode("utf-8", "surrogateescape")) > _SCRIPT_BYTES:
            raise ShellError(_TOO_LONG)
        return Prepared(script, environment, body, self.values, is_list)
