"""A shell command before it runs: as a person would type it, and the programs that it starts."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sidecar.errors import ExpressionError, SidecarError
from sidecar.state.template import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sidecar.engine.plan.known import Known
    from sidecar.state.shell import PreparedCommand
    from sidecar.state.template import Slot

# A character that no command has: between two of them stands the number of a hole that only the run can fill.
_MARK = "\ue000"
_MARKED = re.compile(f"{_MARK}([0-9]+){_MARK}")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_PROGRAM = re.compile(r"[A-Za-z0-9_@%+:,./~-]+")
_SEPARATORS = frozenset(";|&()\n")
# Words before a command, and words whose arguments are no commands.
_BEFORE = frozenset(
    ["if", "then", "else", "elif", "while", "until", "do", "!", "{", "time", "exec", "command", "env", "nohup"]
)
_NO_COMMAND = frozenset(["for", "case", "select", "function"])
# What the shell does itself needs nobody to install it.
_BUILTIN = frozenset(
    [
        ".",
        ":",
        "[",
        "alias",
        "bg",
        "break",
        "cd",
        "continue",
        "done",
        "echo",
        "esac",
        "eval",
        "exit",
        "export",
        "false",
        "fc",
        "fg",
        "fi",
        "getopts",
        "hash",
        "jobs",
        "kill",
        "local",
        "printf",
        "pwd",
        "read",
        "readonly",
        "return",
        "set",
        "shift",
        "source",
        "test",
        "times",
        "trap",
        "true",
        "type",
        "ulimit",
        "umask",
        "unalias",
        "unset",
        "wait",
        "}",
    ]
)


@dataclass(frozen=True, slots=True)
class Command:
    """What is known of a command; `text` has the author's `{{ }}` wherever a value is not known."""

    text: str
    problems: tuple[str, ...]
    programs: tuple[str, ...]


def command(given: str | tuple[str, ...], known: Known) -> Command:
    """A command with everything in it that is known."""
    try:
        compiled = known.texts.command(given)
    except SidecarError as error:
        return Command(given if isinstance(given, str) else " ".join(given), (str(error),), ())
    slots = compiled.slots
    problems: list[str] = []
    values: list[Any] = [f"{_MARK}{number}{_MARK}" for number in range(len(slots))]
    complete = True
    for number, slot in enumerate(slots):
        if not known.knows(slot.expression):
            complete = False
            continue
        try:
            values[number] = slot.evaluate(known.run)
        except ExpressionError as error:
            problems.append(str(error))
    try:
        typed = _typed(compiled.fill(values))
    except SidecarError as error:
        if complete and not problems:  # else it may be the mark that is wrong there
            problems.append(str(error))
        typed = _pasted(compiled.parts, values)
    shown = _MARKED.sub(lambda match: compiled.placeholders[int(match[1])], typed)
    return Command(shown, tuple(problems), tuple(dict.fromkeys(_programs(typed))))


def _typed(prepared: PreparedCommand) -> str:
    """The command with its values in it, each quoted for its place."""
    if not prepared.values:
        return prepared.body
    names = "|".join(map(re.escape, prepared.values))
    # In one pass: a value may look like a reference to another.
    reference = rf"'\"\$\{{({names})\}}\"'|\"\$\{{({names})\}}\"|\$\{{({names})\}}"

    def value(match: re.Match[str]) -> str:
        given = prepared.values[match[1] or match[2] or match[3]]
        mark = _MARKED.search(given)
        if mark:
            return mark[0]
        if match[1]:
            return given.replace("'", "'\\''")
        return shlex.quote(given) if match[2] else re.sub(r'(["\\$`])', r"\\\1", given)

    return re.sub(reference, value, prepared.body)


def _pasted(parts: Sequence[str | Slot], values: Sequence[Any]) -> str:
    """The command with its values as they are: to look at, where it cannot be made ready."""
    left = iter(values)
    return "".join(part if isinstance(part, str) else as_text(next(left)) for part in parts)


def _programs(script: str) -> Iterator[str]:
    """The first words of its commands, as far as they can be told without running it."""
    try:
        words = list(_words(script))
    except ValueError:  # a quote that is not closed
        return
    expected, of_redirection = True, False
    for word in words:
        if set(word) <= _SEPARATORS:
            expected = True
        elif set(word) <= frozenset("<>&|"):
            of_redirection = True
        elif of_redirection:
            of_redirection = False
        elif expected and not _ASSIGNMENT.match(word) and word not in _BEFORE:
            expected = False
            if _PROGRAM.fullmatch(word) and word not in _BUILTIN | _NO_COMMAND:
                yield word


def _words(script: str) -> Iterator[str]:
    lines = script.replace("\\\n", " ").split("\n")
    if "<<" in script:  # what follows may be a text for the command
        lines = lines[: 1 + next(number for number, line in enumerate(lines) if "<<" in line)]
    # A line is over where a command is; inside quotes the mark for that does no harm, because only first words count.
    joined = " ; ".join(line for line in lines if not line.lstrip().startswith("#"))
    reader = shlex.shlex(joined, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    reader.commenters = ""
    return iter(reader)
